"""Checkpoints in the form of the published programs: their names, a qkv of width 2C, a pickled Namespace."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest
import timm
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "attention"))
from attention_oracles import explicit_rpc, explicit_softmax, heads_of

from vitscope.attention import describe_attention
from vitscope.errors import WeightsError
from vitscope.models import open_model
from vitscope.models.published import load_published

SMALL = {"img_size": 32, "embed_dim": 24, "num_heads": 3, "depth": 3, "num_classes": 5}
TOKENS = 5
BLOCK = {
    "norm1.weight": (24,), "norm1.bias": (24,), "attn.qkv.weight": (48, 24), "attn.qkv.bias": (48,),
    "attn.proj.weight": (24, 24), "attn.proj.bias": (24,), "norm2.weight": (24,), "norm2.bias": (24,),
    "mlp.fc1.weight": (96, 24), "mlp.fc1.bias": (96,), "mlp.fc2.weight": (24, 96), "mlp.fc2.bias": (24,),
}  # fmt: skip
REST = {
    "cls_token": (1, 1, 24), "pos_embed": (1, TOKENS, 24), "patch_embed.proj.weight": (24, 3, 16, 16),
    "patch_embed.proj.bias": (24,), "norm.weight": (24,), "norm.bias": (24,), "head.weight": (5, 24), "head.bias": (5,),
}  # fmt: skip


def published_state(**changes):
    """The names and shapes that the published programs save; `changes` are per block."""
    shapes = {**REST, **{f"blocks.{i}.{k}": s for i in range(3) for k, s in {**BLOCK, **changes}.items()}}
    generator = torch.Generator().manual_seed(0)
    return {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def save(folder, state, **arguments):
    path = folder / "checkpoint.pth"
    content = {"model": state, "optimizer": {"state": {}}, "epoch": 3}
    if arguments:
        content["args"] = argparse.Namespace(model="deit_tiny_patch16_224", data_path="data", **arguments)
    torch.save(content, path)
    return path


def plain():
    return timm.create_model("deit_tiny_patch16_224", **SMALL)


@torch.no_grad()
def test_an_rpc_checkpoint_loads_with_the_settings_of_its_command_line(tmp_path):
    state = published_state()
    path = save(tmp_path, state, robust=True, num_iter=3, lambd=0.5, layer=1)
    module = load_published(plain(), path)
    rpc = {"layers": "1", "iterations": 3, "lambda": 0.5, "variant": "code", "symmetric": True}
    assert describe_attention(module) == [{"name": "symmetric", "layers": "0,2"}, {"name": "rpc", **rpc}]
    model = open_model(module)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    _, cache = model.run_with_cache(images, ["blocks.1.hook_resid_pre", "blocks.1.attn.hook_z"])
    x = module.blocks[1].norm1(cache["blocks.1.hook_resid_pre"])
    keys, values = (x @ state["blocks.1.attn.qkv.weight"].T + state["blocks.1.attn.qkv.bias"]).split(24, dim=-1)
    expected = explicit_rpc(heads_of(keys, 3), heads_of(values, 3), iterations=3, lambd=0.5, variant="code")
    torch.testing.assert_close(cache["blocks.1.attn.hook_z"], expected, rtol=1e-4, atol=1e-5)


def test_layer_minus_one_means_all_layers(tmp_path):
    module = load_published(plain(), save(tmp_path, published_state(), robust=True, num_iter=2, lambd=4.0, layer=-1))
    assert [(d["name"], d["layers"]) for d in describe_attention(module)] == [("rpc", "0-2")]


def test_a_symmetric_checkpoint_is_known_by_its_command_line(tmp_path):
    path = save(tmp_path, published_state(), robust=False, num_iter=1, lambd=0.0, layer=0)
    assert describe_attention(load_published(plain(), path)) == [{"name": "symmetric", "layers": "0-2"}]


@pytest.mark.parametrize(
    ("shape", "form"), [((1,), "scalar"), ((3, TOKENS, TOKENS), "matrix")], ids=["scalar", "matrix"]
)
def test_a_scaled_checkpoint_is_known_by_its_parameter(tmp_path, shape, form):
    state = published_state(**{"attn.qkv.weight": (72, 24), "attn.qkv.bias": (72,), "attn.s": shape})
    module = load_published(plain(), save(tmp_path, state))
    (description,) = describe_attention(module)
    assert (description["name"], description["form"], description["layers"]) == ("scaled", form, "0-2")
    assert torch.equal(module.blocks[2].attn.s, state["blocks.2.attn.s"])


def test_a_plain_checkpoint_stays_plain(tmp_path):
    state = published_state(**{"attn.qkv.weight": (72, 24), "attn.qkv.bias": (72,)})
    assert describe_attention(load_published(plain(), save(tmp_path, state))) == []


def test_a_checkpoint_that_does_not_tell_its_attention_is_not_guessed_at(tmp_path):
    path = save(tmp_path, published_state())
    with pytest.raises(WeightsError, match="does not say whether RPC was on"):
        load_published(plain(), path)
    module = load_published(plain(), path, attention="symmetric; rpc:layers=0,iterations=4,lambda=4")
    assert [d["name"] for d in describe_attention(module)] == ["rpc", "symmetric"]


def test_a_published_checkpoint_opens_by_name_with_its_own_attention(tmp_path):
    path = save(tmp_path, published_state(), robust=True, num_iter=3, lambd=0.5, layer=1)
    options = {k: v for k, v in SMALL.items() if k != "num_classes"}
    model = open_model("deit_tiny_patch16_224.fb_in1k", path, **options)
    assert model.source["attention"] == describe_attention(load_published(plain(), path))
    with pytest.raises(WeightsError, match="Say it: attention='symmetric'"):
        open_model("deit_tiny_patch16_224.fb_in1k", save(tmp_path, published_state()), **options)


def reconstruction(folder, **arguments):
    """A checkpoint of the program that logs the projection error: timm's names and shapes, and its own arguments."""
    state = published_state(**{"attn.qkv.weight": (72, 24), "attn.qkv.bias": (72,)})
    return state, save(folder, state, pi_reg=False, pi_reg_coef=0.1, wandb=False, **arguments)


TYPED = {k: v for k, v in SMALL.items() if k not in ("num_classes", "num_heads")}


def test_a_checkpoint_of_the_reconstruction_does_not_open_as_another_model(tmp_path):
    _, path = reconstruction(tmp_path)
    remedy = r"Type: --model-options num_heads=6 --attention standardised \(in Python: num_heads=6, attention='standard"
    for wrong in ("deit_tiny_patch16_224.fb_in1k", plain()):
        with pytest.raises(WeightsError, match=r"6 heads and standardised attention; .* 3 heads and softmax attention"):
            open_model(wrong, path, **(TYPED if isinstance(wrong, str) else {}))
    with pytest.raises(WeightsError, match=remedy):
        load_published(plain(), path)
    with pytest.raises(WeightsError, match="Type: --attention standardised "):
        open_model("deit_tiny_patch16_224.fb_in1k", path, num_heads=6, **TYPED)
    with pytest.raises(WeightsError, match="Type: --model-options num_heads=6 "):
        open_model("deit_tiny_patch16_224.fb_in1k", path, attention="standardised", **TYPED)


@torch.no_grad()
def test_with_what_it_says_to_type_the_answers_are_those_of_the_program(tmp_path):
    """Oracle: the last block written out with 6 heads and the deviation of a sample."""
    state, path = reconstruction(tmp_path)
    name = "deit_tiny_patch16_224.fb_in1k"
    model = open_model(name, path, num_heads=6, attention="standardised", **TYPED)
    points = ["blocks.2.hook_resid_pre", "blocks.2.attn.hook_z"]
    _, cache = model.run_with_cache(torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1)), points)
    x = model.module.blocks[2].norm1(cache[points[0]])
    qkv = (x @ state["blocks.2.attn.qkv.weight"].T + state["blocks.2.attn.qkv.bias"]).split(24, dim=-1)
    q, k, v = (heads_of(part, 6) for part in qkv)
    q, k = ((t - t.mean(-1, keepdim=True)) / t.std(-1, keepdim=True) for t in (q, k))
    torch.testing.assert_close(cache[points[1]], explicit_softmax(q, k, v), rtol=1e-4, atol=1e-5)
    assert [entry["name"] for entry in model.source["attention"]] == ["standardised"]


def test_what_is_typed_overrules_the_file(tmp_path):
    _, path = reconstruction(tmp_path)
    model = open_model("deit_tiny_patch16_224.fb_in1k", path, num_heads=3, attention="softmax", **TYPED)
    assert model.layout.heads == 3


def test_a_checkpoint_that_keeps_its_number_of_heads_is_held_to_it(tmp_path):
    state = published_state(**{"attn.qkv.weight": (72, 24), "attn.qkv.bias": (72,)})
    path = save(tmp_path, state, num_heads=4)
    with pytest.raises(WeightsError, match="Type: --model-options num_heads=4 "):
        open_model("deit_tiny_patch16_224.fb_in1k", path, **TYPED)
    assert open_model("deit_tiny_patch16_224.fb_in1k", path, num_heads=4, **TYPED).layout.heads == 4
