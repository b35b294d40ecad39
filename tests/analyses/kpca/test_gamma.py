from __future__ import annotations

import pytest
import torch

from vitscope.analyses.kpca.construction import construct, theoretical_values
from vitscope.analyses.kpca.gamma import gamma, gamma_statistics, perturbed_vectors, recovered_vectors
from vitscope.analyses.kpca.gram import centred_gram
from vitscope.analyses.kpca.keygram import KeyGram
from vitscope.analyses.kpca.reconstruction import squared_norms


@pytest.fixture
def gram_and_vectors(heads):
    keys = heads(n=40, d=8)[1]
    return centred_gram(keys), KeyGram(keys, vectors=8)


def test_gamma_of_an_eigenvector_is_its_eigenvalue_divided_by_n(gram_and_vectors):
    gram, decomposed = gram_and_vectors
    found, residual = gamma(gram.matrix, decomposed.vectors)
    expected = (decomposed.eigenvalues[..., :8, None] / 40).expand_as(found)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=0)
    assert residual.max() < 1e-12


def test_statistics_are_those_of_a_loop_over_pairs(gram_and_vectors, heads):
    gram, _ = gram_and_vectors
    vectors = heads(seed=3, n=40, d=2)[2]
    found = gamma_statistics(gram.matrix, vectors, gram.log_scale)
    matrix = gram.matrix[1, 2] * gram.log_scale[1, 2].exp()
    a = vectors[1, 2, :, 1]
    g = [float((matrix[i] @ a) / (40 * a[i])) for i in range(40)]
    absolute = [abs(x - y) for i, x in enumerate(g) for y in g[:i]]
    relative = [abs(x - y) / max(abs(x), abs(y)) for i, x in enumerate(g) for y in g[:i]]
    where = (1, 2, 1)
    assert float(found["absolute"][where]) == pytest.approx(sum(absolute) / len(absolute))
    assert float(found["relative"][where]) == pytest.approx(sum(relative) / len(relative))
    assert float(found["size"][where]) == pytest.approx(sum(map(abs, g)) / 40)
    image = matrix @ a
    rho = (a @ image) / (a @ a)
    assert float(found["residual"][where]) == pytest.approx(float((image - rho * a).norm() / image.norm()))


def test_the_absolute_difference_of_random_vectors_is_as_tiny_as_gamma_itself_and_the_residual_tells(heads):
    """Why the published evidence proves nothing."""
    keys = heads(b=1, n=197, d=64)[1]
    gram, decomposed = centred_gram(keys), KeyGram(keys, vectors=64)
    random = heads(seed=9, b=1, n=197, d=64)[2]
    chance = gamma_statistics(gram.matrix, random, gram.log_scale)
    truth = gamma_statistics(gram.matrix, decomposed.vectors, gram.log_scale)
    assert chance["absolute"].median() < 1e-4
    assert truth["absolute"].max() < 1e-12
    assert chance["residual"].min() > 0.5
    assert truth["residual"].max() < 1e-6
    assert chance["relative"].min() > 0.3


def test_coefficients_of_theoretical_values_are_recovered_up_to_a_factor(gram_and_vectors):
    gram, decomposed = gram_and_vectors
    values = theoretical_values(decomposed.vectors, decomposed.log_g)
    found, off_centre = recovered_vectors(values, decomposed.log_g)
    cosine = torch.nn.functional.cosine_similarity(found, decomposed.vectors, dim=-2)
    torch.testing.assert_close(cosine, torch.ones_like(cosine))
    assert off_centre.max() < 1e-12  # 1^T G^-1 V = 0
    assert gamma(gram.matrix, found)[1].max() < 1e-10


def test_the_pseudo_inverse_of_the_centring_projector_is_itself(heads):
    _, k, v = heads(n=7)
    log_g = KeyGram(k).log_g
    inverse = torch.linalg.pinv(torch.eye(7, dtype=torch.float64) - 1 / 7)
    expected = inverse @ (log_g.exp()[..., None] * v)
    found = recovered_vectors(v, log_g)[0] * log_g.amax(-1)[..., None, None].exp()
    torch.testing.assert_close(found, expected)


def test_off_centre_is_one_where_g_times_v_is_constant():
    log_g = torch.tensor([[0.0, 1.0, 2.0]], dtype=torch.float64)
    v = (-log_g).exp()[..., None]
    assert float(recovered_vectors(v, log_g)[1]) == pytest.approx(1)


def test_perturbed_vectors_are_orthonormal_and_near_the_eigenvectors(gram_and_vectors, heads):
    _, decomposed = gram_and_vectors
    found = perturbed_vectors(decomposed.vectors, heads(seed=5, n=40, d=8)[2])
    eye = torch.eye(8, dtype=torch.float64).expand(2, 3, 8, 8)
    torch.testing.assert_close(found.mT @ found, eye, atol=1e-12, rtol=0)
    first = (found[..., 0] * decomposed.vectors[..., 0]).sum(-1).abs()
    assert ((first > 0.6) & (first < 0.999)).all()


@pytest.mark.parametrize("scale", [1, 10, 100])
def test_keys_of_any_length_give_no_nan(heads, scale):
    _, k, v = heads(n=40, d=8, scale=scale)
    gram, decomposed = centred_gram(k), KeyGram(k, vectors=8)
    for vectors in (decomposed.vectors, recovered_vectors(v, decomposed.log_g)[0], v):
        for name, value in gamma_statistics(gram.matrix, vectors, gram.log_scale).items():
            assert value.isfinite().all(), name
    assert squared_norms(k, k, construct(k))["h"].isfinite().all()
