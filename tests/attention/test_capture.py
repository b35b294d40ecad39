"""Reading and changing points of converted models: several fused calls in one attention, the last makes the output."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from attention_oracles import explicit_softmax
from small_models import FAMILIES, build, images_for

from vitscope.attention import convert
from vitscope.models import open_model

ITERATED = {
    "rpc": {"lambd": 0.3},
    "rpc asymmetric": {"lambd": 0.3, "symmetric": False, "variant": "exact"},
    "scaled": {"alpha": 0.5},
}


def converted(kind, family="plain"):
    module = convert(build(family).double(), kind.split()[0], layers=0, **ITERATED[kind])
    return open_model(module), images_for(module, dtype=torch.float64)


@pytest.mark.parametrize("kind", ITERATED)
@pytest.mark.parametrize("family", ["plain", "eva02", "beit", "relpos"])
@torch.no_grad()
def test_points_are_those_of_the_call_that_makes_the_output(kind, family):
    model, images = converted(kind, family)
    plain = model(images)
    logits, cache = model.run_with_cache(images)
    assert torch.equal(logits, plain)
    q, k, v, z, pattern = (cache[f"blocks.0.attn.hook_{x}"] for x in ("q", "k", "v", "z", "pattern"))
    bias = cache.get("blocks.0.attn.hook_bias", 0.0)
    torch.testing.assert_close(pattern @ v, z)
    torch.testing.assert_close(explicit_softmax(q, k, v, bias), z)
    layer = model.module.blocks[0].attn
    merged = layer.proj(layer.norm(z.transpose(1, 2).flatten(2)))
    torch.testing.assert_close(merged, cache["blocks.0.attn.hook_out"])


@pytest.mark.parametrize("kind", ITERATED)
@torch.no_grad()
def test_an_edit_of_values_changes_what_is_read_and_nothing_before_it(kind):
    """hook_z is edited once: what is read is the edit of what was read before."""
    model, images = converted(kind)
    _, before = model.run_with_cache(images, "blocks.0.attn.*")
    for point in ("hook_k", "hook_v", "hook_z"):
        name = f"blocks.0.attn.{point}"
        with model.edits({name: lambda value, _: 2 * value + 1}):
            _, after = model.run_with_cache(images, name)
        torch.testing.assert_close(after[name], 2 * before[name] + 1)


@pytest.mark.parametrize("kind", ITERATED)
@torch.no_grad()
def test_a_token_that_is_knocked_out_is_seen_in_no_step(kind):
    """Token 3 is hidden from all others in the scores; then its value must not reach any other token."""
    model, images = converted(kind)

    def hide(scores, _):
        scores = scores.clone()
        scores[..., :, 3] = -torch.inf
        scores[..., 3, 3] = 0
        return scores

    def run(shift):
        model.module.blocks[0].attn.k_norm.shift = shift
        with model.edits({"blocks.0.attn.hook_attn_scores": hide}):
            return model.run_with_cache(images, "blocks.0.attn.hook_z")[1]["blocks.0.attn.hook_z"]

    class Shift(torch.nn.Module):
        """Moves token 3's queries and keys, in every step."""

        shift = 0.0

        def forward(self, x):
            moved = x.clone()
            moved[:, :, 3] += self.shift
            return moved

    model.module.blocks[0].attn.k_norm = Shift()
    if kind.startswith("rpc"):  # its threshold is a mean over all keys, and is no matter of who looks at whom
        from dataclasses import replace

        layer = model.module.blocks[0].attn
        layer.options = replace(layer.options, lambd=1e9)
    difference = (run(1.0) - run(0.0)).abs().amax((0, 1, 3))
    others = torch.arange(len(difference)) != 3
    assert difference[others].max() < 1e-12
    assert torch.isfinite(difference).all()


@torch.no_grad()
def test_patterns_are_recomputed_for_the_last_step_only():
    model, images = converted("rpc")
    made = []

    class Count(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is torch.Tensor.softmax:
                made.append(1)
            return func(*args, **(kwargs or {}))

    with Count():
        model.run_with_cache(images, "blocks.0.attn.hook_pattern")
    assert len(made) == 1


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_every_family_can_be_looked_into_after_conversion(family):
    module = convert(build(family), "rpc", layers=0, lambd=0.3)
    model, images = open_model(module), images_for(module)
    logits, cache = model.run_with_cache(images)
    assert torch.equal(logits, module(images))
    layout = model.layout
    assert cache["blocks.0.attn.hook_k"].shape == (2, layout.heads, layout.tokens, layout.head_dim)
    assert layout.head_dim == 16
