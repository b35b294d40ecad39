from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parent))
from small_models import FAMILIES, build, images_for

from vitscope.attention import convert, convert_from_description, describe_attention, parse_attention
from vitscope.errors import VitscopeError
from vitscope.models import open_model

RPC = {"name": "rpc", "layers": "0", "iterations": 2, "lambda": 3.0, "variant": "paper", "symmetric": True}


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_converted_model_is_rebuilt_from_its_description_and_weights(family):
    """Through JSON and a state dict, as a run folder keeps them."""
    module = build(family, depth=3, seed=0)
    convert(module, "symmetric", layers="0-1")
    convert(module, "rpc", layers="0", iterations=3, variant="exact", lambd=0.3)
    convert(module, "scaled", layers="2", form="matrix")
    module.blocks[2].attn.s += 0.01
    kept = json.loads(json.dumps(describe_attention(module)))
    again = convert_from_description(build(family, depth=3, seed=5), kept)
    again.load_state_dict(module.state_dict())
    images = images_for(module)
    assert torch.equal(again(images), module(images))
    assert describe_attention(again) == kept


@torch.no_grad()
def test_a_run_folder_with_a_converted_model_is_opened(tmp_path):
    options = {"img_size": 32, "embed_dim": 48, "num_heads": 3, "depth": 3, "num_classes": 5}
    module = convert_from_description(timm.create_model("vit_tiny_patch16_224", **options), "symmetric; rpc:layers=0")
    model = open_model(module.eval())
    description = {"name": "vit_tiny_patch16_224", "kwargs": options, "preprocess": model.preprocess.to_dict()}
    (tmp_path / "model.json").write_text(json.dumps({**description, "attention": describe_attention(module)}))
    (tmp_path / "checkpoints" / "last").mkdir(parents=True)
    save_file(module.state_dict(), tmp_path / "checkpoints" / "last" / "model.safetensors")
    opened = open_model(tmp_path)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(opened(images), model(images))
    assert describe_attention(opened) == describe_attention(module)


def test_a_plain_model_has_an_empty_description():
    assert describe_attention(build()) == []


def test_no_description_changes_nothing():
    module = build()
    before = [b.attn for b in module.blocks]
    assert convert_from_description(module, None) is module
    assert [b.attn for b in module.blocks] == before


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("symmetric", [{"name": "symmetric"}]),
        ("rpc:layers=0,iterations=2,lambda=3.0,variant=paper,symmetric=true", [RPC]),
        ("rpc: layers=0,2-3, iterations=4", [{"name": "rpc", "layers": "0,2-3", "iterations": 4}]),
        ("symmetric; rpc:layers=0", [{"name": "symmetric"}, {"name": "rpc", "layers": "0"}]),
        (RPC, [RPC]),
        ([RPC, RPC], [RPC, RPC]),
        (None, []),
        ("", []),
    ],
)
def test_descriptions_are_read_in_every_form(text, expected):
    assert parse_attention(text) == expected


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("rcp", "Did you mean rpc"),
        ("rpc:iteration=4", "no option 'iteration'"),
        ("rpc:4", "no KEY=VALUE"),
        ("rpc:iterations=4,5", "no KEY=VALUE"),
        ("rpc:iterations=many", "whole number"),
        ({"layers": "0"}, "described by its name"),
        ([["rpc"]], "described by its name"),
    ],
)
def test_descriptions_that_cannot_be_carried_out_are_refused(wrong, message):
    with pytest.raises(VitscopeError, match=message):
        parse_attention(wrong)


OWN = """
from dataclasses import dataclass

from vitscope.attention import AttentionModule, softmax_attention


@dataclass(frozen=True)
class CoolOptions:
    temperature: float = 2.0


class CoolAttention(AttentionModule):
    Options = CoolOptions

    def attend(self, q, k, v, **look):
        return softmax_attention(q / self.options.temperature, k, v, **look)
"""


@torch.no_grad()
def test_an_attention_of_ones_own_is_named_by_module_and_class(tmp_path, monkeypatch):
    (tmp_path / "cooling.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    (entry,) = parse_attention("cooling:CoolAttention:layers=0,2,temperature=4")
    assert entry == {"name": "cooling:CoolAttention", "layers": "0,2", "temperature": 4}
    assert parse_attention("cooling:CoolAttention") == [{"name": "cooling:CoolAttention"}]
    module = convert_from_description(build(depth=3, seed=0), [entry])
    kept = describe_attention(module)
    assert kept == [entry]
    again = convert_from_description(build(depth=3, seed=0), json.loads(json.dumps(kept)))
    images = images_for(module)
    assert torch.equal(again(images), module(images))
    assert not torch.equal(module(images), build(depth=3, seed=0)(images))
    with pytest.raises(VitscopeError, match="cannot be imported"):
        parse_attention("cooling:WarmAttention")
    with pytest.raises(VitscopeError, match="is not an attention"):
        parse_attention("cooling:CoolOptions")
    with pytest.raises(VitscopeError, match="no option 'temprature'"):
        parse_attention("cooling:CoolAttention:temprature=4")


def test_a_module_may_be_called_as_the_attention_in_it(tmp_path, monkeypatch):
    (tmp_path / "mild.py").write_text(
        OWN.replace("class CoolAttention", '@register_attention("mild")\nclass CoolAttention').replace(
            "import AttentionModule,", "import AttentionModule, register_attention,"
        )
    )
    monkeypatch.syspath_prepend(tmp_path)
    address = "mild:CoolAttention:temperature=4"
    for _ in range(2):  # the second time the name is known already
        assert [entry["temperature"] for entry in parse_attention(address)] == [4]
    with pytest.raises(VitscopeError, match="is no KEY=VALUE"):
        parse_attention("rpc:4")
