from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitscope.analyses.kpca import alignment
from vitscope.analyses.kpca.gram import centre


def pair(seed: int, n: int = 15, d: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(n, d, generator=generator, dtype=torch.float64) for _ in range(2))
    return x, y


def rotation(seed: int, d: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64))[0]


def bases(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return alignment.principal_cosines(alignment.orthonormal_basis(x), alignment.orthonormal_basis(y))


FAIR = {
    "principal angles": bases,
    "cca": lambda x, y: bases(alignment.centre_columns(x), alignment.centre_columns(y)),
    "component matching": lambda x, y: alignment.component_matching(x, y).sort().values,
}


@pytest.mark.parametrize("name", FAIR)
@given(seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=15)
def test_fair_measures_do_not_see_sign_order_and_length_of_components(name, seed):
    x, y = pair(seed)
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.rand(4, generator=generator, dtype=torch.float64) + 0.1
    signs = torch.randint(0, 2, (4,), generator=generator) * 2 - 1
    changed = (y * lengths * signs)[:, torch.randperm(4, generator=generator)]
    torch.testing.assert_close(FAIR[name](x, changed), FAIR[name](x, y), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", ["principal angles", "cca"])
def test_principal_angles_and_cca_do_not_see_a_mixing_of_components(name):
    x, y = pair(1)
    mixing = torch.eye(4, dtype=torch.float64) + 0.5 * pair(2, 4, 4)[0]
    torch.testing.assert_close(FAIR[name](x, y @ mixing), FAIR[name](x, y), rtol=1e-7, atol=1e-9)


def test_procrustes_cka_and_kernel_cka_do_not_see_a_rotation_and_a_scale():
    x, y = pair(3)
    turned = 7 * y @ rotation(0, 4)
    torch.testing.assert_close(alignment.procrustes(x, turned), alignment.procrustes(x, y))
    torch.testing.assert_close(alignment.linear_cka(x, turned), alignment.linear_cka(x, y))
    a, b, c = map(alignment.rbf_gram, (x, y, turned))
    torch.testing.assert_close(alignment.kernel_cka(a, c), alignment.kernel_cka(a, b))
    assert float(alignment.procrustes(y, turned)) == pytest.approx(1)
    assert float(alignment.kernel_cka(b, c)) == pytest.approx(1)


def test_procrustes_is_that_of_scipy():
    from scipy.spatial import procrustes

    x, y = pair(4)
    disparity = procrustes(x.numpy(), y.numpy())[2]  # 1 - correlation^2
    assert float(alignment.procrustes(x, y)) == pytest.approx(np.sqrt(1 - disparity))


def test_principal_angles_are_those_of_scipy():
    from scipy.linalg import subspace_angles

    x, y = pair(5)
    np.testing.assert_allclose(bases(x, y), np.sort(np.cos(subspace_angles(x.numpy(), y.numpy())))[::-1], rtol=1e-9)


def test_canonical_correlations_are_those_of_a_generalised_eigenproblem():
    from scipy.linalg import eigh

    x, y = (alignment.centre_columns(m).numpy() for m in pair(6))
    cross = x.T @ y
    squared = eigh(cross @ np.linalg.solve(y.T @ y, cross.T), x.T @ x, eigvals_only=True)[::-1]
    np.testing.assert_allclose(FAIR["cca"](*pair(6)) ** 2, squared, rtol=1e-8)


def test_component_matching_is_the_best_of_all_permutations():
    from itertools import permutations

    x, y = pair(7)
    correlation = np.abs(np.corrcoef(x.numpy().T, y.numpy().T)[:4, 4:])
    best = max(sum(correlation[i, p[i]] for i in range(4)) for p in permutations(range(4)))
    assert float(alignment.component_matching(x, y).sum()) == pytest.approx(best)


def test_the_bandwidth_is_the_lower_median_of_the_positive_distances():
    x = pair(8, 9, 3)[0]
    x[4] = x[2]  # a pair at distance zero
    squared = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").square()
    distances = sorted(float(squared[i, j]) for i in range(9) for j in range(i) if (i, j) != (4, 2))
    gram = alignment.rbf_gram(x)
    sigma2 = distances[(len(distances) - 1) // 2]
    torch.testing.assert_close(gram, centre((-squared / (2 * sigma2)).exp()), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("equal", [(), (3,), (3, 5), (3, 5, 7, 8)])
def test_the_median_of_pairs_counts_each_positive_pair_once(equal):
    x = pair(9, 10, 2)[0].round(decimals=2)
    for i in equal:
        x[i] = x[0]
    squared = (x[:, None] - x[None]).square().sum(-1)
    positive = sorted(float(squared[i, j]) for i in range(10) for j in range(i) if squared[i, j] > 0)
    assert float(alignment.median_of_pairs(squared)) == positive[(len(positive) - 1) // 2]
    both = torch.stack([squared, 4 * squared])
    torch.testing.assert_close(
        alignment.median_of_pairs(both), alignment.median_of_pairs(squared) * torch.tensor([1, 4])
    )


def test_nothing_is_similar_to_nothing_and_no_measure_is_nan():
    x, zero = pair(10)[0], torch.zeros(15, 4, dtype=torch.float64)
    assert float(alignment.linear_cka(x, zero)) == 0
    assert float(alignment.kernel_cka(alignment.rbf_gram(x), alignment.rbf_gram(zero))) == 0
    assert float(alignment.procrustes(x, zero)) == 0
    assert float(alignment.pearson(x, zero)) == 0
    assert float(alignment.cosines(x, zero).sum()) == 0
    assert alignment.component_matching(x, zero).isfinite().all()


def test_pearson_is_numpys():
    x, y = pair(11)
    assert float(alignment.pearson(x, y)) == pytest.approx(np.corrcoef(x.flatten(), y.flatten())[0, 1])
