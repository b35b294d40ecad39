from __future__ import annotations

from itertools import permutations

import pytest
import torch

from vitscope.analyses.kpca.matching import best_matching


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
