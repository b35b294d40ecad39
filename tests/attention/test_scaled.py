from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

sys.path.insert(0, str(Path(__file__).parent))
from attention_oracles import explicit_softmax, random

from vitscope.attention import create_attention, scaled_attention, softmax_attention
from vitscope.attention.scaled import ScaledOptions
from vitscope.errors import VitscopeError

Q, K, V = (random(2, 3, 7, 4, seed=s) for s in (0, 1, 2))
MATRIX = 0.3 * random(3, 7, 7, seed=3)
ALPHA = torch.tensor([0.4], dtype=torch.float64)


@pytest.mark.parametrize(("case", "options"), [(0, {}), (1, {"form": "matrix", "tokens": 17})])
def test_a_layer_computes_what_the_published_program_computes(shared, case, options):
    with np.load(shared / "golden" / "scaled_attention.npz") as file:
        part = {key.removeprefix(f"{case}_"): torch.from_numpy(file[key]) for key in file if key.startswith(f"{case}_")}
    layer = create_attention("scaled", 48, 3, qkv_bias=True, dtype=torch.float64, **options)
    names = ("qkv.weight", "qkv.bias", "proj.weight", "proj.bias", "s")
    layer.load_state_dict({name: part[name.replace(".", "_")] for name in names})
    assert (layer(part["x"]) - part["y"]).abs().max() < 1e-9


def test_the_matrix_is_taken_off_the_values():
    identity = torch.eye(7, dtype=torch.float64)
    expected = explicit_softmax(Q, K, (identity - MATRIX) @ V)
    torch.testing.assert_close(scaled_attention(Q, K, V, MATRIX), expected, rtol=1e-12, atol=1e-12)


def test_the_scalar_multiplies_the_symmetric_attention_which_is_taken_off_the_values():
    bias = random(1, 3, 7, 7, seed=4)
    expected = explicit_softmax(Q, K, V - 0.4 * explicit_softmax(K, K, V, bias), bias)
    torch.testing.assert_close(scaled_attention(Q, K, V, ALPHA, bias=bias), expected, rtol=1e-12, atol=1e-12)


def test_a_matrix_that_is_the_symmetric_attention_equals_the_scalar_one():
    """S = alpha softmax(k k^T) given as a matrix, for one image, or never formed: the same function."""
    q, k, v = (x[:1] for x in (Q, K, V))
    matrix = 0.4 * explicit_softmax(k, k, torch.eye(7, dtype=torch.float64).expand(1, 3, 7, 7))[0]
    torch.testing.assert_close(scaled_attention(q, k, v, matrix), scaled_attention(q, k, v, ALPHA))


@pytest.mark.parametrize("s", [ALPHA * 0, MATRIX * 0])
def test_zero_leaves_softmax_attention(s):
    assert torch.equal(scaled_attention(Q, K, V, s), softmax_attention(Q, K, V))


@pytest.mark.parametrize("s", [ALPHA, MATRIX], ids=["scalar", "matrix"])
def test_gradients_are_those_of_finite_differences(s):
    inputs = [x[:1].clone().requires_grad_() for x in (Q, K, V)] + [s.clone().requires_grad_()]
    assert gradcheck(scaled_attention, inputs)


@pytest.mark.parametrize("look", ["flag", "boolean"])
@pytest.mark.parametrize("s", [ALPHA, MATRIX], ids=["scalar", "matrix"])
def test_a_later_token_is_not_felt_by_earlier_ones(s, look):
    seen = {"is_causal": True} if look == "flag" else {"mask": torch.ones(7, 7, dtype=torch.bool).tril()}
    before = scaled_attention(Q, K, V, s, **seen)
    q, k, v = Q.clone(), K.clone(), V.clone()
    for x in (q, k, v):
        x[:, :, 4] += 5
    after = scaled_attention(q, k, v, s, **seen)
    assert (after - before)[:, :, :4].abs().max() < 1e-12
    assert (after - before)[:, :, 4:].abs().max() > 1e-3


def test_a_token_count_that_does_not_fit_the_matrix_is_explained():
    with pytest.raises(VitscopeError, match=r"7 tokens, the input has 3 heads and 6 tokens.*form='scalar'"):
        scaled_attention(*(x[:, :, :6] for x in (Q, K, V)), MATRIX)


def test_a_matrix_without_a_number_of_tokens_is_explained():
    with pytest.raises(VitscopeError, match="tokens=197"):
        create_attention("scaled", 16, 2, form="matrix")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "matrx"}, "Did you mean matrix"),
        ({"alpha": float("inf")}, "finite number"),
        ({"tokens": 0}, "at least 1"),
    ],
)
def test_impossible_options_are_refused_by_name(options, message):
    with pytest.raises(VitscopeError, match=message):
        ScaledOptions(**options)


def test_the_scalar_starts_where_it_is_told_and_learns():
    layer = create_attention("scaled", 16, 2, alpha=0.25)
    assert layer.s.item() == 0.25
    layer(torch.randn(1, 5, 16, generator=torch.Generator().manual_seed(0))).sum().backward()
    assert layer.s.grad.abs().item() > 0
