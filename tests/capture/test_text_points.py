"""Facts that hold for every family of text models. Models have two blocks and random weights."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from vitscope.architectures.families import block_row
from vitscope.architectures.layout import Layout
from vitscope.capture.points import BLOCK_POINTS
from vitscope.errors import VitscopeError
from vitscope.models import open_model

sys.path.insert(0, str(Path(__file__).parents[1]))
from text_models import FAMILIES, build, texts

ALONE, PADDED = (9,), (9, 5)
# the norm behind the second sum, of blocks that normalise sums
LAST_NORMS = {"BertLayer": "output.LayerNorm", "RobertaLayer": "output.LayerNorm", "ElectraLayer": "output.LayerNorm",
              "XLMRobertaLayer": "output.LayerNorm", "CamembertLayer": "output.LayerNorm",
              "TransformerBlock": "output_layer_norm", "OPTDecoderLayer": "final_layer_norm"}  # fmt: skip


@pytest.fixture(scope="module", params=FAMILIES)
def model(request):
    return open_model(build(request.param))


@pytest.fixture(scope="module", params=[ALONE, PADDED, (1,)], ids=["alone", "padded", "one token"])
def case(request, model):
    inputs = texts(request.param)
    with torch.no_grad():
        plain = model.row.answer(model.module(**inputs, use_cache=False))
        logits, cache = model.run_with_cache(inputs)
    return model, inputs, plain, logits, cache


class Calls(torch.overrides.TorchFunctionMode):
    """The calls of fused attention that are really made: shapes of q, k, v, and what else is said."""

    def __init__(self):
        self.made = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            call = dict(zip(("query", "key", "value"), args), **kwargs)
            shapes = [tuple(call.pop(name).shape) for name in ("query", "key", "value")]
            mask = call.pop("attn_mask")
            self.made.append((shapes, {**call, "mask": None if mask is None else mask.dtype}))
        return func(*args, **kwargs)


def valid(x, inputs):
    """The rows of real tokens: (B, ..., N, D) with tokens last but one -> (rows, ...)."""
    return x.movedim(-2, 1)[inputs["attention_mask"].bool()]


def test_logits_under_capture_are_bit_identical(case):
    _, _, plain, logits, _ = case
    assert torch.equal(plain, logits)


@torch.no_grad()
def test_capture_makes_the_same_fused_calls_as_the_model(case):
    """Grouped keys stay grouped, a causal call stays causal, a mask stays the model's own."""
    model, inputs, *_ = case
    with Calls() as own:
        model.module(**inputs, use_cache=False)
    with Calls() as captured:
        model.run_with_cache(inputs)
    assert len(own.made) == 2
    assert captured.made == own.made


def test_all_points_are_there_in_their_shapes(case):
    model, inputs, _, _, cache = case
    layout, (batch, n) = model.layout, inputs["input_ids"].shape
    assert isinstance(layout, Layout)
    assert layout.sequence
    for i in range(2):
        found = {kind for kind in BLOCK_POINTS if f"blocks.{i}.{kind}" in cache}
        absent = {"hook_resid_mid"} if f"blocks.{i}.hook_resid_mid" in model.absent else set()
        assert found - {"attn.hook_bias"} == {*BLOCK_POINTS} - absent - {"attn.hook_bias"}
        for kind in "qkvz":
            assert cache[f"blocks.{i}.attn.hook_{kind}"].shape == (batch, layout.heads, n, layout.head_dim)
        assert cache[f"blocks.{i}.attn.hook_pattern"].shape == (batch, layout.heads, n, n)
        for kind in (k for k in BLOCK_POINTS if "resid" in k or k.endswith("_out")):
            if kind not in absent:
                assert cache[f"blocks.{i}.{kind}"].shape == (batch, n, layout.width)
        assert cache[f"blocks.{i}.mlp.hook_post"].shape[:2] == (batch, n)
    assert cache["hook_embed"].shape[:2] == (batch, n)
    assert ("ln_final.hook_normalized" in cache) == ("ln_final.hook_normalized" not in model.absent)


def test_q_k_v_scale_and_mask_rebuild_the_attention_output(case):
    model, inputs, _, _, cache = case
    for i in range(2):
        q, k, v = (cache[f"blocks.{i}.attn.hook_{x}"] for x in "qkv")
        bias = cache.get(f"blocks.{i}.attn.hook_bias")
        z = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=model.layout.scale(i))
        for rebuilt in (z, cache[f"blocks.{i}.attn.hook_pattern"] @ v):
            torch.testing.assert_close(
                valid(rebuilt, inputs), valid(cache[f"blocks.{i}.attn.hook_z"], inputs), rtol=1e-5, atol=1e-5
            )
        assert cache[f"blocks.{i}.attn.hook_pattern"].isfinite().all()


def test_the_residual_stream_adds_up(case):
    model, _, _, _, cache = case
    for i, block in enumerate(model.blocks):
        pre, post, attn, mlp = (
            cache[f"blocks.{i}.hook_{x}"] for x in ("resid_pre", "resid_post", "attn_out", "mlp_out")
        )
        row = block_row(block)
        if row.parallel:
            torch.testing.assert_close(pre + attn + mlp, post, rtol=1e-6, atol=1e-6)
            continue
        mid, last = cache[f"blocks.{i}.hook_resid_mid"], torch.nn.Identity()
        first = block.get_submodule(row.summed) if row.summed else torch.nn.Identity()
        if row.summed:
            last = block.get_submodule(LAST_NORMS[type(block).__name__])
        torch.testing.assert_close(first(pre + attn), mid, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(last(mid + mlp), post, rtol=1e-6, atol=1e-6)


def test_the_stream_ends_in_the_logits(case):
    model, _, _, logits, cache = case
    if model.num_classes:
        torch.testing.assert_close(model.to_class_space(cache["blocks.1.hook_resid_post"]), logits)


@torch.no_grad()
def test_the_mask_of_a_padded_batch_is_never_lost(model):
    inputs = texts(PADDED)
    _, cache = model.run_with_cache(inputs)
    for i in range(2):
        assert (cache[f"blocks.{i}.attn.hook_pattern"][1, :, :5, 5:] == 0).all()
        assert (cache[f"blocks.{i}.attn.hook_pattern"][1, :, :5].sum(-1) - 1).abs().max() < 1e-5


@torch.no_grad()
def test_a_text_is_the_same_alone_and_padded(model):
    double = open_model(copy.deepcopy(model.module).double())
    together, alone = texts((9, 5)), texts((9, 5))
    alone = {name: part[1:, :5] for name, part in alone.items()}
    names = ["blocks.*.attn.hook_[qkvz]", "blocks.*.hook_resid_post"]
    padded, cache = double.run_with_cache(together, names)
    single, expected = double.run_with_cache(alone, names)
    torch.testing.assert_close(padded[1, :5], single[0], rtol=1e-5, atol=1e-5)
    for name, value in expected.items():
        found = cache[name][1:, :, :5] if ".attn." in name else cache[name][1:, :5]
        torch.testing.assert_close(found, value, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_later_tokens_change_earlier_logits_only_where_tokens_see_both_ways(model):
    inputs, changed = texts(ALONE), texts(ALONE)
    changed["input_ids"][:, -1] = 7
    same = torch.allclose(model(inputs)[:, :5], model(changed)[:, :5], atol=1e-6)
    assert same == model.layout.causal


@torch.no_grad()
def test_an_edit_of_resid_mid_acts_on_both_branches(model):
    inputs, name = texts(PADDED), "blocks.1.hook_resid_mid"
    if name in model.absent:
        for names in (name, "blocks.*.hook_resid_mid"):
            with pytest.raises(VitscopeError, match="side by side"):
                model.run_with_cache(inputs, names)
        with pytest.raises(VitscopeError, match="side by side"), model.edits({name: lambda x, _: x}):
            pass
        return
    plain = model(inputs)
    with model.edits({name: lambda x, _: torch.zeros_like(x)}):
        edited, cache = model.run_with_cache(inputs, "blocks.1.*")
    mid, post, mlp = (cache[f"blocks.1.hook_{x}"] for x in ("resid_mid", "resid_post", "mlp_out"))
    block = model.blocks[1]
    last = block.get_submodule(LAST_NORMS[type(block).__name__]) if block_row(block).summed else torch.nn.Identity()
    assert (mid == 0).all()
    torch.testing.assert_close(post, last(mlp))
    # the branch itself saw zeros: all tokens are alike
    torch.testing.assert_close(mlp[0, 0], mlp[0, 1])
    assert not torch.allclose(edited, plain, atol=1e-4)
    assert torch.equal(model(inputs), plain)


@pytest.mark.parametrize("lengths", [ALONE, PADDED, (1,)], ids=["alone", "padded", "one token"])
@torch.no_grad()
def test_an_edit_of_every_point_acts_and_an_identity_changes_nothing(model, lengths):
    inputs = texts(lengths)
    kept = inputs["attention_mask"].bool()
    plain = model(inputs)[kept]
    for kind in BLOCK_POINTS:
        name = f"blocks.0.{kind}"
        if name in model.absent:
            continue
        same = model.run_with_hooks(inputs, [(name, lambda value, _: value.clone())])[kept]
        torch.testing.assert_close(same, plain, rtol=1e-4, atol=1e-5)
        if lengths == (1,) and kind.endswith(("hook_q", "hook_k", "hook_bias", "hook_attn_scores")):
            continue  # one token looks at itself, whatever the scores
        other = model.run_with_hooks(inputs, [(name, lambda v, _: torch.linspace(-1, 1, v.numel()).view(v.shape))])[
            kept
        ]
        assert not torch.allclose(other, plain, atol=1e-5), name


@torch.no_grad()
def test_heads_that_share_a_key_are_edited_one_by_one(model):
    """An edit of one head's keys leaves what the other heads of its group make."""
    inputs, name = texts(ALONE), "blocks.0.attn.hook_k"

    def first_head(k, _):
        k = k.clone()
        k[:, 0] *= -3
        return k

    _, before = model.run_with_cache(inputs, "blocks.0.attn.hook_z")
    with model.edits({name: first_head}):
        _, after = model.run_with_cache(inputs, "blocks.0.attn.hook_z")
    changed = (before["blocks.0.attn.hook_z"] - after["blocks.0.attn.hook_z"]).abs().amax((0, 2, 3))
    assert changed[0] > 1e-3
    assert changed[1:].max() < 1e-5


def test_gradients_under_capture_are_those_of_the_model(model):
    inputs = texts(PADDED)
    weight = model.module.get_input_embeddings().weight
    (expected,) = torch.autograd.grad(model(inputs)[0].sum(), weight)
    (found,) = torch.autograd.grad(model.run_with_cache(inputs)[0][0].sum(), weight)
    torch.testing.assert_close(found, expected)


@torch.no_grad()
def test_one_token_with_a_mask_whose_heads_stand_in_the_place_of_tokens():
    """transformers packs the heads of such a query by their keys; the points are in their usual shapes."""
    model = open_model(build("llama"))
    inputs = {"input_ids": torch.tensor([[7], [9]]), "attention_mask": torch.ones(2, 1, 1, 1, dtype=torch.bool)}
    with Calls() as calls:
        plain = model(inputs)
    assert {shapes[0] for shapes, _ in calls.made} == {(2, 2, 2, 8)}
    logits, cache = model.run_with_cache(inputs)
    assert torch.equal(logits, plain)
    for kind in "qkvz":
        assert cache[f"blocks.0.attn.hook_{kind}"].shape == (2, 4, 1, 8)
    assert torch.equal(cache["blocks.0.attn.hook_z"], cache["blocks.0.attn.hook_v"])
    with model.edits({"blocks.0.attn.hook_v": lambda v, _: v * 2}):
        _, edited = model.run_with_cache(inputs, "blocks.0.attn.hook_z")
    torch.testing.assert_close(edited["blocks.0.attn.hook_z"], 2 * cache["blocks.0.attn.hook_z"])


@torch.no_grad()
def test_padding_that_sees_nothing_does_not_spread_nan_through_an_edited_pattern():
    model = open_model(build("mistral"))  # tokens see 4 back: padding far behind a short text sees nothing
    inputs = texts((12, 3))
    plain = model(inputs)
    with model.edits({"blocks.*.attn.hook_pattern": lambda a, _: a.clone()}):
        logits, cache = model.run_with_cache(inputs, "blocks.0.attn.*")
    assert cache["blocks.0.attn.hook_bias"][1].isneginf().all(-1).any()
    assert logits.isfinite().all()
    torch.testing.assert_close(logits[1, :3], plain[1, :3])
