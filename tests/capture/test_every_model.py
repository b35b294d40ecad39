"""Facts that hold for every supported name. Models are cut to two blocks; weights are random but nowhere zero."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from vitscope.architectures.families import block_row
from vitscope.models import Model, open_model
from vitscope.models.creation import create

sys.path.insert(0, str(Path(__file__).parents[1]))
from model_names import SMALLER, SUPPORTED


def build(name: str) -> Model:
    """Two blocks, and a jitter on all weights: biases, gammas and position tables that start at 0 would hide errors."""
    generator = torch.Generator().manual_seed(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = create(name, depth=2, **SMALLER.get(name, {}))
    with torch.no_grad():
        for parameter in module.parameters():
            size = 0.05 if parameter.ndim < 2 else min(0.05, 0.5 * parameter.shape[-1] ** -0.5)
            parameter += size * torch.randn(parameter.shape, generator=generator)
    return open_model(module)


@pytest.fixture(scope="module", params=SUPPORTED)
def case(request):
    model = build(request.param)
    generator = torch.Generator().manual_seed(2)
    images = torch.randn(1, *model.preprocess.input_size, generator=generator)
    with torch.no_grad():
        plain = model.module(images)
        logits, cache = model.run_with_cache(images)
    return model, images, plain, logits, cache


@torch.no_grad()
def test_logits_under_capture_are_bit_identical(case):
    _, _, plain, logits, _ = case
    assert torch.equal(plain, logits)


@torch.no_grad()
def test_layout_matches_what_flows_through_the_blocks(case):
    model, _, _, _, cache = case
    layout = model.layout
    for i in range(2):
        assert cache[f"blocks.{i}.hook_resid_post"].shape == (1, layout.tokens, layout.width)
        assert cache[f"blocks.{i}.attn.hook_q"].shape == (1, layout.heads, layout.tokens, layout.head_dim)
        assert cache[f"blocks.{i}.attn.hook_pattern"].shape == (1, layout.heads, layout.tokens, layout.tokens)
    assert cache["hook_embed"].shape == (1, layout.image_tokens, layout.width)


@torch.no_grad()
def test_q_k_v_and_bias_rebuild_the_attention_output(case):
    model, _, _, _, cache = case
    for i, block in enumerate(model.module.blocks):
        q, k, v = (cache[f"blocks.{i}.attn.hook_{x}"] for x in "qkv")
        z = F.scaled_dot_product_attention(q, k, v, attn_mask=cache.get(f"blocks.{i}.attn.hook_bias"))
        assert torch.allclose(z, cache[f"blocks.{i}.attn.hook_z"], atol=1e-5)
        pattern = cache[f"blocks.{i}.attn.hook_pattern"]
        assert torch.allclose(pattern @ v, z, atol=1e-5)
        rebuilt = z.transpose(1, 2).flatten(2)
        attn = block.attn
        rebuilt = getattr(attn, "norm", torch.nn.Identity())(rebuilt) if getattr(attn, "norm", None) else rebuilt
        if getattr(attn, "gate", None) is None:
            assert torch.allclose(attn.proj(rebuilt), cache[f"blocks.{i}.attn.hook_out"], atol=1e-5)


@torch.no_grad()
def test_patterns_equal_those_of_unfused_attention(case):
    model, images, _, _, cache = case
    for i, block in enumerate(model.module.blocks):
        seen: list[torch.Tensor] = []
        # the unfused path of every timm attention passes its softmax through the module `attn_drop`
        handle = block.attn.attn_drop.register_forward_hook(lambda m, args, out, seen=seen: seen.append(args[0]))
        block.attn.fused_attn = False
        try:
            model.module(images)
        finally:
            handle.remove()
            block.attn.fused_attn = True
        assert torch.allclose(cache[f"blocks.{i}.attn.hook_pattern"], seen[0], atol=1e-6)


@torch.no_grad()
def test_the_residual_stream_adds_up(case):
    model, _, _, _, cache = case
    for i in range(model.layout.blocks):
        pre, mid, post, attn, mlp = (
            cache[f"blocks.{i}.hook_{x}"] for x in ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")
        )
        block = model.module.blocks[i]
        norms = (block.norm1, block.norm2) if block_row(block).summed else (torch.nn.Identity(), torch.nn.Identity())
        assert torch.allclose(norms[0](pre + attn), mid, atol=1e-6)
        assert torch.allclose(norms[1](mid + mlp), post, atol=1e-6)


@torch.no_grad()
def test_zeroing_resid_mid_leaves_exactly_the_mlp_branch_at_zero(case):
    model, images, plain, _, _ = case
    block = model.module.blocks[1]
    zero = torch.zeros(1, model.layout.tokens, model.layout.width)
    with model.edits({"blocks.1.hook_resid_mid": lambda value, point: torch.zeros_like(value)}):
        _, cache = model.run_with_cache(images, ["blocks.1.hook_resid_mid", "blocks.1.hook_resid_post"])
    post_norm = type(block).__name__ in ("ResPostBlock", "ResPostRelPosBlock", "EvaBlockPostNorm")
    scale = block.ls2 if hasattr(block, "ls2") else (lambda x: x)
    gamma = getattr(block, "gamma_2", getattr(block, "gamma2", None))
    if gamma is not None:
        scale = lambda x: gamma * x  # noqa: E731
    post_norm |= bool(block_row(block).summed)  # norm2(0 + mlp(0))
    branch = block.norm2(block.mlp(zero)) if post_norm else scale(block.mlp(block.norm2(zero)))
    assert torch.equal(cache["blocks.1.hook_resid_mid"], zero)
    assert torch.equal(cache["blocks.1.hook_resid_post"], branch)
    assert torch.equal(model.module(images), plain), "the edit must be gone after the with block"
