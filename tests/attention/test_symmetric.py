from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch.autograd import gradcheck

sys.path.insert(0, str(Path(__file__).parent))
from attention_oracles import explicit_softmax, heads_of, random

from vitscope.attention import create_attention, softmax_attention, symmetric_attention

Q, K, V = (random(2, 3, 7, 4, seed=s) for s in (0, 1, 2))


def test_softmax_attention_is_the_formula():
    bias = random(1, 3, 7, 7, seed=3)
    torch.testing.assert_close(softmax_attention(Q, K, V, bias=bias), explicit_softmax(Q, K, V, bias))


def test_symmetric_attention_takes_keys_for_queries():
    torch.testing.assert_close(symmetric_attention(K, V), explicit_softmax(K, K, V))
    assert gradcheck(symmetric_attention, (K[:1].clone().requires_grad_(), V[:1].clone().requires_grad_()))


def test_a_symmetric_layer_has_no_query_projection():
    """Keys first, then values, in a projection of twice the width."""
    layer = create_attention("symmetric", 12, 3, qkv_bias=True, dtype=torch.float64)
    assert layer.qkv.weight.shape == (24, 12)
    x = random(2, 7, 12, seed=5)
    keys, values = (x @ layer.qkv.weight.T + layer.qkv.bias).split(12, dim=-1)
    z = explicit_softmax(heads_of(keys, 3), heads_of(keys, 3), heads_of(values, 3))
    expected = z.transpose(1, 2).flatten(2) @ layer.proj.weight.T + layer.proj.bias
    torch.testing.assert_close(layer(x), expected)
