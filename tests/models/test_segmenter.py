"""Segmenter on any ViT: against its formulas in float64, published names, other sizes, conversion of both parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from vitscope.attention import convert, convert_from_description, describe_attention
from vitscope.errors import DataError, UnsupportedModelError, VitscopeError, WeightsError
from vitscope.models import Model, describe, open_model
from vitscope.models.segmenter import segmenter

TINY: dict[str, Any] = {"image_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3}
PUBLISHED = "symmetric; rpc:layers=0,decoder=0,iterations=6,lambda=4"


def tiny(decoder: str = "mask", **options: Any) -> Model:
    model = open_model("segmenter", "random", num_classes=5, decoder=decoder, **{**TINY, **options})
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # nothing at zero, which would hide errors
        for parameter in model.module.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


def pictures(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2), dtype=dtype)


# --- the network written out ----------------------------------------------------------------------------------------


def block(w: dict[str, Tensor], p: str, x: Tensor, heads: int, eps: float) -> Tensor:
    width = x.shape[-1]

    def norm(name: str) -> Tensor:
        return F.layer_norm(x, (width,), w[f"{p}{name}.weight"], w[f"{p}{name}.bias"], eps)

    def linear(name: str, value: Tensor) -> Tensor:
        return value @ w[f"{p}{name}.weight"].T + w[f"{p}{name}.bias"]

    parts = linear("attn.qkv", norm("norm1")).chunk(3, -1)
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in parts)
    weights = (q @ k.transpose(-1, -2) * (width // heads) ** -0.5).softmax(-1)
    x = x + linear("attn.proj", (weights @ v).transpose(1, 2).flatten(2))
    return x + linear("mlp.fc2", F.gelu(linear("mlp.fc1", norm("norm2"))))


def written_out(w: dict[str, Tensor], images: Tensor, heads: int, patch: int, eps: float) -> Tensor:
    """Logits of patches (B, T, K), both decoders."""
    x = F.conv2d(images, w["encoder.patch_embed.proj.weight"], w["encoder.patch_embed.proj.bias"], stride=patch)
    x = x.flatten(2).transpose(1, 2)
    x = torch.cat([w["encoder.cls_token"].expand(len(x), -1, -1), x], 1) + w["encoder.pos_embed"]
    for i in range(2):
        x = block(w, f"encoder.blocks.{i}.", x, heads, eps)
    x = F.layer_norm(x, x.shape[-1:], w["encoder.norm.weight"], w["encoder.norm.bias"], eps)[:, 1:]
    if "decoder.head.weight" in w:
        return x @ w["decoder.head.weight"].T + w["decoder.head.bias"]
    x = x @ w["decoder.proj_dec.weight"].T + w["decoder.proj_dec.bias"]
    classes = w["decoder.cls_emb"].shape[1]
    x = torch.cat([x, w["decoder.cls_emb"].expand(len(x), -1, -1)], 1)
    for i in range(2):
        x = block(w, f"decoder.blocks.{i}.", x, 1, 1e-5)
    x = F.layer_norm(x, x.shape[-1:], w["decoder.decoder_norm.weight"], w["decoder.decoder_norm.bias"], 1e-5)
    patches, rows = x[:, :-classes] @ w["decoder.proj_patch"], x[:, -classes:] @ w["decoder.proj_classes"]
    cosines = torch.stack(
        [(patches * r[:, None]).sum(-1) / patches.norm(dim=-1) / r.norm(dim=-1)[:, None] for r in rows.unbind(1)], -1
    )
    return F.layer_norm(cosines, (classes,), w["decoder.mask_norm.weight"], w["decoder.mask_norm.bias"], 1e-5)


@torch.no_grad()
@pytest.mark.parametrize("decoder", ["linear", "mask"])
def test_it_computes_what_its_formulas_say(decoder: str) -> None:
    model, images = tiny(decoder), pictures(2, 3, 32, 32, dtype=torch.float64)
    module = model.module.double()
    logits = written_out(module.state_dict(), images, heads=3, patch=8, eps=1e-6)
    maps = logits.transpose(1, 2).reshape(2, 5, 4, 4)
    expected = F.interpolate(maps, (32, 32), mode="bilinear", align_corners=False)
    assert torch.allclose(model(images), expected, rtol=0, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("decoder", ["linear", "mask"])
def test_the_way_into_class_space_ends_at_the_models_own_answer(decoder: str) -> None:
    model, images = tiny(decoder), pictures(2, 3, 32, 32)
    _, cache = model.run_with_cache(images, ["blocks.*.hook_resid_post"])
    read = model.to_class_space(cache["blocks.1.hook_resid_post"][:, model.layout.image])  # (B, T, K)
    answer = F.interpolate(read.transpose(1, 2).unflatten(2, (4, 4)), (32, 32), mode="bilinear")
    assert torch.allclose(answer, model(images), atol=1e-5)
    assert model.to_class_space(cache["blocks.0.hook_resid_post"][:, 1:]).shape == (2, 16, 5)


def test_the_mask_decoder_reads_all_patches_or_none() -> None:
    model = tiny("mask")
    assert "all patches of a picture together" in (model.why_no_class_space() or "")
    with pytest.raises(UnsupportedModelError, match="16 image tokens"):
        model.to_class_space(torch.zeros(2, 17, 48))
    with pytest.raises(UnsupportedModelError, match="no way of its own"):
        model.rank_and_log_probability(torch.zeros(2, 16, 48), torch.zeros(2, 16, dtype=torch.int64))
    assert tiny("linear").why_no_class_space() is None


@torch.no_grad()
def test_reading_points_leaves_the_answer_as_it_is() -> None:
    model, images = tiny("mask", attention=PUBLISHED), pictures(2, 3, 32, 32)
    logits, cache = model.run_with_cache(images)
    assert torch.equal(logits, model(images))
    assert cache["blocks.1.attn.hook_pattern"].shape == (2, 3, 17, 17)
    assert cache["hook_embed"].shape == (2, 16, 48)
    assert cache["ln_final.hook_normalized"].shape == (2, 17, 48)
    middle = cache["blocks.0.hook_resid_pre"] + cache["blocks.0.hook_attn_out"]
    assert torch.allclose(middle, cache["blocks.0.hook_resid_mid"])


# --- sizes ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_a_picture_is_padded_to_whole_patches_and_cut_back() -> None:
    model, images = tiny("mask"), pictures(1, 3, 27, 41)
    padded = F.pad(images, (0, 48 - 41, 0, 32 - 27))
    assert torch.equal(model(images), model(padded)[..., :27, :41])


@torch.no_grad()
def test_other_sizes_get_interpolated_positions() -> None:
    from timm.layers import resample_abs_pos_embed

    model, images = tiny("linear"), pictures(1, 3, 48, 40)
    larger = segmenter(num_classes=5, decoder="linear", **{**TINY, "image_size": (48, 40)}).eval()
    state = dict(model.module.state_dict())
    state["encoder.pos_embed"] = resample_abs_pos_embed(state["encoder.pos_embed"], [6, 5], [4, 4])
    larger.load_state_dict(state)
    assert torch.allclose(model(images), larger(images), atol=1e-6)


@torch.no_grad()
def test_a_backbone_that_is_tied_to_one_size_says_so() -> None:
    small = {"depth": 1, "embed_dim": 48, "num_heads": 3}
    model = open_model("segmenter", "random", num_classes=2, backbone="beit_base_patch16_224", image_size=32, **small)
    assert model(pictures(1, 3, 32, 30)).shape == (1, 2, 32, 30)
    with pytest.raises(DataError, match=r"tied to pictures of 32x32.*image_size=\(48, 32\)"):
        model(pictures(1, 3, 40, 32))


@torch.no_grad()
@pytest.mark.parametrize(
    ("backbone", "options"),
    [
        ("small", {"image_size": 28, "patch_size": 7}),
        ("deit_tiny_distilled_patch16_224", {"image_size": 32}),
        ("eva02_tiny_patch14_224", {"image_size": 28}),
        ("vit_base_patch16_siglip_224", {"image_size": 32}),  # pools by attention
        ("vit_relpos_small_patch16_224", {"image_size": 32}),  # no class token, a norm behind the pooling
    ],
)
def test_any_vit_with_a_grid_is_a_backbone(backbone: str, options: dict[str, Any]) -> None:
    sizes = {"depth": 1, "embed_dim": 48, "num_heads": 3, **options}
    model = open_model("segmenter", "random", num_classes=3, backbone=backbone, **sizes)
    images = pictures(2, *model.preprocess.input_size)
    logits, cache = model.run_with_cache(images, "blocks.0.hook_resid_post")
    assert logits.shape == (2, 3, *images.shape[-2:])
    read = model.to_class_space(cache["blocks.0.hook_resid_post"][:, model.layout.image])
    rows, columns = model.layout.grid
    answer = F.interpolate(read.transpose(1, 2).unflatten(2, (rows, columns)), images.shape[-2:], mode="bilinear")
    assert torch.allclose(answer, logits, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"backbone": "lm-small"}, "a sequence, not a grid of patches"),
        ({"backbone": "swin_tiny_patch4_window7_224"}, "shifted windows"),
        ({"backbone": "naflexvit_base_patch16_gap"}, "grid is not fixed"),
        ({"backbone": "segmenter"}, "a segmenter already"),
        ({"backbone": "vit_tiny_patch16_225"}, "Did you mean vit_tiny_patch16_224"),
        ({"decoder": "maks"}, "Did you mean mask"),
        ({"num_classes": 0}, "at least one class"),
        ({"patch_drop_rate": 0.2}, "answers for all of them"),
        ({"decoder_heads": 7}, "cannot be built"),
        ({"stride": 16}, "give window="),
        ({"window": 16, "stride": 17}, "no pixel is left out"),
        ({"window": "large"}, "no size of a picture"),
        ({"backbone_weights": "nowhere.safetensors"}, "No weights at nowhere.safetensors"),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_reason(options: dict[str, Any], says: str) -> None:
    with pytest.raises(VitscopeError, match=says):
        open_model("segmenter", "random", **options)


def test_it_says_what_it_is() -> None:
    assert "Segmenter, mask decoder, 2 blocks x 3 heads" in repr(tiny("mask"))
    row = describe("segmenter")
    assert (row.supported, row.family, row.input, row.blocks) == (True, "Segmenter, mask decoder", "3x224x224", 12)


# --- weights --------------------------------------------------------------------------------------------------------


DEPTH = 3  # of 12: the names of the others are no different


def published_state(decoder: str = "mask", **changes: Any) -> dict[str, Tensor]:
    """The keys and shapes of a published file, of which the encoder's head is one."""
    width, classes, generator = 192, 7, torch.Generator().manual_seed(3)
    shapes: dict[str, tuple[int, ...]] = {
        "encoder.cls_token": (1, 1, width),
        "encoder.pos_embed": (1, 17, width),
        "encoder.patch_embed.proj.weight": (width, 3, 16, 16),
        "encoder.patch_embed.proj.bias": (width,),
        "encoder.norm.weight": (width,),
        "encoder.norm.bias": (width,),
        "encoder.head.weight": (1000, width),
        "encoder.head.bias": (1000,),
    }
    sides = [("encoder", DEPTH), ("decoder", 2)] if decoder == "mask" else [("encoder", DEPTH)]
    for side, depth in sides:
        for i in range(depth):
            for name, out, into in (
                ("attn.qkv", 3 * width, width),
                ("attn.proj", width, width),
                ("mlp.fc1", 4 * width, width),
                ("mlp.fc2", width, 4 * width),
            ):
                shapes[f"{side}.blocks.{i}.{name}.weight"] = (out, into)
                shapes[f"{side}.blocks.{i}.{name}.bias"] = (out,)
            for norm in ("norm1", "norm2"):
                shapes |= {f"{side}.blocks.{i}.{norm}.{kind}": (width,) for kind in ("weight", "bias")}
    if decoder == "mask":
        shapes["decoder.cls_emb"] = (1, classes, width)
        shapes |= {"decoder.proj_dec.weight": (width, width), "decoder.proj_dec.bias": (width,)}
        shapes |= {f"decoder.{name}": (width, width) for name in ("proj_patch", "proj_classes")}
        shapes |= {f"decoder.decoder_norm.{kind}": (width,) for kind in ("weight", "bias")}
        shapes |= {f"decoder.mask_norm.{kind}": (classes,) for kind in ("weight", "bias")}
    else:
        shapes |= {"decoder.head.weight": (classes, width), "decoder.head.bias": (classes,)}
    shapes |= changes
    return {key: 0.05 * torch.randn(shape, generator=generator) for key, shape in shapes.items()}


@torch.no_grad()
@pytest.mark.parametrize("decoder", ["linear", "mask"])
def test_a_published_file_opens_by_itself_and_says_what_was_left_out(tmp_path: Path, decoder: str) -> None:
    state = published_state(decoder)
    torch.save({"model": state, "epoch": 3}, tmp_path / "checkpoint.pth")
    model = open_model("segmenter", tmp_path / "checkpoint.pth", depth=DEPTH)
    assert model.num_classes == 7
    assert model.preprocess.input_size == (3, 64, 64)
    assert any("encoder.head left out" in note for note in model.notes)
    assert any("1e-5" in note for note in model.notes)
    own = model.module.state_dict()
    assert own.keys() == {key for key in state if not key.startswith("encoder.head")}
    assert all(torch.equal(own[key], state[key]) for key in own)
    if decoder == "linear":  # norms add 1e-5, also in the encoder
        images = pictures(1, 3, 64, 64, dtype=torch.float64)
        w = {key: value.double() for key, value in state.items()}
        x = F.conv2d(images, w["encoder.patch_embed.proj.weight"], w["encoder.patch_embed.proj.bias"], stride=16)
        x = torch.cat([w["encoder.cls_token"], x.flatten(2).transpose(1, 2)], 1) + w["encoder.pos_embed"]
        for i in range(DEPTH):
            x = block(w, f"encoder.blocks.{i}.", x, 3, 1e-5)
        x = F.layer_norm(x, (192,), w["encoder.norm.weight"], w["encoder.norm.bias"], 1e-5)[:, 1:]
        logits = x @ w["decoder.head.weight"].T + w["decoder.head.bias"]
        expected = F.interpolate(logits.transpose(1, 2).reshape(1, 7, 4, 4), (64, 64), mode="bilinear")
        model.module.double()
        assert torch.allclose(model(images), expected, rtol=0, atol=1e-10)


def test_a_published_file_with_a_distillation_token_finds_its_backbone(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"encoder.dist_token": (1, 1, 192), "encoder.pos_embed": (1, 18, 192)}
    changes |= {"encoder.head_dist.weight": (1000, 192), "encoder.head_dist.bias": (1000,)}
    torch.save({"model": published_state(**changes)}, tmp_path / "deit.pth")
    model = open_model("segmenter", tmp_path / "deit.pth", depth=DEPTH)
    assert model.layout.prefix_tokens == 2
    assert model(pictures(1, 3, 64, 64)).shape == (1, 7, 64, 64)


def test_a_file_with_something_missing_is_never_loaded_in_part(tmp_path: Path) -> None:
    state = published_state()
    del state["decoder.blocks.1.mlp.fc1.bias"]
    torch.save({"model": state}, tmp_path / "damaged.pth")
    with pytest.raises(WeightsError, match=r"1 missing \(decoder.blocks.1.mlp.fc1.bias\)"):
        open_model("segmenter", tmp_path / "damaged.pth", depth=DEPTH)
    for decoder, key in (("mask", "mask_norm.bias"), ("linear", "head.bias"), ("mask", "cls_emb")):
        state = published_state(decoder)
        del state[f"decoder.{key}"]
        torch.save({"model": state}, tmp_path / "headless.pth")
        with pytest.raises(WeightsError, match=f"decoder.{key}"):
            open_model("segmenter", tmp_path / "headless.pth", depth=DEPTH)
    torch.save({"model": published_state() | {"decoder.extra": torch.zeros(2)}}, tmp_path / "more.pth")
    with pytest.raises(WeightsError, match=r"1 unexpected \(decoder.extra\)"):
        open_model("segmenter", tmp_path / "more.pth", depth=DEPTH)
    torch.save({"model": published_state()}, tmp_path / "whole.pth")
    with pytest.raises(WeightsError, match="has 7 classes"):
        open_model("segmenter", tmp_path / "whole.pth", num_classes=150)


def test_a_published_rpc_file_wants_its_attention_said(tmp_path: Path) -> None:
    width = 192
    sides = [*((f"encoder.blocks.{i}") for i in range(DEPTH)), "decoder.blocks.0", "decoder.blocks.1"]
    changes: dict[str, Any] = {f"{side}.attn.qkv.weight": (2 * width, width) for side in sides}
    changes |= {f"{side}.attn.qkv.bias": (2 * width,) for side in sides}
    torch.save({"model": published_state(**changes)}, tmp_path / "rpc.pth")
    with pytest.raises(WeightsError, match=PUBLISHED):
        open_model("segmenter", tmp_path / "rpc.pth", depth=DEPTH)
    model = open_model("segmenter", tmp_path / "rpc.pth", depth=DEPTH, attention=PUBLISHED)
    rpc, symmetric = model.source["attention"]
    assert (rpc["name"], rpc["layers"], rpc["decoder"], rpc["iterations"]) == ("rpc", "0", "0", 6)
    assert (symmetric["name"], symmetric["layers"], symmetric["decoder"]) == ("symmetric", "1-2", "1")


@torch.no_grad()
@pytest.mark.parametrize("attention", [None, "symmetric"])
def test_the_backbones_weights_go_into_the_encoder(tmp_path: Path, attention: str | None) -> None:
    sizes = {**{k: v for k, v in TINY.items() if k != "image_size"}, "img_size": 64}
    vit = open_model("vit_tiny_patch16_224", "random", seed=5, num_classes=9, **sizes)
    save_file(vit.module.state_dict(), tmp_path / "vit.safetensors")
    weights = str(tmp_path / "vit.safetensors")
    same = {**TINY, "image_size": 64}
    model = open_model("segmenter", "random", backbone_weights=weights, attention=attention, num_classes=5, **same)
    if attention:
        convert(vit, "symmetric")
    images = pictures(1, 3, 64, 64)
    assert torch.allclose(model.module.patches(images), vit.module.forward_features(images)[:, 1:], atol=1e-6)
    assert any("a new decoder" in note for note in model.notes)
    assert model.source["backbone"]["weights"] == "vit.safetensors"
    resized = open_model("segmenter", "random", backbone_weights=weights, num_classes=5, **TINY)
    assert any("position embedding resized to 4x4" in note for note in resized.notes)
    with pytest.raises(WeightsError, match="backbone_weights=FILE"):
        open_model("segmenter", weights)
    with pytest.raises(UnsupportedModelError, match="has no backbone"):
        open_model("vit_tiny_patch16_224", "random", backbone_weights=weights)


@torch.no_grad()
def test_a_run_folder_opens_without_the_backbones_file(tmp_path: Path) -> None:
    kwargs = {"num_classes": 5, "decoder": "mask", "backbone_weights": "gone.safetensors", **TINY}
    model = tiny("mask", attention=PUBLISHED)
    (tmp_path / "checkpoints" / "best").mkdir(parents=True)
    save_file(model.module.state_dict(), tmp_path / "checkpoints" / "best" / "model.safetensors")
    described = {"name": "segmenter", "kwargs": kwargs, "attention": PUBLISHED, "classes": list("abcde")}
    described["preprocess"] = model.preprocess.to_dict()
    (tmp_path / "model.json").write_text(json.dumps(described))
    again, images = open_model(tmp_path), pictures(2, 3, 32, 32)
    assert torch.equal(again(images), model(images))
    assert again.num_classes == 5


# --- attention ------------------------------------------------------------------------------------------------------


def test_layers_of_encoder_and_decoder_are_named_apart() -> None:
    names = lambda module: [  # noqa: E731
        getattr(block.attn, "name", "timm") for block in [*module.encoder.blocks, *module.decoder.blocks]
    ]
    assert names(tiny("mask", attention="symmetric").module) == ["symmetric"] * 4
    assert names(tiny("mask", attention="symmetric:layers=1").module) == ["timm", "symmetric", "timm", "timm"]
    assert names(tiny("mask", attention="symmetric:decoder=0").module) == ["timm", "timm", "symmetric", "timm"]
    assert names(tiny("mask", attention=PUBLISHED).module) == ["rpc", "symmetric", "rpc", "symmetric"]
    assert tiny("mask", attention=PUBLISHED).module.decoder.blocks[0].attn.options.iterations == 6


def test_a_description_of_both_parts_makes_the_same_model_again() -> None:
    for text in (PUBLISHED, "symmetric:decoder=0,1", "scaled:form=matrix", "rpc:layers=0,1,decoder=1,iterations=2"):
        first = tiny("mask", attention=text)
        description = describe_attention(first.module)
        again = segmenter(num_classes=5, decoder="mask", **TINY)
        convert_from_description(again, json.loads(json.dumps(description)))
        assert describe_attention(again) == description
        again.load_state_dict(first.module.state_dict())


@torch.no_grad()
def test_matrices_of_scaled_attention_fit_the_tokens_of_each_part() -> None:
    model = tiny("mask", attention="scaled:form=matrix")
    assert model.module.encoder.blocks[0].attn.options.tokens == 17
    assert model.module.decoder.blocks[0].attn.options.tokens == 16 + 5
    assert model(pictures(1, 3, 32, 32)).isfinite().all()


def test_blocks_of_a_decoder_that_has_none_are_refused() -> None:
    with pytest.raises(VitscopeError, match="LinearSegmenter has none"):
        tiny("linear", attention="symmetric:decoder=0")
    with pytest.raises(VitscopeError, match="decoder='2' names block 2, but the decoder has 2 blocks"):
        tiny("mask", attention="symmetric:decoder=2")


def test_a_conversion_that_fails_in_the_decoder_changes_nothing() -> None:
    model = tiny("mask")
    convert(model, "symmetric", decoder=1)
    with pytest.raises(UnsupportedModelError, match="needs queries"):
        convert(model, "scaled")
    assert [getattr(b.attn, "name", "timm") for b in model.blocks] == ["timm", "timm"]


# --- learning -------------------------------------------------------------------------------------------------------


def test_every_weight_learns_and_positions_are_not_decayed() -> None:
    from timm.optim import create_optimizer_v2

    model = tiny("mask", attention=PUBLISHED)
    model.module.train()
    loss = F.cross_entropy(model(pictures(2, 3, 30, 30)), torch.randint(5, (2, 30, 30)))
    loss.backward()
    unused = [name for name, p in model.module.named_parameters() if p.grad is None]
    assert unused == []
    groups = create_optimizer_v2(model.module, "adamw", weight_decay=0.1).param_groups
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    assert decay[id(model.module.encoder.pos_embed)] == 0
    assert decay[id(model.module.decoder.cls_emb)] == 0
    assert decay[id(model.module.decoder.proj_patch)] == 0.1
