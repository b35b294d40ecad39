"""Who wrote the stream, and who gave how much to a logit: against the model's own modules, and against gradients."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import vitscope
from vitscope.architectures.families import block_row, final_norms, heads_of
from vitscope.errors import MissingPointError, UnsupportedModelError, VitscopeError

sys.path.insert(0, str(Path(__file__).parents[1]))
from text_models import build, texts

TINY = {"depth": 2, "num_classes": 7, "img_size": 64}
WIDE = {**TINY, "embed_dim": 48, "num_heads": 3}
# one of every way from the stream to the head, and of every way from a head to the stream
PICTURES = {
    "vit_tiny_patch16_224": WIDE,  # class token
    "deit_tiny_distilled_patch16_224": WIDE,  # two tokens, two heads
    "deit3_small_patch16_224": WIDE,  # LayerScale
    "beitv2_base_patch16_224": WIDE,  # gamma_1, mean, then norm
    "beit3_base_patch16_224": WIDE,  # a norm between heads and projection
    "vit_relpos_small_patch16_224": WIDE,  # norm, then mean
    "vit_relpos_small_patch16_rpn_224": WIDE,  # norms behind the branches, mean
    "vit_base_patch16_rpn_224": WIDE,
    "vit_wee_patch16_reg1_gap_256": {**WIDE, "num_heads": 2},  # registers
    "vit_base_patch16_siglip_gap_224": WIDE,
}
TEXTS = ["gpt2", "gpt-neox", "gpt-neox in turn", "opt", "llama", "qwen3", "gemma3"]
ROUNDED = {"llama", "qwen3", "gemma3"}  # their norms compute in float32, whatever they are given


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


def picture_model(name, dtype=torch.float64):
    model = vitscope.open_model(name, "random", **PICTURES[name])
    generator = torch.Generator().manual_seed(0)
    for parameter in model.module.parameters():  # biases and gains that start at 0 or 1 hide errors
        parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    model.module.to(dtype)
    images = torch.randn(3, 3, 64, 64, generator=generator)
    return model, images.to(dtype)


def text_model(name, dtype=torch.float64):
    return vitscope.open_model(build(name).to(dtype)), texts((6, 6))


def opened(name, dtype=torch.float64):
    return picture_model(name, dtype) if name in PICTURES else text_model(name, dtype)


def logits_of(logits, classes):
    return logits.gather(-1, classes[..., None])[..., 0]


def some_classes(model, logits):
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, model.num_classes, logits.shape[:-1], generator=generator)


@pytest.mark.parametrize("name", [*PICTURES, *TEXTS])
def test_the_parts_add_up_to_the_stream_and_to_the_logit(name):
    model, inputs = opened(name)
    logits, cache = model.run_with_cache(inputs)
    classes = some_classes(model, logits)
    exact = 1e-5 if name in ROUNDED else 1e-9
    for heads in (True, False):
        stream, labels = cache.decompose(heads=heads)
        assert len(labels) == len(set(labels)) == len(stream)
        torch.testing.assert_close(stream.sum(0), cache["resid_post", -1], atol=exact, rtol=0)
    values, labels = model.attribute(cache, classes)
    assert len(labels) == len(set(labels)) == len(values)
    torch.testing.assert_close(values.sum(0), logits_of(logits, classes), atol=exact, rtol=0)
    other = (classes + 1) % model.num_classes
    difference = logits_of(logits, classes) - logits_of(logits, other)
    torch.testing.assert_close(model.attribute(cache, classes, other).values.sum(0), difference, atol=exact, rtol=0)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_relpos_small_patch16_rpn_224", "gpt2", "llama"])
def test_in_float32_the_sum_is_the_logit_to_a_ten_thousandth(name):
    model, inputs = opened(name, torch.float32)
    logits, cache = model.run_with_cache(inputs, model.decomposition.needs())
    classes = some_classes(model, logits)
    gap = model.attribute(cache, classes).values.sum(0) - logits_of(logits, classes)
    assert float(gap.abs().max()) < 1e-4


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit3_small_patch16_224", "beitv2_base_patch16_224", *TEXTS])
def test_what_a_head_adds_is_what_the_projection_makes_of_it_alone(name):
    model, inputs = opened(name)
    _, cache = model.run_with_cache(inputs)
    for i, block in enumerate(model.blocks):
        row = block_row(block)
        if name == "gemma3":  # a norm stands between: its heads are seen in the sums above
            continue
        projection = block.get_submodule(row.attn_proj)
        scale = next((s for s in (getattr(block, n, None) for n in row.attn_steps) if s is not None), 1.0)
        gamma = getattr(scale, "gamma", scale) if not isinstance(scale, torch.nn.Identity) else 1.0
        z = cache["z", i].transpose(1, 2)  # (B, N, H, D)
        silent = projection(torch.zeros_like(z).flatten(2))
        for h in range(model.layout.heads):
            alone = torch.zeros_like(z)
            alone[:, :, h] = z[:, :, h]
            wrote = (projection(alone.flatten(2)) - silent) * gamma
            torch.testing.assert_close(cache.head_results(i)[:, :, h], wrote, atol=1e-10, rtol=0)
        parts = cache.decompose(block=i)
        torch.testing.assert_close(parts[f"blocks.{i}.attn.bias"], (silent * gamma).expand_as(z.flatten(2)))


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit3_small_patch16_224"])
def test_an_mlp_without_its_bias_is_its_last_layer_without_it(name):
    model, inputs = opened(name)
    _, cache = model.run_with_cache(inputs)
    block = model.blocks[1]
    gamma = getattr(block.ls2, "gamma", 1.0)
    parts = cache.decompose(token=2)
    torch.testing.assert_close(parts["blocks.1.mlp"], cache["post", 1][:, 2] @ block.mlp.fc2.weight.T * gamma)
    torch.testing.assert_close(parts["blocks.1.mlp.bias"][0], block.mlp.fc2.bias * gamma)


def frozen_logit(model, stream, like, classes):
    """The logit by the model's own formula, its norms written out with a deviation that no gradient passes."""

    def norm(module, x, at):
        if isinstance(module, torch.nn.Identity):
            return x, at
        at_centre, centre = at - at.mean(-1, keepdim=True), x - x.mean(-1, keepdim=True)
        scale = (at_centre.square().mean(-1, keepdim=True) + module.eps).sqrt()
        return centre / scale * module.weight + module.bias, at_centre / scale * module.weight + module.bias

    first, *others = final_norms(model.module)
    x, at = norm(first, stream, like)
    heads = heads_of(model.module)
    if getattr(model.module, "global_pool", "token") == "avg":
        x, at = (y[:, model.layout.image].mean(1) for y in (x, at))
    elif len(heads) == 2:
        return sum(logits_of(head(x[:, i]), classes) for i, head in enumerate(heads)) / 2
    elif model.num_classes == 7:
        x, at = x[:, 0], at[:, 0]
    for other in others:
        x, at = norm(other, x, at)
    return logits_of(heads[0](x), classes)


@pytest.mark.parametrize(
    "name",
    ["vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "beitv2_base_patch16_224", "gpt2",
     "vit_relpos_small_patch16_224", "vit_relpos_small_patch16_rpn_224"],
)  # fmt: skip
def test_each_part_gives_what_the_gradient_with_a_frozen_norm_says(name):
    model, inputs = opened(name)
    logits, cache = model.run_with_cache(inputs)
    classes = some_classes(model, logits)
    last = cache["resid_post", -1]
    with torch.enable_grad():
        stream = last.clone().requires_grad_()
        total = frozen_logit(model, stream, last, classes)
        torch.testing.assert_close(total, logits_of(logits, classes))
        (gradient,) = torch.autograd.grad(total.sum(), stream)
    expected = (cache.decompose().values * gradient).sum(-1)  # (parts, B, N)
    expected = expected if name == "gpt2" else expected.sum(-1)
    torch.testing.assert_close(model.attribute(cache, classes).values[:-2], expected, atol=1e-10, rtol=0)


def test_the_stream_after_each_block_is_labelled():
    model, images = picture_model("vit_tiny_patch16_224")
    _, cache = model.run_with_cache(images, "blocks.*.hook_resid_*")
    values, labels = cache.accumulated()
    assert labels == ["embedding", "blocks.0", "blocks.1"]
    assert torch.equal(values[0], cache["resid_pre", 0])
    assert torch.equal(values[2], cache["resid_post", 1])
    assert cache.accumulated()["blocks.0"].shape == (3, 17, 48)


def test_shapes_follow_what_is_asked():
    model, images = picture_model("vit_tiny_patch16_224")
    _, cache = model.run_with_cache(images)
    assert cache.head_results(1).shape == (3, 17, 3, 48)
    assert torch.equal(cache.head_results()[1], cache.head_results(-1))
    assert cache.decompose(token=0).values.shape == (1 + 2 * 6, 3, 48)
    assert cache.decompose(token=slice(1, 4), heads=False, block=0).values.shape == (3, 3, 3, 48)
    assert cache.decompose(0, block=0).labels == [
        "embedding", "blocks.0.head.0", "blocks.0.head.1", "blocks.0.head.2", "blocks.0.attn.bias", "blocks.0.mlp",
        "blocks.0.mlp.bias",
    ]  # fmt: skip
    assert model.attribute(cache, 4).values.shape == (15, 3)


@pytest.mark.parametrize("name", ["bert", "distilbert", "opt-350m"])
def test_blocks_that_normalise_the_sum_are_refused_with_the_reason(name):
    model, inputs = text_model(name)
    _, cache = model.run_with_cache(inputs)
    with pytest.raises(UnsupportedModelError, match="normalise the sum of stream and branch"):
        model.attribute(cache, 3)
    with pytest.raises(UnsupportedModelError, match="normalises the sum"):
        cache.decompose()
    written = cache.head_results(0)  # what heads write is known all the same
    bias = model.blocks[0].get_submodule(block_row(model.blocks[0]).attn_proj).bias
    torch.testing.assert_close(written.sum(2) + bias, cache["attn_out", 0])


def test_a_model_that_cannot_be_split_says_why():
    for name, reason in {"llama without head": "no vocabulary head", "modernbert": "a layer of its own"}.items():
        model, inputs = text_model(name)
        _, cache = model.run_with_cache(inputs)
        with pytest.raises(UnsupportedModelError, match=reason):
            model.attribute(cache, 3)
    model = vitscope.open_model("vit_tiny_patch16_224", "random", **{**WIDE, "num_classes": 0})
    _, cache = model.run_with_cache(torch.zeros(1, 3, 64, 64))
    with pytest.raises(UnsupportedModelError, match="no classes"):
        model.attribute(cache, 3)
    pooled = vitscope.open_model("vit_tiny_patch16_224", "random", **WIDE, global_pool="max")
    with pytest.raises(UnsupportedModelError, match="pools by 'max'"):
        pooled.attribute(cache, 3)
    gated = vitscope.open_model("vit_tiny_patch16_224", "random", **WIDE)
    gated.module.blocks[1].attn.gate = torch.nn.Linear(48, 48)
    _, cache = gated.run_with_cache(torch.zeros(1, 3, 64, 64))
    with pytest.raises(UnsupportedModelError, match="block 1 has a gate"):
        cache.decompose()


def test_what_is_asked_wrongly_is_answered_with_what_there_is():
    model, images = picture_model("vit_tiny_patch16_224")
    _, cache = model.run_with_cache(images)
    with pytest.raises(VitscopeError, match=r"No class 7: .* 0 to 6"):
        model.attribute(cache, [0, 7, 1])
    with pytest.raises(VitscopeError, match="No class -1"):
        model.attribute(cache, 0, -1)
    with pytest.raises(VitscopeError, match=r"expected whole numbers \(3,\), one for all or one per image"):
        model.attribute(cache, [1, 2])
    for classes in ("cat", None, [[1], [2, 3]]):
        with pytest.raises(VitscopeError, match=r"classes=.*expected whole numbers \(3,\)"):
            model.attribute(cache, classes)
    with pytest.raises(VitscopeError, match="is no cache: expected"):
        model.attribute(model.run_with_cache(images), 1)
    with pytest.raises(VitscopeError, match="token='class': expected a number"):
        cache.decompose(token="class")
    with pytest.raises(VitscopeError, match="there are 17 tokens"):
        cache.decompose(token=17)
    with pytest.raises(VitscopeError, match="2 blocks, 0 to 1"):
        cache.decompose(block=2)
    with pytest.raises(MissingPointError, match=r"No part 'blocks.1.mpl'.*blocks.1.mlp"):
        cache.decompose(0)["blocks.1.mpl"]
    _, some = model.run_with_cache(images, "blocks.*.hook_mlp_out")
    with pytest.raises(MissingPointError, match="hook_resid_pre was not asked for"):
        model.attribute(some, 1)
    with pytest.raises(VitscopeError, match="Only the cache of `run_with_cache`"):
        some.only(["blocks.0.hook_mlp_out"]).accumulated()
