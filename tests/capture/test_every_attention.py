"""Facts that hold for every registered attention and for one of the user's own that shows itself; and what happens to
one that does not."""

from __future__ import annotations

import sys
import types
import warnings
from pathlib import Path

import pytest
import timm
import torch
import torch.nn.functional as F

from vitscope.attention import convert, explicit_attention, list_attentions, softmax_attention
from vitscope.capture.points import ATTENTION_POINTS
from vitscope.errors import UnsupportedModelError
from vitscope.models import open_model

sys.path.insert(0, str(Path(__file__).parents[1]))
from own_attentions import HIDDEN, SHOWN, give_attention, sigmoid_weights

OPTIONS = {"img_size": 28, "patch_size": 7, "in_chans": 1, "embed_dim": 32, "num_heads": 2, "num_classes": 5}
EVERY = (*list_attentions(), *SHOWN)
EDITED = 1  # of three blocks


def build(kind: str | None = None, layers=(EDITED,)):
    """Three blocks, of which `layers` have the attention; heads sharpened, because random ones hardly choose."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = timm.create_model("vit_tiny_patch16_224", depth=3, **OPTIONS).eval()
    with torch.no_grad():
        for block in module.blocks:
            block.attn.qkv.weight.mul_(8)
    if kind in list_attentions():
        convert(module, kind, list(layers), **({"lambd": 0.3} if kind == "rpc" else {}))
    elif kind is not None:
        give_attention(module, kind, list(layers))
    return open_model(module)


@pytest.fixture
def images():
    return torch.randn(2, 1, 28, 28, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", EVERY)
@torch.no_grad()
def test_all_points_are_there_and_the_logits_are_bit_identical(kind, images):
    model = build(kind)
    plain = model(images)
    logits, cache = model.run_with_cache(images)
    assert torch.equal(logits, plain)
    for i in range(3):
        found = {name.removeprefix(f"blocks.{i}.") for name in cache if name.startswith(f"blocks.{i}.attn.")}
        assert found == {*ATTENTION_POINTS, "attn.hook_out"} - {"attn.hook_bias"}
    v, pattern, z = (cache[f"blocks.{EDITED}.attn.hook_{x}"] for x in ("v", "pattern", "z"))
    torch.testing.assert_close(pattern @ v, z)
    layer = model.module.blocks[EDITED].attn
    torch.testing.assert_close(layer.proj(z.transpose(1, 2).flatten(2)), cache[f"blocks.{EDITED}.attn.hook_out"])


@pytest.mark.parametrize("kind", EVERY)
@torch.no_grad()
def test_an_edit_of_every_attention_point_acts_and_an_identity_changes_nothing(kind, images):
    model = build(kind)
    plain = model(images)
    for point in (f"blocks.{EDITED}.{name}" for name in ATTENTION_POINTS):
        same = model.run_with_hooks(images, [(point, lambda value, _: value.clone())])
        torch.testing.assert_close(same, plain, rtol=1e-5, atol=1e-6)
        other = model.run_with_hooks(images, [(point, lambda v, _: torch.linspace(0, 1, v.numel()).view(v.shape))])
        assert not torch.allclose(other, plain, atol=1e-5), point
        with model.edits({point: lambda value, _: value * 0.5 + 0.1}):
            _, cache = model.run_with_cache(images, f"blocks.{EDITED}.attn.*")
            assert point in cache


@pytest.mark.parametrize("kind", EVERY)
@torch.no_grad()
def test_an_edited_pattern_weighs_the_values(kind, images):
    model = build(kind)
    with model.edits({f"blocks.{EDITED}.attn.hook_pattern": lambda a, _: torch.eye(a.shape[-1]).expand_as(a)}):
        _, cache = model.run_with_cache(images, f"blocks.{EDITED}.attn.hook_[vz]")
    assert torch.equal(cache[f"blocks.{EDITED}.attn.hook_z"], cache[f"blocks.{EDITED}.attn.hook_v"])


@pytest.mark.parametrize("kind", EVERY)
def test_gradients_under_capture_are_those_of_the_model(kind, images):
    model = build(kind)
    pixels = images.clone().requires_grad_()
    (expected,) = torch.autograd.grad(model(pixels)[:, 0].sum(), pixels)
    logits, cache = model.run_with_cache(pixels)
    z = cache[f"blocks.{EDITED}.attn.hook_z"]
    found, at_z = torch.autograd.grad(logits[:, 0].sum(), [pixels, z])
    torch.testing.assert_close(found, expected)
    assert at_z.abs().sum() > 0


@pytest.mark.parametrize("kind", SHOWN)
@torch.no_grad()
def test_a_sigmoid_attention_shows_its_own_scores_and_pattern(kind, images):
    """Rebuilt from the block's input by its weights alone."""
    model = build(kind)
    _, cache = model.run_with_cache(images)
    block = model.module.blocks[EDITED]
    x = block.norm1(cache[f"blocks.{EDITED}.hook_resid_pre"])
    q, k, v = (part.unflatten(-1, (2, 16)).transpose(1, 2) for part in block.attn.qkv(x).chunk(3, -1))
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / 4
    pattern = 1 / (1 + 17 * (-scores).exp())
    for name, expected in {"q": q, "k": k, "v": v, "attn_scores": scores, "pattern": pattern}.items():
        torch.testing.assert_close(cache[f"blocks.{EDITED}.attn.hook_{name}"], expected)
    assert (cache[f"blocks.{EDITED}.attn.hook_pattern"].sum(-1) - 1).abs().max() > 0.1
    assert torch.equal(cache[f"blocks.{EDITED}.attn.hook_z"], cache[f"blocks.{EDITED}.attn.hook_pattern"] @ v)


@torch.no_grad()
def test_both_ways_to_write_an_attention_give_the_same_points(images):
    ours, plain = (build(kind).run_with_cache(images)[1] for kind in SHOWN)
    assert ours.keys() == plain.keys()
    assert all(torch.equal(ours[name], plain[name]) for name in ours)


@torch.no_grad()
def test_explicit_attention_with_softmax_is_the_fused_one_with_masks_bias_and_causality():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 6, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    bias = torch.randn(1, 3, 6, 6, generator=generator, dtype=torch.float64)
    mask = torch.rand(6, 6, generator=generator) < 0.7
    mask.fill_diagonal_(True)
    for look in ({}, {"mask": mask}, {"bias": bias}, {"mask": mask, "bias": bias}, {"is_causal": True}):
        written_out = explicit_attention(q, k, v, lambda s: s.softmax(-1), **look)
        torch.testing.assert_close(written_out, softmax_attention(q, k, v, **look))
    hidden = explicit_attention(q, k, v, sigmoid_weights, mask=mask)
    torch.testing.assert_close(hidden, (sigmoid_weights(q @ k.mT / 2) * mask) @ v)


@torch.no_grad()
def test_scores_may_be_any_function_of_q_and_k():
    q, k, v = torch.randn(3, 1, 2, 5, 4, generator=torch.Generator().manual_seed(0))
    found = explicit_attention(q, k, v, torch.relu, scores=lambda q, k: 1 - torch.cdist(q, k))
    torch.testing.assert_close(found, (1 - torch.cdist(q, k)).clamp(min=0) @ v)


def test_an_attention_of_ones_own_compiles_without_a_graph_break(images):
    module = build("shown sigmoid").module
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(images), module(images))


# --- an attention that shows nothing ------------------------------------------------------------------------------


def unfused(self, x, attn_mask=None, is_causal=False):
    """What a patch for another kernel looks like: timm's attention without the fused call."""
    q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
    z = (q @ k.mT * self.scale).softmax(-1) @ v
    return self.proj(z.transpose(1, 2).flatten(2))


def patched_object(images):
    model = build()
    attention = model.module.blocks[EDITED].attn
    attention.forward = types.MethodType(unfused, attention)
    return model


def patched_block(images):
    """The block takes what it needs from its attention and never calls it."""
    model = build()
    block = model.module.blocks[EDITED]

    def forward(self, x, **_):
        x = x + self.drop_path1(self.ls1(unfused(self.attn, self.norm1(x))))
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))

    block.forward = types.MethodType(forward, block)
    return model


def fused_off(images):
    model = build()
    model.module.blocks[EDITED].attn.fused_attn = False
    return model


SILENT = {kind: lambda _, kind=kind: build(kind) for kind in HIDDEN} | {
    "patched object": patched_object,
    "patched block": patched_block,
    "fused off": fused_off,
}


@pytest.mark.parametrize("kind", SILENT)
@torch.no_grad()
def test_an_attention_that_makes_no_call_is_refused_and_never_silently_empty(kind, images):
    model = SILENT[kind](images)
    plain = model(images)
    for point in ATTENTION_POINTS:
        for names in (f"blocks.{EDITED}.{point}", f"blocks.*.{point}"):
            if point != "attn.hook_bias":
                with pytest.raises(UnsupportedModelError, match=rf"attention of block {EDITED} .*(no call|unfused)"):
                    model.run_with_cache(images, names)
                with pytest.raises(UnsupportedModelError, match=f"block {EDITED} "):
                    model.stream(images, names, lambda *_: None)
            with pytest.raises(UnsupportedModelError, match=f"block {EDITED} "):
                model.run_with_hooks(images, [(names, lambda value, _: value)])
            with pytest.raises(UnsupportedModelError, match=f"block {EDITED} "), model.edits({names: lambda v, _: v}):
                model(images)
    assert torch.equal(model(images), plain)
    assert not torch.overrides._get_current_function_mode_stack()


@pytest.mark.parametrize("kind", SILENT)
@torch.no_grad()
def test_what_lies_outside_of_it_can_be_read_all_the_same(kind, images):
    model = SILENT[kind](images)
    _, cache = model.run_with_cache(
        images, ["blocks.*.hook_resid_*", "blocks.*.mlp.*", "blocks.0.attn.*", "blocks.2.attn.*"]
    )
    assert {f"blocks.{i}.hook_resid_post" for i in range(3)} | {"blocks.2.attn.hook_pattern"} <= cache.keys()


@torch.no_grad()
def test_a_forward_that_is_patched_for_the_whole_class_is_noticed(images, monkeypatch):
    model = build()
    monkeypatch.setattr(timm.layers.Attention, "forward", unfused)
    with pytest.raises(UnsupportedModelError, match="no call"):
        model.run_with_cache(images, "blocks.*.attn.hook_q")


@torch.no_grad()
def test_a_patched_forward_with_the_fused_call_is_seen(images):
    model = build()
    attention = model.module.blocks[EDITED].attn
    _, expected = model.run_with_cache(images)

    def forward(self, x, **_):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    attention.forward = types.MethodType(forward, attention)
    _, cache = model.run_with_cache(images)
    assert cache.keys() == expected.keys()
    assert all(torch.equal(cache[name], expected[name]) for name in cache)


@torch.no_grad()
def test_calls_that_were_not_announced_are_refused_and_announced_ones_show_the_last(images):
    model = build()
    attention = model.module.blocks[EDITED].attn

    def difference(self, x, **_):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        first = F.scaled_dot_product_attention(k, q, v)
        z = F.scaled_dot_product_attention(q, k, v - first)
        return self.proj(z.transpose(1, 2).flatten(2))

    attention.forward = types.MethodType(difference, attention)
    name = f"blocks.{EDITED}.attn.hook_z"
    with pytest.raises(UnsupportedModelError, match="attention_calls = 2"):
        model.run_with_cache(images, name)
    attention.attention_calls = 3
    with pytest.raises(UnsupportedModelError, match=r"2 call\(s\) of attention and announces 3"):
        model.run_with_cache(images, name)
    attention.attention_calls = 2
    _, cache = model.run_with_cache(images, f"blocks.{EDITED}.attn.*")
    z = cache[name]
    torch.testing.assert_close(attention.proj(z.transpose(1, 2).flatten(2)), cache[f"blocks.{EDITED}.attn.hook_out"])


@torch.no_grad()
def test_an_error_inside_such_an_attention_is_the_one_that_is_seen(images):
    model = build("hidden sigmoid")
    model.module.blocks[EDITED].attn.attend = lambda *_, **__: (_ for _ in ()).throw(ValueError("of my own"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="of my own"):
            model.run_with_cache(images, "blocks.*.attn.hook_q")


@torch.no_grad()
def test_reading_inside_edits_that_run_the_model_themselves(images):
    """An edit may look into the same model: the pass that it interrupts goes on as if nothing had been."""
    model = build("rpc")  # several calls: the interrupted attention has some to make
    name, inside = f"blocks.{EDITED}.attn.hook_attn_scores", []

    def look(scores, point):
        _, cache = model.run_with_cache(images.flip(0), "blocks.2.attn.hook_z")
        inside.append(cache["blocks.2.attn.hook_z"])

    _, expected = model.run_with_cache(images)
    calls = []

    def edit(value, point):
        if not calls:  # the inner pass has this edit, too
            calls.append(1)
            look(value, point)

    with model.edits({name: edit}):
        _, cache = model.run_with_cache(images)
    assert len(inside) == 1
    for point in (name, f"blocks.{EDITED}.attn.hook_z", "blocks.2.hook_resid_post"):
        torch.testing.assert_close(cache[point], expected[point])


@pytest.mark.parametrize("kind", ["softmax", "shown sigmoid"])
def test_gradients_through_edits_are_the_same_with_activation_checkpointing(kind, images):
    """The recomputed pass is edited as well."""
    model = build(kind, layers=(0, 1, 2))
    weight = model.module.patch_embed.proj.weight
    found = []
    for checkpointing in (False, True):
        model.module.set_grad_checkpointing(checkpointing)
        with model.edits(
            {"blocks.*.attn.hook_pattern": lambda a, _: a.flip(-1), "blocks.1.attn.hook_q": lambda q, _: -q}
        ):
            logits, cache = model.run_with_cache(images, "blocks.*.attn.hook_z")
            assert len(cache) == 3
            found.append(torch.autograd.grad(logits.square().sum(), weight)[0])
    torch.testing.assert_close(*found)
    plain = torch.autograd.grad(model(images).square().sum(), weight)[0]
    assert not torch.allclose(plain, found[0])


@torch.no_grad()
def test_a_block_that_leaves_out_one_of_its_parts_is_refused_for_that_point_alone(images):
    model = build()
    block = model.module.blocks[EDITED]

    def forward(self, x, **_):
        x = x + self.attn(self.norm1(x))  # drop_path1, whose output is hook_attn_out, is gone
        return x + self.drop_path2(self.mlp(self.norm2(x)))

    block.forward = types.MethodType(forward, block)
    with pytest.raises(UnsupportedModelError, match=rf"blocks\.{EDITED}\.hook_attn_out was not met"):
        model.run_with_cache(images, "blocks.*.hook_attn_out")
    with pytest.raises(UnsupportedModelError, match="neither read nor changed"):
        model.run_with_hooks(images, [(f"blocks.{EDITED}.hook_attn_out", lambda v, _: v * 0)])
    model.run_with_cache(images, ["blocks.*.hook_resid_*", "blocks.*.attn.*"])
