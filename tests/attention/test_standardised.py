from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch.autograd import gradcheck

sys.path.insert(0, str(Path(__file__).parent))
from attention_oracles import explicit_softmax, random
from small_models import build, images_for

from vitscope.attention import convert, softmax_attention, standardised_attention
from vitscope.models import open_model

Q, K, V = (3 * random(2, 3, 7, 4, seed=s) + 1 for s in (0, 1, 2))


def by_numpy(x):
    """Token by token, with numpy's own deviation of a sample."""
    rows = [(row - row.mean()) / row.std(ddof=1) for row in x.detach().numpy().reshape(-1, x.shape[-1])]
    return torch.from_numpy(np.stack(rows)).reshape(x.shape)


def test_standardised_attention_is_softmax_attention_of_standardised_queries_and_keys():
    bias = random(1, 3, 7, 7, seed=3)
    expected = explicit_softmax(by_numpy(Q), by_numpy(K), V, bias)
    torch.testing.assert_close(standardised_attention(Q, K, V, bias=bias), expected, rtol=1e-12, atol=1e-12)
    assert gradcheck(standardised_attention, tuple(x[:1].clone().requires_grad_() for x in (Q, K, V)))


def test_scale_and_shift_of_queries_and_keys_do_not_count():
    torch.testing.assert_close(standardised_attention(5 * Q - 2, 0.1 * K + 3, V), standardised_attention(Q, K, V))


def test_a_hidden_key_is_not_seen():
    seen = torch.arange(7) != 3
    without = standardised_attention(Q, K[:, :, seen], V[:, :, seen])
    torch.testing.assert_close(standardised_attention(Q, K, V, mask=seen.expand(7, 7)), without)
    causal = standardised_attention(Q, K, V, is_causal=True)
    torch.testing.assert_close(
        causal[:, :, :3], standardised_attention(Q, K, V, mask=torch.ones(7, 7).bool().tril())[:, :, :3]
    )
    torch.testing.assert_close(causal[:, :, 0], V[:, :, 0])


def test_a_token_without_deviation_attends_to_all_alike_and_its_gradient_is_finite():
    q = torch.full_like(Q, 2.0).requires_grad_()
    out = standardised_attention(q, K, V)
    torch.testing.assert_close(out, V.mean(2, keepdim=True).expand_as(V))
    out.square().sum().backward()
    assert q.grad.isfinite().all()


@torch.no_grad()
def test_a_converted_model_shows_the_standardised_queries_and_keys():
    """Oracle: q and k of the unconverted first block, standardised by numpy."""
    module = build().double()
    images = images_for(module, dtype=torch.float64)
    points = [f"blocks.0.attn.hook_{x}" for x in ("q", "k", "v", "z")]
    _, before = open_model(module).run_with_cache(images, points)
    names = list(module.state_dict())
    convert(module, "standardised")
    assert list(module.state_dict()) == names  # a checkpoint of the one fits the other
    _, after = open_model(module).run_with_cache(images, points)
    q, k, v = by_numpy(before[points[0]]), by_numpy(before[points[1]]), before[points[2]]
    for point, expected in zip(points, (q, k, v, explicit_softmax(q, k, v))):
        torch.testing.assert_close(after[point], expected, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(after[points[3]], softmax_attention(before[points[0]], before[points[1]], v))
