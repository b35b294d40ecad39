from __future__ import annotations

import copy
import io
import pickle

import pytest
import timm
import torch

from vitscope.errors import UnsupportedModelError, VitscopeError
from vitscope.models import open_model

OPTIONS = {
    "img_size": 28,
    "patch_size": 7,
    "in_chans": 1,
    "embed_dim": 32,
    "depth": 3,
    "num_heads": 2,
    "num_classes": 5,
}


@pytest.fixture
def model():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return open_model(timm.create_model("vit_tiny_patch16_224", **OPTIONS))


@pytest.fixture
def images():
    return torch.randn(2, 1, 28, 28, generator=torch.Generator().manual_seed(1))


def hook_count(module):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in module.modules())


@torch.no_grad()
def test_an_exception_in_an_edit_leaves_no_hook_and_the_model_as_it_was(model, images):
    before, plain = hook_count(model.module), model(images)

    def fail(value, point):
        raise RuntimeError("on purpose")

    for point in (
        "blocks.1.hook_resid_pre",
        "blocks.1.attn.hook_q",
        "blocks.1.hook_resid_mid",
        "blocks.2.mlp.hook_pre",
    ):
        with pytest.raises(RuntimeError, match="on purpose"):
            model.run_with_hooks(images, [(point, fail), ("blocks.*.attn.hook_z", lambda z, _: z)])
    assert hook_count(model.module) == before
    assert torch.equal(model(images), plain)
    assert not torch.overrides._get_current_function_mode_stack(), "the interceptor must be gone"


@torch.no_grad()
def test_an_interrupt_inside_a_block_leaves_nothing_behind(model, images):
    """No hook is called for what is not an Exception."""

    def interrupt(value, point):
        raise KeyboardInterrupt

    before = hook_count(model.module)
    with pytest.raises(KeyboardInterrupt):
        model.run_with_hooks(images, [("blocks.1.attn.hook_q", interrupt)])
    assert not torch.overrides._get_current_function_mode_stack()
    assert hook_count(model.module) == before


@torch.no_grad()
def test_the_users_own_hooks_survive_and_keep_firing(model, images):
    calls = []
    handle = model.module.blocks[1].register_forward_hook(lambda *_: calls.append(1))
    model.run_with_cache(images, "blocks.*.hook_resid_post")
    with model.edits({"blocks.1.hook_attn_out": lambda v, p: v * 0}):
        model(images)
    model(images)
    assert len(calls) == 3
    handle.remove()
    assert hook_count(model.module) == 0


@torch.no_grad()
def test_reading_inside_edits_shows_the_edited_values(model, images):
    q = torch.randn(2, 2, 17, 16, generator=torch.Generator().manual_seed(3))
    with model.edits({"blocks.0.attn.hook_q": lambda v, p: q}):
        _, cache = model.run_with_cache(images, "blocks.0.attn.*")
    assert torch.equal(cache["blocks.0.attn.hook_q"], q)
    pattern = (q @ cache["blocks.0.attn.hook_k"].mT / 4).softmax(-1)
    assert torch.allclose(cache["blocks.0.attn.hook_pattern"], pattern, atol=1e-6)
    assert torch.allclose(cache["blocks.0.attn.hook_z"], pattern @ cache["blocks.0.attn.hook_v"], atol=1e-5)


@torch.no_grad()
def test_an_edit_receives_a_point_that_is_its_name_and_knows_its_block(model, images):
    seen = []
    names = ["hook_embed", "blocks.*.attn.hook_q", "ln_final.hook_normalized"]
    with model.edits({name: lambda value, point: seen.append(point) for name in names}):
        _, cache = model.run_with_cache(images, names)
    assert [(p, p.name, str(p), p.block, p.layer()) for p in seen] == [
        ("hook_embed",) * 3 + (None, None),
        *[(f"blocks.{i}.attn.hook_q",) * 3 + (i, i) for i in range(3)],
        ("ln_final.hook_normalized",) * 3 + (None, None),
    ]
    assert all(cache[point] is cache[str(point)] for point in seen)
    assert copy.copy(seen[1]).block == pickle.loads(pickle.dumps(seen[1])).block == 0


@torch.no_grad()
def test_a_cache_says_why_it_does_not_hold_a_point(model, images):
    names = ["blocks.*.hook_resid_post", "blocks.1.attn.hook_bias"]
    _, cache = model.run_with_cache(images, names)
    blocks = []
    model.stream(images, names, lambda block, points: blocks.append(points))
    for found in (cache, blocks[1]):
        with pytest.raises(KeyError, match=r"Did you mean blocks\.1\.hook_resid_post"):
            found["blocks.1.hook_resid_pots"]
        with pytest.raises(
            VitscopeError, match=r"hook_pattern was not asked for in this pass, only blocks\.0\.hook_resid"
        ):
            found["blocks.1.attn.hook_pattern"]
        with pytest.raises(VitscopeError, match="the model has 3 blocks, 0 to 2"):
            found["blocks.3.hook_resid_post"]
        with pytest.raises(VitscopeError, match="adds no bias"):
            found["blocks.1.attn.hook_bias"]
        with pytest.raises(VitscopeError, match="stands for 3 points"):
            found["blocks.*.hook_resid_post"]
        with pytest.raises(KeyError):
            found[3]
    with pytest.raises(VitscopeError, match="one by one"):
        blocks[1]["blocks.2.hook_resid_post"]


@torch.no_grad()
def test_a_cache_is_a_dict_and_is_saved_as_one(model, images):
    _, cache = model.run_with_cache(images, "blocks.*.hook_resid_post")
    assert isinstance(cache, dict)
    assert cache.get("blocks.0.hook_q") is None
    assert "blocks.0.hook_q" not in cache
    assert [*cache] == [f"blocks.{i}.hook_resid_post" for i in range(3)]
    assert cache.pop("blocks.0.hook_resid_post").shape == (2, 17, 32)
    file = io.BytesIO()
    torch.save(cache, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert loaded.keys() == cache.keys()
    assert all(torch.equal(loaded[name], cache[name]) for name in cache)


@torch.no_grad()
def test_a_bias_can_be_edited_where_the_model_has_none(model, images):
    """It starts from zeros: what it adds is what an edit of the scores adds."""

    def add(value, point):
        assert value.shape == (2, 2, 17, 17)
        return value + torch.linspace(-3, 3, 17)

    outputs = []
    for kind in ("bias", "attn_scores"):
        with model.edits({f"blocks.1.attn.hook_{kind}": add}):
            outputs.append(model(images))
    torch.testing.assert_close(*outputs)
    assert not torch.allclose(outputs[0], model(images), atol=1e-4)


@torch.no_grad()
def test_nested_edits_apply_outer_first_and_unwind_one_by_one(model, images):
    plain = model(images)
    with model.edits({"blocks.0.hook_resid_post": lambda v, p: v + 1}):
        outer = model(images)
        with model.edits({"blocks.0.hook_resid_post": lambda v, p: v * 2}):
            _, cache = model.run_with_cache(images, "blocks.1.hook_resid_pre")
        assert torch.equal(model(images), outer)
    _, clean = model.run_with_cache(images, "blocks.1.hook_resid_pre")
    expected = (clean["blocks.1.hook_resid_pre"] + 1) * 2
    assert torch.equal(cache["blocks.1.hook_resid_pre"], expected)
    assert torch.equal(model(images), plain)
    assert not torch.equal(outer, plain)


@torch.no_grad()
def test_edits_also_reach_a_direct_call_of_the_module(model, images):
    with model.edits({"blocks.2.hook_resid_post": lambda v, p: torch.zeros_like(v)}):
        edited = model.module(images)
    assert torch.equal(edited[0], edited[1]), "a zeroed stream forgets the images"


@torch.no_grad()
def test_every_point_can_be_edited_and_an_identity_edit_changes_nothing_that_is_fused(model, images):
    plain = model(images)
    for point in [*model.resolve_points("blocks.1.*"), "hook_embed", "ln_final.hook_normalized"]:
        same = model.run_with_hooks(images, [(point, lambda v, p: v.clone())])
        assert torch.allclose(same, plain, atol=1e-6), point
        changed = model.run_with_hooks(images, [(point, lambda v, p: torch.linspace(0, 1, v.numel()).view(v.shape))])
        assert not torch.allclose(changed, plain, atol=1e-6), point


@torch.no_grad()
def test_a_pattern_edit_replaces_the_attention_weights(model, images):
    eye = torch.eye(17).expand(2, 2, 17, 17)
    with model.edits({"blocks.1.attn.hook_pattern": lambda v, p: eye}):
        _, cache = model.run_with_cache(images, ["blocks.1.attn.hook_z", "blocks.1.attn.hook_v"])
    assert torch.equal(cache["blocks.1.attn.hook_z"], cache["blocks.1.attn.hook_v"])


@torch.no_grad()
def test_stream_hands_over_each_block_once_and_in_order(model, images):
    seen = []
    names = ["hook_embed", "blocks.*.hook_resid_post", "ln_final.hook_normalized"]
    model.stream(images, names, lambda block, points: seen.append((block, sorted(points))))
    assert seen == [
        (-1, ["hook_embed"]),
        *[(i, [f"blocks.{i}.hook_resid_post"]) for i in range(3)],
        (3, ["ln_final.hook_normalized"]),
    ]


def test_gradients_flow_through_the_cache(model, images):
    logits, cache = model.run_with_cache(images, "blocks.1.attn.hook_z")
    (gradient,) = torch.autograd.grad(logits[:, 0].sum(), cache["blocks.1.attn.hook_z"])
    assert gradient.abs().sum() > 0


@torch.no_grad()
def test_a_wrong_shape_from_an_edit_is_named(model, images):
    with pytest.raises(VitscopeError, match=r"blocks\.0\.hook_resid_post returned \(2, 3, 32\)"):
        model.run_with_hooks(images, [("blocks.0.hook_resid_post", lambda v, p: v[:, :3])])


def test_a_misspelt_point_suggests_the_right_one(model, images):
    wrong, hint = "blocks.0.hook_residpre", r"Did you mean blocks\.0\.hook_resid_pre"
    with pytest.raises(VitscopeError, match=hint):
        model.run_with_cache(images, wrong)
    with pytest.raises(VitscopeError, match=hint):
        model.stream(images, wrong, lambda *_: None)
    with pytest.raises(VitscopeError, match=hint):
        model.run_with_hooks(images, [(wrong, lambda v, p: v)])
    with pytest.raises(VitscopeError, match=hint), model.edits({wrong: lambda v, p: v}):
        pass
    with pytest.raises(VitscopeError, match="3 blocks, 0 to 2"):
        model.run_with_cache(images, "blocks.7.hook_resid_pre")


def test_an_edit_that_is_no_function_is_named(model, images):
    with pytest.raises(VitscopeError, match=r"blocks\.0\.hook_resid_pre is Tensor, no function"):
        model.run_with_hooks(images, [("blocks.0.hook_resid_pre", torch.zeros(2, 17, 32))])


def test_unfused_attention_is_refused_rather_than_silently_empty(model, images):
    model.module.blocks[1].attn.fused_attn = False
    with pytest.raises(VitscopeError, match="unfused"):
        model.run_with_cache(images, "blocks.1.attn.hook_q")
    model.run_with_cache(images, "blocks.0.attn.hook_q")


def test_a_compiled_module_is_refused_with_a_hint(images):
    module = timm.create_model("vit_tiny_patch16_224", **OPTIONS)
    with pytest.raises(UnsupportedModelError, match="_orig_mod"):
        open_model(torch.compile(module))
    model = open_model(module)
    module.blocks[0].compile()
    with pytest.raises(UnsupportedModelError, match="compiled"):
        model.run_with_cache(images, "blocks.0.hook_resid_pre")


@torch.no_grad()
def test_capture_of_half_precision_inputs_keeps_their_type(images):
    model = open_model(timm.create_model("vit_tiny_patch16_224", **OPTIONS).half())
    logits, cache = model.run_with_cache(images.half(), "blocks.0.attn.hook_pattern")
    assert logits.dtype == cache["blocks.0.attn.hook_pattern"].dtype == torch.float16


@torch.no_grad()
def test_what_is_computed_with_the_points_of_a_block_is_not_watched_and_may_look_inside_the_model_itself(model, images):
    name = "blocks.{}.attn.hook_q"
    _, expected = model.run_with_cache(images, "blocks.*.attn.hook_q")
    _, flipped = model.run_with_cache(images.flip(0), "blocks.*.attn.hook_q")
    seen = {}

    def sink(block, points):
        assert not torch.overrides._get_current_function_mode_stack()
        _, inner = model.run_with_cache(images.flip(0), name.format(block))
        assert torch.equal(inner[name.format(block)], flipped[name.format(block)])
        seen.update(points)

    model.stream(images, "blocks.*.attn.hook_q", sink)
    assert seen.keys() == expected.keys()
    assert all(torch.equal(seen[key], expected[key]) for key in expected)
