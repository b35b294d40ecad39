from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import timm
import torch
from timm.layers import Attention, AttentionRope

sys.path.insert(0, str(Path(__file__).parent))
from attention_oracles import explicit_rpc, random
from small_models import FAMILIES, build, images_for

from vitscope.attention import RPCAttention, SoftmaxAttention, SymmetricAttention, convert, create_attention
from vitscope.attention.registry import build_options
from vitscope.errors import UnsupportedModelError, VitscopeError
from vitscope.models import open_model

EVERY = {
    "softmax": {},
    "symmetric": {},
    "rpc": {"lambd": 0.3},
    "scaled": {"alpha": 0.2},
    "standardised": {},
}


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_softmax_in_our_frame_is_bit_for_bit_what_timm_computes(family):
    module = build(family)
    images = images_for(module)
    before = module(images)
    names = set(module.state_dict())
    convert(module, "softmax")
    assert torch.equal(module(images), before)
    assert set(module.state_dict()) == names


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "options", [{"variant": "code"}, {"variant": "exact", "symmetric": False}], ids=["sym", "asym"]
)
@torch.no_grad()
def test_rpc_sees_the_keys_values_and_bias_of_the_model(family, options):
    """Oracle: the algorithm written out, on k, v and bias as read from the unconverted model (after norms and RoPE)."""
    dtype = torch.float32 if family == "rope_mixed" else torch.float64  # timm mixes its frequencies in float32 only
    module = build(family).to(dtype)
    images = images_for(module, dtype=dtype)
    points = [f"blocks.0.attn.hook_{x}" for x in ("q", "k", "v", "bias")]
    _, cache = open_model(module).run_with_cache(images, points)
    q, k, v, bias = (cache[point].double() if point in cache else 0.0 for point in points)
    settings = {"iterations": 3, "lambd": 0.4, "variant": options["variant"]}
    expected = explicit_rpc(k, v, q if "symmetric" in options else None, bias=bias, width=48, **settings)
    convert(module, "rpc", layers=0, iterations=3, lambd=0.4, **options)
    _, cache = open_model(module).run_with_cache(images, "blocks.0.attn.hook_z")
    tolerance = 1e-9 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(cache["blocks.0.attn.hook_z"].double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("name", "options"), EVERY.items())
def test_no_parameter_is_left_without_a_gradient(family, name, options):
    """Distributed training waits for the gradient of every parameter."""
    module = convert(build(family), name, **options)
    module(images_for(module)).square().sum().backward()
    assert [key for key, parameter in module.named_parameters() if parameter.grad is None] == []


def grown(source_class, **options):
    """A timm attention module with every extra that its constructor offers, in float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return source_class(
            24, 4, attn_head_dim=5, scale_norm=True, gated=True, norm_layer=torch.nn.LayerNorm, **options
        ).double()


@pytest.mark.parametrize(
    "source",
    [
        grown(Attention, qk_norm=True, dim_out=10, proj_bias=False),
        grown(AttentionRope, qkv_fused=False, num_kv_heads=2, rotate_half=True),
    ],
    ids=["gated, norms, own head size, other output", "grouped keys, three projections, half rotation"],
)
@pytest.mark.parametrize("look", [{}, {"is_causal": True}, {"attn_mask": torch.ones(7, 7, dtype=torch.bool).tril()}])
def test_every_extra_of_timms_attention_is_carried_over(source, look):
    x = random(2, 7, 24)
    rope = {"rope": random(6, 10, seed=2)}
    look = {**look, **(rope if isinstance(source, AttentionRope) else {})}
    ours = SoftmaxAttention.from_timm(source, build_options(SoftmaxAttention, {}))
    assert torch.equal(ours(x, **look), source(x, **look))


def test_an_attention_of_ones_own_that_puts_tokens_before_heads_is_told_the_shape():
    class TokensFirst(SoftmaxAttention):
        def attend(self, q, k, v, **look):
            return super().attend(q, k, v, **look).transpose(1, 2)

    module = TokensFirst(16, num_heads=2)
    with pytest.raises(VitscopeError, match=r"TokensFirst.attend returned \(1, 5, 2, 8\): expected \(1, 2, 5, 8\)"):
        module(torch.zeros(1, 5, 16))


def test_grouped_keys_cannot_be_queries():
    source = grown(AttentionRope, qkv_fused=False, num_kv_heads=2)
    with pytest.raises(UnsupportedModelError, match="copies of each other"):
        SymmetricAttention.from_timm(source, build_options(SymmetricAttention, {}))


def test_a_causal_layer_does_not_feel_later_tokens():
    layer = create_attention("rpc", 24, 3, dtype=torch.float64, variant="exact", lambd=0.3)
    x = random(2, 7, 24)
    changed = x.clone()
    changed[:, 5] += 10
    difference = (layer(changed, is_causal=True) - layer(x, is_causal=True)).abs().amax((0, 2))
    assert difference[:5].max() < 1e-12 < 1e-3 < difference[5:].min()


@pytest.mark.parametrize(("name", "options"), [("rpc", {"lambd": 0.3}), ("scaled", {"alpha": 0.2})])
def test_a_compiled_layer_gives_the_same_outputs_and_gradients(name, options):
    """fullgraph: nothing in the attention makes the compiler fall back."""
    layer = create_attention(name, 24, 3, **options)
    x = random(2, 6, 24).float()
    compiled = torch.compile(copy.deepcopy(layer), backend="aot_eager", fullgraph=True)
    for module in (layer, compiled):
        module(x).square().sum().backward()
    torch.testing.assert_close(compiled(x), layer(x))
    for expected, got in zip(layer.parameters(), compiled.parameters()):
        torch.testing.assert_close(got.grad, expected.grad)


@pytest.mark.parametrize(("name", "options"), EVERY.items())
def test_gradient_checkpointing_changes_no_gradient(name, options):
    module = convert(build().double(), name, **options).train()
    images = images_for(module, dtype=torch.float64)
    plain = copy.deepcopy(module)
    module.set_grad_checkpointing(True)
    for model in (module, plain):
        model(images).square().sum().backward()
    for expected, got in zip(plain.parameters(), module.parameters()):
        torch.testing.assert_close(got.grad, expected.grad)


@pytest.mark.parametrize("family", ["plain", "qk_norm", "eva02", "beit", "relpos"])
@pytest.mark.parametrize(("name", "options"), EVERY.items())
def test_float16_autocast_gives_half_precision_of_the_same_result(name, options, family):
    """bfloat16 takes the same road; CPUs without its instructions cannot run it."""
    module = convert(build(family), name, **options)
    images = images_for(module)
    expected = module(images)
    with torch.autocast("cpu", dtype=torch.float16):
        got = module(images)
    assert got.dtype == torch.float16
    assert (got - expected).norm() / expected.norm() < 0.03
    got.float().square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in module.parameters())


@pytest.mark.parametrize(("name", "options"), EVERY.items())
@torch.no_grad()
def test_dropout_acts_in_training_only(name, options):
    layer = create_attention(name, 24, 3, attn_drop=0.5, **options)
    x = random(1, 6, 24).float()
    with torch.random.fork_rng(devices=[]):
        assert not torch.equal(layer.train()(x), layer(x))
    assert torch.equal(layer.eval()(x), layer(x))


@torch.no_grad()
def test_no_matrix_of_all_pairs_of_tokens_is_made():
    """The largest tensor that a forward pass makes is the one of the projection."""
    from torch.utils._python_dispatch import TorchDispatchMode

    sizes = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            sizes.extend(t.numel() for t in (out if isinstance(out, tuple) else (out,)) if isinstance(t, torch.Tensor))
            return out

    tokens, x = 400, torch.zeros(1, 400, 24)
    for name in ("symmetric", "rpc", "scaled"):
        sizes.clear()
        with Watch():
            create_attention(name, 24, 3)(x)
        assert max(sizes) <= 3 * 24 * tokens < tokens * tokens


def test_deep_copies_are_apart_and_alike():
    """Averaged weights (EMA) are deep copies."""
    module = convert(build(), "rpc", layers=1)
    twin = copy.deepcopy(module)
    assert isinstance(twin.blocks[1].attn, RPCAttention)
    images = images_for(module)
    expected = module(images)
    with torch.no_grad():
        module.blocks[1].attn.qkv.weight.zero_()
    assert torch.equal(twin(images), expected)


def test_timm_still_knows_its_model():
    """What timm does with a built model goes on working: reset of the head, groups of parameters, pruning of names."""
    from timm.optim import param_groups_layer_decay

    module = convert(build(depth=3), "rpc", layers="0-1")
    module.reset_classifier(7)
    assert module(images_for(module)).shape == (2, 7)
    groups = param_groups_layer_decay(module, weight_decay=0.05)
    assert sum(len(g["params"]) for g in groups) == len(list(module.parameters()))
    assert isinstance(timm.utils.ModelEmaV3(module).module.blocks[0].attn, RPCAttention)
