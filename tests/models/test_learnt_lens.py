"""Learnt lenses: heads under the published names, held against a plain implementation that knows only the weights."""

from __future__ import annotations

import pytest
import timm
import torch
from safetensors.torch import save_file

from vitscope.errors import UnsupportedModelError, VitscopeError, WeightsError
from vitscope.models import open_model
from vitscope.models.creation import sketch
from vitscope.models.learnt_lens import attach, kinds_of
from vitscope.models.readout import readout_logits

WIDTH, HEADS, DEPTH, GRID, CLASSES = 24, 3, 4, 3, 7
SIZES = {"img_size": 48, "embed_dim": WIDTH, "num_heads": HEADS, "depth": DEPTH}
BLOCK = {
    "norm1.weight": (WIDTH,), "norm1.bias": (WIDTH,), "attn.qkv.weight": (3 * WIDTH, WIDTH),
    "attn.qkv.bias": (3 * WIDTH,), "attn.proj.weight": (WIDTH, WIDTH), "attn.proj.bias": (WIDTH,),
    "norm2.weight": (WIDTH,), "norm2.bias": (WIDTH,), "mlp.fc1.weight": (4 * WIDTH, WIDTH),
    "mlp.fc1.bias": (4 * WIDTH,), "mlp.fc2.weight": (WIDTH, 4 * WIDTH), "mlp.fc2.bias": (WIDTH,),
}  # fmt: skip
HEAD = {
    "conv.weight": (WIDTH, WIDTH, 3, 3), "bn.weight": (WIDTH,), "bn.bias": (WIDTH,), "bn.running_mean": (WIDTH,),
    "bn.running_var": (WIDTH,), "bn.num_batches_tracked": (), "token_fc.weight": (WIDTH, WIDTH),
    "token_fc.bias": (WIDTH,),
}  # fmt: skip
REST = {
    "cls_token": (1, 1, WIDTH), "pos_embed": (1, GRID**2 + 1, WIDTH), "patch_embed.proj.weight": (WIDTH, 3, 16, 16),
    "patch_embed.proj.bias": (WIDTH,), "norm.weight": (WIDTH,), "norm.bias": (WIDTH,), "head.weight": (CLASSES, WIDTH),
    "head.bias": (CLASSES,),
}  # fmt: skip


def published_state():
    """Names and shapes of the published checkpoint, random numbers."""
    shapes = {**REST, **{f"blocks.{b}.{k}": s for b in range(DEPTH) for k, s in BLOCK.items()}}
    shapes |= {f"transformerheads.{b}.{k}": s for b in range(DEPTH - 1) for k, s in HEAD.items()}
    generator = torch.Generator().manual_seed(0)
    state = {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    for name in state:
        if name.endswith("running_var"):
            state[name] = state[name].abs() + 0.5
        if name.endswith("num_batches_tracked"):
            state[name] = torch.tensor(11)
    return state


def layer_norm(x, weight, bias, eps=1e-6):
    mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    return (x - mean) / (var + eps).sqrt() * weight + bias


def plain_logits(state, pictures):
    """All twelve, or here four, logits of the published model, from the weights alone: (blocks, B, classes)."""
    w = {name: value.to(pictures.dtype) for name, value in state.items()}
    b, found = len(pictures), []
    tiles = pictures.reshape(b, 3, GRID, 16, GRID, 16).permute(0, 2, 4, 1, 3, 5).reshape(b, GRID**2, -1)
    x = tiles @ w["patch_embed.proj.weight"].flatten(1).T + w["patch_embed.proj.bias"]
    x = torch.cat([w["cls_token"].expand(b, -1, -1), x], 1) + w["pos_embed"]
    for i in range(DEPTH):
        p = {name: w[f"blocks.{i}.{name}"] for name in BLOCK}
        y = layer_norm(x, p["norm1.weight"], p["norm1.bias"]) @ p["attn.qkv.weight"].T + p["attn.qkv.bias"]
        q, k, v = y.reshape(b, -1, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        shares = torch.softmax(q @ k.transpose(-1, -2) * (WIDTH // HEADS) ** -0.5, -1)
        x = x + (shares @ v).transpose(1, 2).flatten(2) @ p["attn.proj.weight"].T + p["attn.proj.bias"]
        y = layer_norm(x, p["norm2.weight"], p["norm2.bias"]) @ p["mlp.fc1.weight"].T + p["mlp.fc1.bias"]
        y = y * 0.5 * (1 + torch.erf(y / 2**0.5))
        x = x + y @ p["mlp.fc2.weight"].T + p["mlp.fc2.bias"]
        z = layer_norm(x, w["norm.weight"], w["norm.bias"])
        if i < DEPTH - 1:
            z = plain_refinement({name: w[f"transformerheads.{i}.{name}"] for name in HEAD}, z)
        else:
            z = z[:, 0]
        found.append(z @ w["head.weight"].T + w["head.bias"])
    return torch.stack(found)


def plain_refinement(h, z):
    """Head b of the published model, convolution and batch norm written out."""

    def convolved(f):  # (B, C, h, w)
        f = torch.nn.functional.pad(f, (1, 1, 1, 1))
        shifted = [f[:, :, i : i + GRID, j : j + GRID] for i in range(3) for j in range(3)]
        return torch.einsum("kbchw,dck->bdhw", torch.stack(shifted), h["conv.weight"].flatten(2))

    def normed(f):
        scale = h["bn.weight"] / (h["bn.running_var"] + 1e-5).sqrt()
        return (f - h["bn.running_mean"][:, None, None]) * scale[:, None, None] + h["bn.bias"][:, None, None]

    patches = z[:, 1:].reshape(len(z), GRID, GRID, WIDTH).permute(0, 3, 1, 2)
    f = normed(convolved(patches)).clamp(min=0)
    f = (normed(convolved(f)) + patches).clamp(min=0)
    return f.mean((2, 3)) + z[:, 0] @ h["token_fc.weight"].T + h["token_fc.bias"]


@pytest.fixture
def checkpoint(tmp_path):
    torch.save({"state_dict": {f"module.{k}": v for k, v in published_state().items()}}, tmp_path / "refined.pth")
    return tmp_path / "refined.pth"


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.float64, 1e-9)])
@pytest.mark.parametrize("name", ["deit_ensemble_16", "deit_base_patch16_224"])
@torch.no_grad()
def test_the_published_checkpoint_opens_strictly_and_all_its_heads_answer_as_published(name, dtype, close, checkpoint):
    model = open_model(name, checkpoint, **SIZES)
    assert model.lenses == ("refined",)
    assert "learnt lens" in " ".join(model.notes)
    model.module.to(dtype)
    pictures = torch.randn(2, 3, 48, 48, generator=torch.Generator().manual_seed(1), dtype=dtype)
    expected = plain_logits(published_state(), pictures)
    logits, cache = model.run_with_cache(pictures, "blocks.*.hook_resid_post")
    assert (logits - expected[-1]).abs().max() <= close * expected.abs().max()
    for block in range(DEPTH):
        found = model.to_class_space(cache[f"blocks.{block}.hook_resid_post"], head="refined", block=block)
        assert (found - expected[block]).abs().max() <= close * expected.abs().max()


def test_the_names_of_the_whole_model_are_the_published_ones():
    names = {*REST, *(f"blocks.{b}.{k}" for b in range(12) for k in BLOCK)}
    names |= {f"transformerheads.{b}.{k}" for b in range(11) for k in HEAD}
    module = sketch("deit_ensemble_16")
    assert module.state_dict().keys() == names
    assert module.transformerheads[10].conv.weight.shape == (768, 768, 3, 3)


def test_the_studies_models_have_the_studies_preprocessing():
    refined = open_model("deit_ensemble_16", "random", **SIZES).preprocess
    assert (refined.crop_pct, refined.crop_mode, refined.mean) == (0.875, "center", (0.485, 0.456, 0.406))
    cifar = open_model("vit_cifar_16", "random", **SIZES)
    assert cifar.num_classes == 100
    recipe = cifar.preprocess
    assert (recipe.crop_pct, recipe.crop_mode, recipe.mean, recipe.std) == (1.0, "squash", (0.5,) * 3, (0.5,) * 3)


def test_a_checkpoint_without_one_of_its_heads_is_refused(tmp_path):
    state = {k: v for k, v in published_state().items() if not k.startswith("transformerheads.1.")}
    torch.save({"state_dict": state}, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=r"8 missing \(transformerheads\.1\.bn\.bias"):
        open_model("deit_ensemble_16", tmp_path / "w.pth", **SIZES)


@torch.no_grad()
def test_a_new_linear_lens_is_the_plain_projection_and_a_trained_one_an_affine_map(tmp_path):
    module = timm.create_model("vit_tiny_patch16_224", num_classes=CLASSES, **SIZES).eval()
    attach(module, "linear")
    model = open_model(module)
    x = torch.randn(2, 10, WIDTH, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model.to_class_space(x, head="linear", block=1), model.to_class_space(x))
    generator = torch.Generator().manual_seed(1)
    for parameter in module.translators.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    translator = module.translators[1]
    moved = x + x @ translator.weight.T + translator.bias
    assert torch.allclose(model.to_class_space(x, head="linear", block=1), model.to_class_space(moved), atol=1e-5)
    assert torch.equal(model.to_class_space(x, head="linear", block=DEPTH - 1), model.to_class_space(x))
    save_file(module.state_dict(), tmp_path / "w.safetensors")
    again = open_model("vit_tiny_patch16_224", tmp_path / "w.safetensors", **SIZES)
    assert torch.equal(again.to_class_space(x, head="linear", block=0), model.to_class_space(x, "linear", 0))


@torch.no_grad()
def test_a_model_that_pools_has_refined_heads_without_a_class_token():
    module = timm.create_model("vit_medium_patch16_gap_256", num_classes=CLASSES, **SIZES).eval()
    attach(module, "refined")
    model = open_model(module)
    assert module.transformerheads[0].token_fc is None
    x = torch.randn(2, 9, WIDTH, generator=torch.Generator().manual_seed(0))
    h = {f"transformerheads.{k}": v for k, v in module.transformerheads[2].state_dict().items()}
    h = {name: h.get(f"transformerheads.{name}", torch.zeros(shape)) for name, shape in HEAD.items()}
    z = torch.cat([torch.zeros(2, 1, WIDTH), module.fc_norm(module.norm(x))], 1)
    expected = module.head(plain_refinement(h, z))
    assert torch.allclose(model.to_class_space(x, head="refined", block=2), expected, atol=1e-5)
    assert torch.equal(model.to_class_space(x, head="refined", block=-1), readout_logits(model, x))


def test_what_a_lens_cannot_read_is_refused_with_what_to_do():
    model = open_model("deit_ensemble_16", "random", **SIZES)
    with pytest.raises(VitscopeError, match="say which, block=0 to 3"):
        model.to_class_space(torch.zeros(1, 10, WIDTH), head="refined")
    with pytest.raises(VitscopeError, match="reads whole images, all 10 tokens"):
        model.to_class_space(torch.zeros(1, WIDTH), head="refined", block=0)
    with pytest.raises(UnsupportedModelError, match="has no linear lens: train one with"):
        model.to_class_space(torch.zeros(1, WIDTH), head="linear", block=0)
    distilled = timm.create_model("deit_tiny_distilled_patch16_224", **SIZES)
    with pytest.raises(UnsupportedModelError, match="two class tokens"):
        attach(distilled, "refined")
    attach(distilled, "linear")
    assert kinds_of(distilled) == ("linear",)
