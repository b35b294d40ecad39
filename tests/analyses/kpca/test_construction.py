from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitscope.analyses.kpca.construction import construct
from vitscope.analyses.kpca.gram import centred_gram, log_k_phi, scores
from vitscope.errors import VitscopeError


def attention(q, k, v):
    return scores(q, k).softmax(-1) @ v


def query_kernel(q, k):
    """k_phi(q_i, k_j) = exp(q_i.k_j / sqrt D) / (g(q_i) g(k_j)), formed directly."""
    return scores(q, k).softmax(-1) / log_k_phi(k)[1].exp()[..., None, :]


def test_attention_with_constructed_values_is_the_kernel_pca_of_scikit_learn(heads):
    """scikit-learn centres the query too; the theorem does not. The difference is one vector, the same for all."""
    from sklearn.decomposition import KernelPCA

    q, k, _ = (x[0, 0] for x in heads(n=25, d=6))
    gram = log_k_phi(k)[0].exp().numpy()
    oracle = KernelPCA(6, kernel="precomputed", eigen_solver="dense").fit(gram)
    kernel = query_kernel(q, k).numpy()
    centred = oracle.transform(kernel)  # (N, 6) = (phi(q_i) - mean).u_d
    axes = oracle.eigenvectors_ / np.sqrt(oracle.eigenvalues_)  # coefficients of unit axes
    mean = (gram.mean(0) - gram.mean()) @ axes  # mean.u_d
    found = attention(q, k, construct(k)).numpy()
    signs = np.sign((found * (centred + mean)).sum(0))
    np.testing.assert_allclose(found * signs, centred + mean, rtol=1e-8, atol=1e-12)


@given(st.integers(0, 10**6), st.integers(3, 16), st.integers(1, 6), st.sampled_from([0.1, 1.0, 3.0]))
@settings(deadline=None, max_examples=40)
def test_attention_equals_the_explicit_projection_on_unit_axes(seed, n, d, scale):
    generator = torch.Generator().manual_seed(seed)
    q, k = (scale * torch.randn(n, d, generator=generator, dtype=torch.float64) for _ in range(2))
    count = min(d, n - 1)
    values = construct(k, count)
    gram = centred_gram(k)
    eigenvalues, vectors = torch.linalg.eigh(gram.matrix)
    real = eigenvalues.flip(0)[:count] > 1e-10 * eigenvalues[-1]  # rounding has no axis
    a = vectors.flip(-1)[:, :count] / (eigenvalues.flip(0)[:count].clamp_min(1e-300) * gram.log_scale.exp()).sqrt()
    kernel = query_kernel(q, k)
    explicit = (kernel - kernel.mean(-1, keepdim=True)) @ a  # sum_j a_dj phi(q_i).phi~(k_j)
    found = attention(q, k, values)[:, real]
    explicit = explicit[:, real]
    signs = torch.where((found * explicit).sum(0) < 0, -1.0, 1.0)
    torch.testing.assert_close(found * signs, explicit, rtol=1e-5, atol=1e-7 * float(explicit.abs().max() + 1e-300))


def test_constructed_values_are_centred_by_g(heads):
    """sum_j g(k_j) v_dj = 0."""
    k = heads(n=25, d=6)[1]
    log_g = log_k_phi(k)[1]
    values = construct(k)
    total = (log_g.exp()[..., None] * values).sum(-2)
    assert (total.abs() < 1e-10 * (log_g.exp()[..., None] * values).norm(dim=-2)).all()


def test_axes_beyond_the_rank_of_the_keys_are_zero():
    k = torch.tensor([[1.0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 1, 0]], dtype=torch.float64)  # two different keys
    values = construct(k, 3)
    assert values[:, 0].abs().max() > 0
    assert torch.equal(values[:, 1:], torch.zeros(4, 2, dtype=torch.float64))


def test_more_axes_than_tokens_are_refused(heads):
    with pytest.raises(VitscopeError, match="at most 3 axes, but 8 were asked for"):
        construct(heads(n=4, d=8)[1])


@pytest.mark.parametrize("scale", [10, 100])
def test_long_keys_give_finite_values(heads, scale):
    assert construct(heads(n=30, d=8, scale=scale)[1]).isfinite().all()
