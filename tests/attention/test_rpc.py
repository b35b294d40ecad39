from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

sys.path.insert(0, str(Path(__file__).parent))
from attention_oracles import explicit_rpc, explicit_softmax, random

from vitscope.attention import create_attention, rpc_attention, symmetric_attention
from vitscope.attention.rpc import VARIANTS, RPCOptions, rpc_threshold
from vitscope.errors import VitscopeError

K, V, Q = (random(2, 3, 17, 8, seed=s) for s in (0, 1, 2))


@pytest.mark.parametrize("case", range(32))
def test_code_computes_what_the_published_program_computes(shared, case):
    with np.load(shared / "golden" / "rpc_attention.npz") as file:
        part = {key.removeprefix(f"{case}_"): torch.from_numpy(file[key]) for key in file if key.startswith(f"{case}_")}
    heads, iterations, lambd = part["params"].tolist()
    layer = create_attention(
        "rpc", 48, int(heads), qkv_bias=True, dtype=torch.float64, iterations=int(iterations), lambd=lambd
    )
    names = {"qkv.weight": "kv_weight", "qkv.bias": "kv_bias", "proj.weight": "proj_weight", "proj.bias": "proj_bias"}
    layer.load_state_dict({name: part[key] for name, key in names.items()})
    assert (layer(part["x"]) - part["y"]).abs().max() < 1e-9


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("iterations", "lambd"), [(1, 0.3), (2, 0.1), (4, 0.25), (5, 1.0)])
def test_every_variant_is_its_algorithm_written_out(variant, symmetric, iterations, lambd):
    q = None if symmetric else Q
    settings = {"iterations": iterations, "lambd": lambd, "variant": variant}
    bias = random(1, 3, 17, 17, seed=3)
    expected = explicit_rpc(K, V, q, bias=bias, **settings)
    torch.testing.assert_close(rpc_attention(K, V, q, bias=bias, **settings), expected, rtol=1e-10, atol=1e-10)


def test_the_cases_above_have_outliers_to_find():
    """Guards the test before: with an empty S the variants would not differ in their thresholds."""
    for variant in VARIANTS:
        share = (K.abs() > rpc_threshold(K, 0.25, variant)).double().mean()
        assert 0.02 < share < 0.9


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_iteration_with_an_empty_s_is_symmetric_attention(variant):
    # bit for bit: K - 0 is K
    assert torch.equal(rpc_attention(K, V, iterations=1, lambd=1e6, variant=variant), symmetric_attention(K, V))


@pytest.mark.parametrize("variant", ["paper", "exact"])
def test_causal_rpc_keeps_no_matrix_of_tokens_by_tokens_for_the_backward_pass(variant):
    k, v = (torch.randn(1, 2, 256, 16, requires_grad=True) for _ in range(2))
    sizes: list[int] = []

    def keep(x: torch.Tensor) -> torch.Tensor:
        sizes.append(x.untyped_storage().nbytes() // x.element_size())
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        rpc_attention(k, v, iterations=4, lambd=4.0, variant=variant, is_causal=True).sum().backward()
    assert max(sizes) == 2 * 256 * 16  # a tensor of keys; one head's matrix would be 256 x 256


@pytest.mark.parametrize("iterations", [2, 3, 4])
def test_with_an_empty_s_code_attends_with_sums_of_earlier_outputs_less_keys(iterations):
    """While S = 0, the keys of iteration k + 1 are L_1 + ... + L_k - (k - 1) K: value space and key space mixed."""
    lows = [explicit_softmax(K, K, V)]
    for k in range(1, iterations):
        keys = sum(lows) - (k - 1) * K
        lows.append(explicit_softmax(keys, keys, V))
    got = rpc_attention(K, V, iterations=iterations, lambd=1e6, variant="code")
    torch.testing.assert_close(got, lows[-1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_thresholds_of_code_and_paper_move_in_opposite_directions_with_the_size_of_keys(scale):
    for variant, power in (("code", -1), ("paper", 1), ("exact", 1)):
        ratio = rpc_threshold(scale * K, 4.0, variant) / rpc_threshold(K, 4.0, variant)
        torch.testing.assert_close(ratio, torch.full_like(ratio, scale**power))


def test_share_of_outliers_among_gaussian_keys_as_measured_from_the_formulas():
    """ViT-Tiny's shape, lambda 4: `code` goes from none to most as keys grow, `paper` finds none at any size."""
    keys = random(1, 3, 197, 64)
    for size, expected in ((0.3, 0.0), (1.0, 0.0002), (2.0, 0.35), (4.0, 0.81)):
        share = ((size * keys).abs() > rpc_threshold(size * keys, 4.0, "code")).double().mean().item()
        assert share == pytest.approx(expected, abs=0.03)
        assert not ((size * keys).abs() > rpc_threshold(size * keys, 4.0, "paper")).any()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("symmetric", [True, False])
def test_gradients_are_those_of_finite_differences(variant, symmetric):
    k, v, q = (random(1, 2, 5, 4, seed=s).requires_grad_() for s in (4, 5, 6))
    lambd = 0.3 if variant == "code" else 0.15

    def run(k, v, q):
        return rpc_attention(k, v, None if symmetric else q, iterations=3, lambd=lambd, variant=variant)

    if symmetric:
        assert gradcheck(lambda k, v: run(k, v, None), (k, v))
    else:
        assert gradcheck(run, (k, v, q))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-12])
def test_keys_of_zero_give_finite_outputs_and_gradients(variant, dtype, size):
    k = (size * random(1, 2, 5, 4)).to(dtype).requires_grad_()
    v = random(1, 2, 5, 4, seed=1).to(dtype).requires_grad_()
    out = rpc_attention(k, v, iterations=4, variant=variant)
    out.sum().backward()
    for tensor in (out, k.grad, v.grad):
        assert torch.isfinite(tensor).all()
    if variant == "code":  # S stays empty, so the first step is the mean of the values
        first = rpc_attention(k, v, iterations=1, variant=variant)
        torch.testing.assert_close(first, v.mean(-2, keepdim=True).expand_as(v))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_thresholds_of_zero_keys_stay_finite_in_half_precision(dtype):
    assert torch.isfinite(rpc_threshold(torch.zeros(1, 2, 5, 4, dtype=dtype), 4.0, "code")).all()


CAUSAL = torch.ones(17, 17, dtype=torch.bool).tril()
MASKS = {
    "flag": {"is_causal": True},
    "boolean": {"mask": CAUSAL},
    "additive": {"mask": torch.zeros(17, 17, dtype=torch.float64).masked_fill(~CAUSAL, -torch.inf)},
    "flag_and_bias": {"is_causal": True, "bias": random(1, 3, 17, 17, seed=8)},
}


@pytest.mark.parametrize("look", MASKS)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("variant", ["paper", "exact"])
def test_a_later_token_is_not_felt_by_earlier_ones(variant, symmetric, look):
    def run(k, v, q):
        q = None if symmetric else q
        return rpc_attention(k, v, q, iterations=4, lambd=0.2, variant=variant, **MASKS[look])

    before = run(K, V, Q)
    for t in (0, 7, 15):
        k, v, q = K.clone(), V.clone(), Q.clone()
        for x, size in ((k, 30.0), (v, 3.0), (q, 3.0)):  # a key large enough to change any mean over all tokens
            x[:, :, t + 1] += size
        after = run(k, v, q)
        assert (after - before)[:, :, : t + 1].abs().max() < 1e-12
        assert (after - before)[:, :, t + 1 :].abs().max() > 1e-3


@pytest.mark.parametrize("look", MASKS)
def test_code_refuses_to_hide_tokens_from_its_mu(look):
    with pytest.raises(VitscopeError, match="variant='paper' or 'exact'"):
        rpc_attention(K, V, variant="code", **MASKS[look])


def test_code_takes_a_bias_and_a_mask_that_hides_nothing():
    bias = random(1, 3, 17, 17, seed=9)
    assert torch.equal(rpc_attention(K, V, bias=bias), rpc_attention(K, V, mask=bias))


def test_dropout_acts_in_the_last_step_only():
    """With p near 1 the last step drops nearly everything; had an inner step dropped too, the rest would differ."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        keys = random(1, 1, 4, 4)
        identity = torch.eye(4, dtype=torch.float64)[None, None]
        dropped = rpc_attention(keys, identity, iterations=3, lambd=0.5, dropout_p=0.5)
    plain = rpc_attention(keys, identity, iterations=3, lambd=0.5)
    kept = dropped != 0
    assert 0 < kept.sum() < kept.numel()
    torch.testing.assert_close(dropped[kept], 2 * plain[kept])  # values are the identity: the output is the pattern


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "papr"}, "Did you mean paper"),
        ({"iterations": 0}, "at least 1"),
        ({"iterations": 2.5}, "whole number"),
        ({"iterations": True}, "whole number"),
        ({"lambd": -1.0}, "lambda >= 0"),
        ({"lambd": float("nan")}, "lambda >= 0"),
        ({"symmetric": "no"}, "true or false"),
    ],
)
def test_impossible_options_are_refused_by_name(options, message):
    with pytest.raises(VitscopeError, match=message):
        RPCOptions(**options)


def test_values_of_another_head_size_are_refused():
    with pytest.raises(VitscopeError, match="one shape"):
        rpc_attention(K, V[..., :4])
