from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitscope.analyses.kpca.construction import construct
from vitscope.analyses.kpca.gram import standardise
from vitscope.analyses.kpca.reconstruction import errors, squared_norms


def naive(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, i: int) -> tuple[float, float]:
    """||phi(q_i)||^2 and ||h_i||^2 of one head, as they are defined."""
    root = math.sqrt(q.shape[-1])
    weights = [math.exp(float(q[i] @ key) / root) for key in k]
    g = sum(weights)
    phi = math.exp(float(q[i] @ q[i]) / root) / g**2
    h = [sum(w / g * float(x) for w, x in zip(weights, column)) for column in v.T]
    return phi, sum(x * x for x in h)


def test_norms_are_those_of_the_published_program(golden):
    found = squared_norms(golden["q"], golden["k"], golden["v"])
    torch.testing.assert_close(found["log_phi"].exp(), golden["phi_sqnorm"], rtol=1e-8, atol=0)
    torch.testing.assert_close(found["h"], golden["h_sqnorm"], rtol=1e-8, atol=0)


def test_norms_are_those_of_the_definition(heads):
    q, k, v = heads()
    found = squared_norms(q, k, v)
    for i in range(12):
        phi, h = naive(q[1, 2], k[1, 2], v[1, 2], i)
        assert float(found["log_phi"][1, 2, i].exp()) == pytest.approx(phi)
        assert float(found["h"][1, 2, i]) == pytest.approx(h)


def test_the_first_column_gives_the_same_norm(heads):
    exact, paper = squared_norms(*heads()), squared_norms(*heads(), variant="paper")
    torch.testing.assert_close(paper["log_phi"], exact["log_phi"])
    assert torch.equal(paper["h"], exact["h"])


def test_the_first_column_fails_without_nan_where_its_weight_underflows(heads):
    q, k, v = heads(n=20, d=8, scale=100)
    paper = squared_norms(q, k, v, variant="paper")
    assert not paper["log_phi"].isnan().any()
    assert all(not x.isnan().any() for x in errors(**paper).values())


def test_the_released_code_standardises_and_forgets_the_root_of_d(heads):
    q, k, v = heads(d=5)
    found = squared_norms(q, k, v, variant="code")
    sq, sk = standardise(q, "code"), standardise(k, "code")
    attention = (sq @ sk.mT / math.sqrt(5)).softmax(-1)
    numerator = (sq * sq).sum(-1).exp()
    denominator = (2 * (sq * sk[..., :1, :]).sum(-1) - attention[..., 0].square().log()).exp()
    torch.testing.assert_close(found["log_phi"].exp(), numerator / denominator)
    torch.testing.assert_close(found["h"], (attention @ v).square().sum(-1))


def test_without_the_root_of_d_the_norm_is_wrong_by_orders_of_magnitude(heads):
    q, k, v = heads(n=64, d=32)
    right = squared_norms(q, k, v, standardised=True)["log_phi"].exp().mean()
    code = squared_norms(q, k, v, variant="code")["log_phi"].exp().mean()
    assert right < 0.1
    assert code > 1e8


@pytest.mark.parametrize("scale", [1, 10, 100])
def test_queries_and_keys_of_any_length_give_no_nan_and_no_infinity(heads, scale):
    found = errors(**squared_norms(*heads(n=30, d=16, scale=scale)))
    for name, value in found.items():
        assert value.isfinite().all(), name


def test_errors_are_those_of_their_definitions():
    phi = torch.tensor([0.5, 2.0, 4.0], dtype=torch.float64)
    h = torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64)
    found = errors(phi.log(), h)
    torch.testing.assert_close(found["error"], phi - h)
    torch.testing.assert_close(found["absolute_error"], (phi - h).abs())
    torch.testing.assert_close(found["relative_to_h"], (phi - h).abs() / h)
    torch.testing.assert_close(found["relative_to_phi"], (phi - h).abs() / phi)
    torch.testing.assert_close(found["log10_ratio"], (h / phi).log10())
    assert found["violation"].tolist() == [1, 0, 0]


@given(st.integers(0, 10**6), st.integers(3, 16), st.integers(1, 6), st.sampled_from([0.1, 1.0, 4.0]))
@settings(deadline=None, max_examples=40)
def test_bessel_inequality_holds_for_exact_kernel_pca(seed, n, d, scale):
    generator = torch.Generator().manual_seed(seed)
    q, k = (scale * torch.randn(1, 1, n, d, generator=generator, dtype=torch.float64) for _ in range(2))
    found = squared_norms(q, k, construct(k, min(d, n - 1)))
    assert (found["h"] <= found["log_phi"].exp() * (1 + 1e-9)).all()


def test_values_that_are_not_from_the_theorem_can_break_bessels_inequality(heads):
    assert errors(**squared_norms(*heads()))["violation"].mean() > 0.1
