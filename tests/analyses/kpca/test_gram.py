from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitscope.analyses.kpca.gram import centre, centred_gram, log_k_phi, standardise
from vitscope.errors import NumericalError, VitscopeError


def keys_of(seed: int, n: int, d: int, scale: float) -> torch.Tensor:
    return scale * torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


any_keys = st.builds(
    keys_of, st.integers(0, 10**6), st.integers(2, 20), st.integers(1, 8), st.sampled_from([0.01, 0.3, 1.0, 3.0, 10.0])
)


def naive_gram(keys: torch.Tensor) -> list[list[float]]:
    """K_phi as it is defined, with Python's own loops and exponentials."""
    n, d = keys.shape
    k = [[math.exp(float(keys[i] @ keys[j]) / math.sqrt(d)) for j in range(n)] for i in range(n)]
    g = [sum(row) for row in k]
    return [[k[i][j] / (g[i] * g[j]) for j in range(n)] for i in range(n)]


def test_k_phi_is_the_kernel_divided_by_both_sums(heads):
    keys = heads()[1][0, 0]
    log_k, log_g = log_k_phi(keys)
    torch.testing.assert_close(log_k.exp(), torch.tensor(naive_gram(keys), dtype=torch.float64))
    sums = torch.tensor([sum(math.exp(float(k @ j) / 2) for j in keys) for k in keys], dtype=torch.float64)
    torch.testing.assert_close(log_g.exp(), sums)


def test_centring_is_multiplication_with_the_projector_on_both_sides(heads):
    keys = heads(n=9)[1]
    matrix = log_k_phi(keys)[0].exp()
    projector = torch.eye(9, dtype=torch.float64) - 1 / 9
    torch.testing.assert_close(centre(matrix), projector @ matrix @ projector, atol=1e-15, rtol=1e-12)


@given(any_keys)
@settings(deadline=None, max_examples=40)
def test_the_quick_way_and_the_way_for_long_keys_agree(keys):
    from unittest.mock import patch

    quick = centred_gram(keys)
    with patch("vitscope.analyses.kpca.gram.MODERATE", -1.0):
        careful = centred_gram(keys)
    torch.testing.assert_close(quick.matrix, careful.matrix, rtol=1e-9, atol=1e-12)
    for name in ("log_scale", "log_g", "trace"):
        torch.testing.assert_close(getattr(quick, name), getattr(careful, name), rtol=1e-10, atol=1e-12)


@given(any_keys)
@settings(deadline=None, max_examples=60)
def test_rows_of_the_centred_gram_matrix_sum_to_zero(keys):
    gram = centred_gram(keys)
    assert gram.matrix.sum(-1).abs().max() < 1e-12  # the largest entry before centring is 1


@given(any_keys)
@settings(deadline=None, max_examples=60)
def test_the_trace_is_at_most_the_number_of_tokens_and_eigenvalues_lie_between_zero_and_it(keys):
    gram = centred_gram(keys)
    n = keys.shape[0]
    trace = gram.trace * gram.log_scale.exp()
    assert 0 <= trace <= n
    values = torch.linalg.eigvalsh(gram.matrix)
    assert values.min() > -1e-12
    assert values.max() <= gram.trace * (1 + 1e-12)


@given(any_keys, st.integers(0, 1000))
@settings(deadline=None, max_examples=30)
def test_the_gram_matrix_does_not_see_a_rotation_of_the_keys(keys, seed):
    turn = torch.linalg.qr(keys_of(seed, keys.shape[1], keys.shape[1], 1.0))[0]
    torch.testing.assert_close(log_k_phi(keys @ turn)[0], log_k_phi(keys)[0], atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("scale", [1, 10, 100, 1000])
def test_long_keys_overflow_nothing(heads, scale):
    gram = centred_gram(heads(n=30, d=16, scale=scale)[1])
    for part in (gram.matrix, gram.log_scale, gram.log_g, gram.trace):
        assert part.isfinite().all()
    assert (gram.matrix.abs().amax((-2, -1)) > 0.1).all()  # and nothing underflows: the largest entry is of order 1


def test_the_published_denominator_changes_the_gram_matrix_by_its_floor(heads):
    keys = heads()[1][0, 0]
    k = (keys @ keys.T / 2).exp()
    g = k.sum(-1)
    gram = centred_gram(keys, "code")
    expected = centre(k / (g[:, None] * g[None, :] + 1e-6))
    torch.testing.assert_close(gram.matrix * gram.log_scale.exp(), expected, rtol=1e-12, atol=1e-15)
    assert not torch.equal(gram.matrix, centred_gram(keys).matrix)


def test_standardised_tokens_have_mean_zero_and_unbiased_deviation_one(heads):
    x = standardise(5 + 3 * heads(d=7)[1])
    assert x.mean(-1).abs().max() < 1e-14
    torch.testing.assert_close(x.std(-1), torch.ones_like(x[..., 0]))


def test_a_constant_token_becomes_zero_when_standardised():
    x = torch.ones(1, 3, 4)
    for variant in ("exact", "code"):
        assert torch.equal(standardise(x, variant), torch.zeros(1, 3, 4, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_keys_are_computed_in_float64(heads, dtype):
    keys = heads()[1].to(dtype)
    gram = centred_gram(keys)
    assert gram.matrix.dtype == torch.float64
    torch.testing.assert_close(gram.matrix, centred_gram(keys.double()).matrix)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_one_entry_that_is_not_finite_is_found(value):
    from vitscope.analyses.kpca.gram import all_finite

    x = torch.randn(3, 4)
    assert all_finite(x)
    assert all_finite(x.half() * 0 + 60000)  # the sum overflows, no entry does
    x[1, 2] = value
    assert not all_finite(x)


def test_keys_with_nan_or_of_the_wrong_kind_are_refused():
    from vitscope.analyses.kpca.gram import check_keys

    with pytest.raises(NumericalError, match="NaN or infinity"):
        check_keys(torch.tensor([[1.0, float("nan")]]))
    with pytest.raises(VitscopeError, match="of floats"):
        check_keys(torch.ones(3, 4, dtype=torch.int64))
