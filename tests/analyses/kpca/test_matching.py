from __future__ import annotations

from itertools import permutations

import pytest
import torch
from scipy.optimize import linear_sum_assignment

from vitscope.analyses.kpca.matching import LARGE, best_matching, column_prices


def test_the_matching_is_the_best_of_all(heads):
    similarity = heads(n=5, d=5)[0]
    found = best_matching(similarity)
    assert found.shape == (2, 3, 5)
    for b in range(2):
        for h in range(3):
            s = similarity[b, h]
            best = max(sum(float(s[i, p[i]]) for i in range(5)) for p in permutations(range(5)))
            assert float(found[b, h].sum()) == pytest.approx(best)


def test_a_permutation_is_found_again():
    similarity = torch.eye(6)[torch.tensor([3, 1, 5, 0, 2, 4])]
    assert best_matching(similarity).tolist() == [1.0] * 6


@pytest.mark.parametrize("kind", ["random", "constant", "outlier", "equal rows", "float32"])
def test_prices_that_shorten_the_search_leave_the_matching_as_it_is(kind):
    similarity = torch.randn(LARGE + 3, LARGE + 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    if kind == "constant":
        similarity.fill_(0.3)
    elif kind == "outlier":  # thousands of deviations away from the rest
        similarity.mul_(1e-12)[5, 7] = -1
    elif kind == "equal rows":
        similarity[10:20] = similarity[10]
    elif kind == "float32":
        similarity = similarity.float()
    assert column_prices(similarity).isfinite().all()
    plain = similarity[linear_sum_assignment(similarity, maximize=True)]
    found = best_matching(similarity)
    assert found.dtype == similarity.dtype
    torch.testing.assert_close(found.sort().values, plain.sort().values, rtol=1e-12, atol=0)
