from __future__ import annotations

import numpy as np
import pytest
import torch

from vitscope.analyses.kpca.eigen import eigenvalues, eigenvectors, fix_signs, numerical_rank
from vitscope.analyses.kpca.gram import centred_gram
from vitscope.errors import NumericalError


def test_eigenvalues_are_those_of_another_solver_largest_first(heads):
    matrix = centred_gram(heads(n=17)[1]).matrix
    expected = np.linalg.svd(matrix.numpy(), compute_uv=False)  # of a positive matrix: its eigenvalues
    np.testing.assert_allclose(eigenvalues(matrix), expected, rtol=1e-9, atol=1e-14)


def test_eigenvectors_solve_their_equation_and_are_orthonormal(heads):
    matrix = centred_gram(heads(n=17)[1]).matrix
    values, vectors = eigenvectors(matrix, 5)
    torch.testing.assert_close(matrix @ vectors, vectors * values[..., None, :5], atol=1e-13, rtol=1e-10)
    eye = torch.eye(5, dtype=torch.float64).expand(2, 3, 5, 5)
    torch.testing.assert_close(vectors.mT @ vectors, eye, atol=1e-12, rtol=0)


def test_signs_do_not_depend_on_the_solver(heads):
    matrix = centred_gram(heads(n=17)[1]).matrix
    _, vectors = eigenvectors(matrix, 5)
    flipped = vectors * torch.tensor([1.0, -1, 1, -1, -1], dtype=torch.float64)
    assert torch.equal(fix_signs(flipped), vectors)


def test_the_published_variant_keeps_the_signs_of_lapack(heads):
    matrix = centred_gram(heads(n=17)[1]).matrix
    raw = torch.linalg.eigh(matrix)[1].flip(-1)[..., :5]
    assert torch.equal(eigenvectors(matrix, 5, "code")[1], raw)


def test_a_matrix_with_a_negative_eigenvalue_is_refused():
    with pytest.raises(NumericalError, match="not positive semi-definite"):
        eigenvalues(torch.diag(torch.tensor([1.0, -0.1])).double())


def test_rounding_below_zero_is_set_to_zero():
    vector = torch.arange(6.0, dtype=torch.float64) - 2.5
    values = eigenvalues(torch.outer(vector, vector))
    assert (values >= 0).all()
    assert int(numerical_rank(values)) == 1
