from __future__ import annotations

import sys
from pathlib import Path

import pytest
import timm
import torch

sys.path.insert(0, str(Path(__file__).parent))
from small_models import FAMILIES, build, images_for

from vitscope.attention import (
    RPCAttention,
    SymmetricAttention,
    attn_layer,
    convert,
    create_with_attn_layer,
    parse_layers,
)
from vitscope.attention.conversion import format_layers
from vitscope.errors import UnsupportedModelError, VitscopeError
from vitscope.models import open_model

SMALL = {"img_size": 32, "embed_dim": 48, "num_heads": 3, "depth": 3, "num_classes": 5}


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_chosen_blocks_change_and_others_stay(family):
    module = build(family, depth=3)
    images, kept = images_for(module), [b.attn for b in module.blocks]
    before = module(images)
    convert(module, "rpc", layers="1", variant="exact", lambd=0.3)
    assert [isinstance(b.attn, RPCAttention) for b in module.blocks] == [False, True, False]
    assert module.blocks[0].attn is kept[0]
    assert module.blocks[2].attn is kept[2]
    after = module(images)
    assert torch.isfinite(after).all()
    assert not torch.allclose(after, before)


def test_trained_weights_are_reused():
    """The rows of keys and values are copied, everything else is the very parameter that was there."""
    module = build()
    old = module.blocks[0].attn
    weight, bias, proj = old.qkv.weight.clone(), old.qkv.bias.clone(), old.proj.weight
    convert(module, "rpc", layers=0)
    new = module.blocks[0].attn
    assert torch.equal(new.qkv.weight, weight[48:])
    assert torch.equal(new.qkv.bias, bias[48:])
    assert new.proj.weight is proj
    convert(module, "scaled", layers=1)
    assert module.blocks[1].attn.qkv.weight.shape == (144, 48)


def test_converting_draws_no_random_number_and_keeps_mode_type_and_frozen_parameters():
    module = build().double().train()
    module.blocks[0].attn.qkv.weight.requires_grad_(False)
    state = torch.get_rng_state()
    convert(module, "symmetric")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(m.training for m in module.modules())
    assert {p.dtype for p in module.parameters()} == {torch.float64}
    assert not module.blocks[0].attn.qkv.weight.requires_grad
    assert module.blocks[1].attn.qkv.weight.requires_grad


@torch.no_grad()
def test_the_users_hooks_on_an_attention_survive_its_conversion_and_can_be_removed():
    module, calls = build(), []
    handle = module.blocks[0].attn.register_forward_hook(lambda *_: calls.append(1))
    convert(module, "rpc", layers=0)
    module(images_for(module))
    handle.remove()
    module(images_for(module))
    assert len(calls) == 1


def test_settings_differ_from_layer_to_layer():
    module = build(depth=3)
    convert(module, "symmetric")
    convert(module, "rpc", layers="0", iterations=4)
    convert(module, "rpc", layers="1", iterations=2, variant="paper")
    kinds = [(type(b.attn), getattr(b.attn.options, "iterations", None)) for b in module.blocks]
    assert kinds == [(RPCAttention, 4), (RPCAttention, 2), (SymmetricAttention, None)]


def test_a_dropped_query_projection_does_not_come_back():
    module = convert(build(), "symmetric")
    with pytest.raises(
        UnsupportedModelError, match="'softmax' needs queries, but an earlier conversion to 'symmetric'"
    ):
        convert(module, "softmax")
    assert all(isinstance(b.attn, SymmetricAttention) for b in module.blocks)


def test_an_error_in_one_block_leaves_the_model_as_it_was():
    module = build(depth=3)
    convert(module, "symmetric", layers=2)
    before = [b.attn for b in module.blocks]
    with pytest.raises(UnsupportedModelError):
        convert(module, "scaled", layers="all")  # fails at block 2, which has no queries
    assert [b.attn for b in module.blocks] == before


def test_a_vitscope_model_remembers_what_it_was_converted_to():
    model = open_model(build())
    assert convert(model, "rpc", layers=1, iterations=2) is model
    assert model.source["attention"] == [
        {"name": "rpc", "layers": "1", "iterations": 2, "lambda": 4.0, "variant": "code", "symmetric": True}
    ]


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("all", [0, 1, 2, 3, 4, 5]),
        ("0", [0]),
        (3, [3]),
        ("0-3", [0, 1, 2, 3]),
        ("5, 0-1", [0, 1, 5]),
        ([2, 0, 2], [0, 2]),
        (range(4, 6), [4, 5]),
    ],
)
def test_layers_are_read(layers, expected):
    assert parse_layers(layers, 6) == expected


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ("0-6", "names block 6, but the model has 6 blocks, 0 to 5"),
        ("4-99999999999", "names block 6, 99999999999, but the model has 6 blocks"),
        (12, "names block 12, but the model has 6 blocks"),
        (-1, "For every block write 'all'"),
        ("-1", "cannot be read"),
        ("first", "cannot be read"),
        ("3-1", "write 1-3"),
        ("", "cannot be read"),
        ([], "No layers were chosen"),
        ([True], "expected block numbers"),
        (["0"], "expected block numbers"),
    ],
)
def test_layers_that_do_not_exist_or_make_no_sense_are_refused(layers, message):
    with pytest.raises(VitscopeError, match=message):
        parse_layers(layers, 6)


def test_layers_are_written_as_they_are_read():
    for layers in ([0], [0, 1, 2, 5], [1, 3, 5], list(range(12))):
        assert parse_layers(format_layers(layers), 12) == layers


def test_the_matrix_of_scaled_attention_fits_the_models_tokens():
    module = build("distilled")  # 16 image tokens, class and distillation token
    convert(module, "scaled", form="matrix")
    assert module.blocks[0].attn.s.shape == (3, 18, 18)
    with pytest.raises(VitscopeError, match="which has 18 tokens"):
        convert(module, "scaled", form="matrix", tokens=197)


@torch.no_grad()
def test_another_image_size_does_not_fit_the_matrix_and_says_so():
    module = build(dynamic_img_size=True)
    convert(module, "scaled", form="matrix")
    with pytest.raises(VitscopeError, match="17 tokens, the input has 3 heads and 26 tokens"):
        module(torch.zeros(1, 3, 80, 80))


@pytest.mark.parametrize("name", ["vit_base_patch16_xp_224", "vit_pwee_patch16_reg1_gap_256", "xcit_nano_12_p16_224"])
def test_models_that_cannot_be_converted_are_refused_with_a_reason(name):
    with torch.device("meta"):
        module = timm.create_model(name)
    with pytest.raises(UnsupportedModelError, match="not supported"):
        convert(module, "rpc")


def test_a_module_without_blocks_is_refused():
    with pytest.raises(UnsupportedModelError, match="Linear has no transformer blocks"):
        convert(torch.nn.Linear(2, 2), "rpc")


def test_an_attention_with_a_forward_pass_of_its_own_is_refused():
    class Noisy(timm.layers.Attention):
        def forward(self, x, attn_mask=None, is_causal=False):
            return super().forward(x) + 1

    module = timm.create_model("vit_tiny_patch16_224", attn_layer=Noisy, **SMALL)
    with pytest.raises(UnsupportedModelError, match="Noisy, cannot be converted"):
        convert(module, "rpc")


def test_a_compiled_model_is_refused():
    with pytest.raises(UnsupportedModelError, match="compiled"):
        convert(torch.compile(build()), "rpc")


def test_timms_slot_builds_what_convert_makes():
    torch_state = torch.get_rng_state()
    by_slot = create_with_attn_layer("vit_tiny_patch16_224", "rpc", {"iterations": 2}, **SMALL)
    torch.set_rng_state(torch_state)
    by_convert = convert(timm.create_model("vit_tiny_patch16_224", **SMALL), "rpc", iterations=2)
    assert by_slot.state_dict().keys() == by_convert.state_dict().keys()
    by_slot.load_state_dict(by_convert.state_dict())
    images = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(by_slot(images), by_convert(images))
    torch.set_rng_state(torch_state)


@pytest.mark.parametrize("name", ["beit_base_patch16_224", "eva02_tiny_patch14_224", "vit_relpos_small_patch16_224"])
def test_models_that_reject_the_slot_are_sent_to_convert(name):
    with torch.device("meta"), pytest.raises(UnsupportedModelError, match=r"use convert\(model, 'rpc'\)"):
        create_with_attn_layer(name, "rpc")


def test_a_model_that_ignores_the_slot_is_found_out():
    with torch.device("meta"), pytest.raises(UnsupportedModelError, match=r"block\(s\) 0-1 still have another"):
        create_with_attn_layer("vit_base_patch16_xp_224", "rpc", depth=2)


def test_a_wrong_option_in_the_slot_is_an_error_before_timm_sees_it():
    with pytest.raises(VitscopeError, match="no option 'iteration'"):
        attn_layer("rpc", iteration=2)
