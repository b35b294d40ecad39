"""Passes that begin where an edit is, against whole passes."""

from __future__ import annotations

import copy

import pytest
import torch

from vitscope.analyses.causes.prefix import Prefix
from vitscope.capture.points import BLOCK_POINTS
from vitscope.capture.standing_in import standing_in
from vitscope.models import Model

EDITED = [kind for kind in BLOCK_POINTS if kind != "attn.hook_bias"]


def bent(value, point):
    """A change that no layer can undo; scores of -inf stay."""
    return value + 0.1 * torch.where(value.isfinite(), value, 0.0).sin()


def naive(model, inputs, edits):
    with torch.no_grad(), model.edits(edits):
        return model(inputs)


def test_without_an_edit_nothing_changes_bit_for_bit(vit, pictures):
    prefix = Prefix(vit, pictures.inputs)
    plain = naive(vit, pictures.inputs, {})
    assert torch.equal(prefix.outputs, plain)
    assert torch.equal(prefix.run([{}]), plain)


@pytest.mark.parametrize("kind", EDITED)
def test_a_pass_from_the_edit_on_is_the_whole_pass_bit_for_bit(vit, pictures, kind):
    prefix, plain = Prefix(vit, pictures.inputs), naive(vit, pictures.inputs, {})
    for block in range(3):
        edits = {f"blocks.{block}.{kind}": bent}
        whole = naive(vit, pictures.inputs, edits)
        assert torch.equal(prefix.run([edits]), whole)
        assert not torch.equal(whole, plain)


FAMILIES = ["bert", "gpt2", "gpt-neox", "llama", "gemma3", "opt", "opt-350m", "distilbert", "modernbert"]


@pytest.mark.parametrize("family", FAMILIES)
def test_text_models_with_masks_and_rotary_positions_begin_anywhere(tools, family):
    model, batch = tools["text_model"](family), tools["texts"]()
    prefix = Prefix(model, batch.inputs)
    for kind in ("hook_resid_pre", "attn.hook_z", "hook_attn_out", "hook_mlp_out", "hook_resid_post"):
        for block in range(2):
            edits = {f"blocks.{block}.{kind}": bent}
            assert torch.equal(prefix.run([edits]), naive(model, batch.inputs, edits)), (kind, block)


@pytest.mark.parametrize(
    "name",
    [
        "deit_tiny_distilled_patch16_224",
        "beit_base_patch16_224",
        "eva02_tiny_patch14_224",
        "vit_relpos_small_patch16_224",
    ],
)
def test_other_families_of_pictures_begin_anywhere(tools, name):
    size = {"img_size": 28, "patch_size": 7}
    model = tools["vit"](name, **size)
    batch = tools["pictures"](model, 3)
    prefix = Prefix(model, batch.inputs)
    for kind in ("attn.hook_z", "hook_attn_out", "hook_mlp_out", "hook_resid_post"):
        edits = {f"blocks.1.{kind}": bent}
        assert torch.equal(prefix.run([edits]), naive(model, batch.inputs, edits)), kind


@pytest.mark.parametrize(("kind", "bound"), [("double", 1e-6), ("float", 1e-4)])
def test_copies_of_a_batch_equal_one_pass_after_the_other(vit, pictures, kind, bound):
    model = Model(getattr(copy.deepcopy(vit.module), kind)(), vit.name, vit.preprocess)
    images = pictures.inputs.to(next(model.module.parameters()).dtype)
    edits = [{f"blocks.{b}.{k}": bent} for b in range(3) for k in ("attn.hook_z", "hook_mlp_out")] + [{}]
    found = dict(Prefix(model, images).run_each(edits, rows=3 * len(images)))
    assert sorted(found) == list(range(len(edits)))
    for number, edit in enumerate(edits):
        assert (found[number] - naive(model, images, edit)).abs().max() < bound


def test_edits_that_begin_at_the_same_place_go_together(vit, pictures):
    prefix, calls = Prefix(vit, pictures.inputs), []
    hook = vit.module.head.register_forward_hook(lambda m, args, out: calls.append(len(out)))
    edits = [{f"blocks.{b}.attn.hook_z": bent} for b in (0, 1, 1, 1)]
    list(prefix.run_each(edits, rows=12))
    hook.remove()
    assert sorted(calls) == [6, 6, 12]


def test_only_what_comes_after_the_edit_runs(vit, pictures):
    prefix, ran = Prefix(vit, pictures.inputs), []
    blocks = vit.module.blocks
    parts = {"0": blocks[0].norm1, "1": blocks[1].attn.qkv, "1 mlp": blocks[1].mlp.fc1, "2": blocks[2].attn.qkv}
    hooks = [p.register_forward_hook(lambda m, a, o, name=n: ran.append(name)) for n, p in parts.items()]
    for point, expected in (
        ("blocks.1.attn.hook_z", ["1", "1 mlp", "2"]),
        ("blocks.1.hook_attn_out", ["1 mlp", "2"]),
        ("blocks.1.hook_mlp_out", ["2"]),
        ("blocks.2.hook_resid_post", []),
    ):
        ran.clear()
        prefix.run([{point: bent}])
        assert ran == expected
    for hook in hooks:
        hook.remove()


def test_hooks_of_the_user_act_once_and_the_model_is_as_it_was(vit, pictures):
    block = vit.module.blocks[0]
    hook = block.register_forward_hook(lambda m, args, out: out + 1)
    prefix, edits = Prefix(vit, pictures.inputs), {"blocks.2.hook_mlp_out": bent}
    assert torch.equal(prefix.run([edits]), naive(vit, pictures.inputs, edits))
    hook.remove()
    assert not any("forward" in module.__dict__ for module in vit.module.modules())


def test_inside_of_edits_nothing_is_shared_and_all_of_them_hold(vit, pictures):
    outer, inner = {"blocks.0.attn.hook_pattern": lambda p, point: p.flip(-1)}, {"blocks.2.hook_mlp_out": bent}
    with vit.edits(outer):
        found = Prefix(vit, pictures.inputs).run([inner])
    assert torch.equal(found, naive(vit, pictures.inputs, {**outer, **inner}))


def test_what_stands_in_is_gone_after_an_exception(vit, pictures):
    block = vit.module.blocks[0]
    with pytest.raises(ZeroDivisionError), standing_in({block: lambda x: 1 / 0}):
        vit(pictures.inputs)
    assert "forward" not in block.__dict__
    vit(pictures.inputs)
