from __future__ import annotations

import pytest
import torch

from vitscope.analyses.kpca.construction import theoretical_values
from vitscope.analyses.kpca.keygram import KeyGram
from vitscope.analyses.kpca.nulls import normal, other_head, with_row_norms
from vitscope.analyses.kpca.values import MEASURES, SIGN_DEPENDENT, Side, measures, theoretical_side

ZERO = ("euclidean", "l1", "relative_frobenius", "cosine_negative", "optimal_cosine_negative")
PERFECT = dict.fromkeys(ZERO, 0)  # all others: 1


def all_measures(k, v, variant="exact"):
    gram = KeyGram(k, vectors=v.shape[-1], variant=variant)
    return measures(Side.of(v), theoretical_side(gram.vectors, gram.log_g), gram.log_g)


def test_measures_are_those_of_the_published_program(golden):
    found = all_measures(golden["k"], golden["v"], variant="code")
    for ours, theirs in (
        ("linear_cka", "value_linear_cka"),
        ("kernel_cka", "value_kernel_cka"),
        ("relative_frobenius", "value_relative_frobenius_difference"),
    ):
        torch.testing.assert_close(found[ours], golden[theirs], rtol=1e-8, atol=0)


def test_values_of_the_theorem_are_recognised_by_every_measure(heads):
    keys = heads(n=30, d=6)[1]
    gram = KeyGram(keys, vectors=6)
    found = all_measures(keys, theoretical_values(gram.vectors, gram.log_g))
    assert found.keys() == MEASURES.keys()
    for name, value in found.items():
        if not name.startswith(("cosine_m", "optimal_cosine_m")):
            expected = torch.full_like(value, PERFECT.get(name, 1))
            torch.testing.assert_close(value, expected, atol=1e-7, rtol=0, msg=name)


def test_only_sign_dependent_measures_change_with_the_signs_of_the_theoretical_axes(heads):
    _, k, v = heads(n=30, d=6)
    gram = KeyGram(k, vectors=6)
    flip = torch.tensor([1.0, -1, -1, 1, -1, 1], dtype=torch.float64)
    a, b = (
        measures(Side.of(v), theoretical_side(x, gram.log_g), gram.log_g) for x in (gram.vectors, gram.vectors * flip)
    )
    for name in MEASURES:
        same = torch.allclose(a[name], b[name], rtol=1e-9, atol=1e-9)
        assert same == (name not in SIGN_DEPENDENT) or name in ("allclose", "optimal_cosine_negative"), name


def test_the_optimal_matching_is_at_least_as_good_as_token_by_token(heads):
    found = all_measures(*heads(n=30, d=6)[1:])
    assert (found["optimal_cosine"] >= found["cosine"]).all()


@pytest.mark.parametrize("scale", [1, 10, 100])
def test_keys_of_any_length_give_no_nan(heads, scale):
    _, k, v = heads(n=40, d=8, scale=scale)
    for name, value in all_measures(k, v).items():
        assert value.isfinite().all(), name


def test_random_values_of_the_same_norm_have_the_norm_of_every_token(heads):
    v = heads()[2]
    null = with_row_norms(normal((3, 12, 4), 0, 0, 0, torch.arange(2)), v)
    torch.testing.assert_close(null.norm(dim=-1), v.norm(dim=-1))
    assert not torch.equal(null, v)


def test_random_numbers_belong_to_the_image_whatever_the_batch():
    whole = normal((3,), 1, 2, 3, torch.arange(6))
    assert torch.equal(whole[4:], normal((3,), 1, 2, 3, torch.tensor([4, 5])))
    for other in ((0, 2, 3), (1, 0, 3), (1, 2, 4)):
        assert not torch.equal(whole, normal((3,), *other, torch.arange(6)))


def test_the_other_head_is_another_head_of_the_same_image(heads):
    v = heads()[2]
    moved = other_head(v)
    assert torch.equal(moved[:, 0], v[:, 1])
    assert torch.equal(moved[:, 2], v[:, 0])
    side = Side.of(v).roll()
    assert torch.equal(side.values, moved)
    torch.testing.assert_close(side.rbf, Side.of(moved).rbf)
