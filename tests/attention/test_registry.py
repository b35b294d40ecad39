"""Facts that hold for every registered attention, because it is registered."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, is_dataclass

import pytest
import timm
import torch

from vitscope.attention import AttentionModule, create_attention, list_attentions, register_attention, softmax_attention
from vitscope.attention.registry import attention_class, build_options, plain_options
from vitscope.errors import VitscopeError

TIMM = {"qkv_bias": True, "qk_norm": True, "scale_norm": True, "gated": True, "norm_layer": torch.nn.LayerNorm}
CASES = [(name, {}) for name in list_attentions()] + [
    ("rpc", {"symmetric": False}),
    ("rpc", {"variant": "exact"}),
    ("scaled", {"form": "matrix", "tokens": 6}),
]


def test_the_five_attentions_are_there():
    assert {"softmax", "symmetric", "rpc", "scaled", "standardised"} <= set(list_attentions())


@pytest.mark.parametrize(("name", "options"), CASES)
def test_an_attention_takes_timms_constructor_and_gives_tokens_back(name, options):
    layer = create_attention(name, 24, 3, **TIMM, **options)
    x = torch.randn(2, 6, 24, generator=torch.Generator().manual_seed(0), requires_grad=True)
    out = layer(x)
    out.square().sum().backward()
    assert out.shape == x.shape
    assert all(p.grad is not None for p in layer.parameters()), "a parameter without gradient stalls DDP"


@pytest.mark.parametrize(("name", "options"), CASES)
def test_an_attention_prints_its_options(name, options):
    layer = create_attention(name, 24, 3, **options)
    for key, value in plain_options(layer.options).items():
        assert f"{key}={value}" in repr(layer)


@pytest.mark.parametrize("name", list_attentions())
def test_options_are_frozen_and_come_back_from_their_plain_values(name):
    cls = attention_class(name)
    assert is_dataclass(cls.Options)
    options = cls.Options()
    assert build_options(cls, plain_options(options)) == options
    for field in fields(options):
        with pytest.raises(FrozenInstanceError):
            setattr(options, field.name, None)


def test_a_misspelt_name_or_option_is_answered_with_the_nearest():
    with pytest.raises(VitscopeError, match="Did you mean symmetric"):
        create_attention("symetric", 24)
    with pytest.raises(VitscopeError, match=r"no option 'iteration'\. Did you mean iterations"):
        create_attention("rpc", 24, iteration=3)
    with pytest.raises(VitscopeError, match="It takes none"):
        create_attention("softmax", 24, 3, lambd=1.0)


def test_building_an_attention_draws_the_random_numbers_of_timms_own():
    """Same seed, same keys and values: comparisons between attentions start from the same weights."""
    for name in ("softmax", "symmetric", "rpc", "scaled", "standardised"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            reference = timm.layers.Attention(24, 3)
            after = torch.get_rng_state()
            torch.manual_seed(3)
            layer = create_attention(name, 24, 3)
            assert torch.equal(torch.get_rng_state(), after)
        assert torch.equal(layer.qkv.weight[-48:], reference.qkv.weight[-48:])
        assert torch.equal(layer.proj.weight, reference.proj.weight)


def test_a_new_attention_is_one_function_and_one_class():
    @register_attention("uniform")
    class Uniform(AttentionModule):
        def attend(self, q, k, v, **look):
            return softmax_attention(0 * q, k, v, **look)

    layer = create_attention("uniform", 24, 3)
    out = layer(torch.randn(2, 6, 24, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(out, out[:, :1].expand_as(out))  # every token gets the mean of the values
