from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from small_models import build

from vitscope.attention import list_attentions, parse_attention
from vitscope.attention.cost import count_flops, default_settings, measure_costs
from vitscope.attention.peak import peak_memory
from vitscope.cli import run
from vitscope.errors import VitscopeError

TOKENS, WIDTH, DEPTH = 17, 48, 2


@pytest.fixture(scope="module")
def costs():
    module = build()
    before = [b.attn for b in module.blocks]
    found = measure_costs(module, (3, 64, 64), default_settings(), batch=2, repeats=1)
    assert [b.attn for b in module.blocks] == before, "the model that is measured must stay as it was"
    assert all(p.grad is None for p in module.parameters())
    return {(cost.attention, cost.mode): cost for cost in found}


def test_every_attention_is_measured_in_both_modes(costs):
    names = {entry["name"] for text, _ in costs for entry in parse_attention(text)}
    assert names == set(list_attentions())
    assert {mode for _, mode in costs} == {"inference", "training"}
    assert all(cost.ms > 0 and cost.peak_bytes > 0 for cost in costs.values())


def test_flops_of_inference_are_those_of_the_formula(costs):
    """2 multiply-adds: patches, four projections of C x C, an MLP of two C x 4C, scores and mixing, the head."""
    patches = 2 * (TOKENS - 1) * 3 * 16 * 16 * WIDTH
    layer = 2 * TOKENS * (4 + 8) * WIDTH**2 + 4 * TOKENS**2 * WIDTH
    softmax = patches + DEPTH * layer + 2 * WIDTH * 5
    assert costs["softmax", "inference"].flops == softmax
    projection, attention = 2 * TOKENS * WIDTH**2, 4 * TOKENS**2 * WIDTH
    expected = {
        "symmetric": softmax - DEPTH * projection,
        "rpc": softmax + DEPTH * (3 * attention - projection),
        "symmetric; rpc:layers=0,iterations=4,lambda=4": softmax - DEPTH * projection + 3 * attention,
        "rpc:iterations=2,lambda=3": softmax + DEPTH * (attention - projection),
        "rpc:symmetric=false": softmax + DEPTH * 3 * attention,
        "scaled:form=scalar": softmax + DEPTH * attention,
        "scaled:form=matrix": softmax + DEPTH * attention // 2,
        "standardised": softmax,
    }
    assert {text: costs[text, "inference"].flops for text in expected} == expected


def test_parameters_are_counted(costs):
    softmax = costs["softmax", "inference"].parameters
    queries = WIDTH * (WIDTH + 1)
    for text in ("symmetric", "rpc"):
        assert costs[text, "inference"].parameters == softmax - DEPTH * queries
    assert costs["scaled:form=scalar", "training"].parameters == softmax + DEPTH
    assert costs["scaled:form=matrix", "training"].parameters == softmax + DEPTH * 3 * TOKENS**2


def test_training_costs_more_than_inference(costs):
    for text in ("softmax", "rpc"):
        assert costs[text, "training"].flops > 2 * costs[text, "inference"].flops
        assert costs[text, "training"].peak_bytes > costs[text, "inference"].peak_bytes


def test_peak_memory_is_that_of_the_tensors_that_live_at_once():
    def work():
        a = torch.zeros(1000, 1000)
        b = a + 1
        del a
        return b * 2

    assert peak_memory(work) == pytest.approx(2 * 4_000_000, rel=1e-3)


def test_flops_of_a_matrix_product():
    assert count_flops(lambda: torch.zeros(3, 5) @ torch.zeros(5, 7)) == 2 * 3 * 5 * 7


def test_the_command_prints_a_row_per_attention_and_mode(capfd):
    assert run(["cost", "test_vit", "--attention", "softmax", "rpc:layers=0", "--batch", "1", "--repeats", "1"]) == 0
    captured = capfd.readouterr()
    rows = [line.split() for line in captured.out.splitlines() if line.startswith(("softmax", "rpc"))]
    assert [row[:2] for row in rows] == [
        ["softmax", "inference"], ["rpc:layers=0", "inference"], ["softmax", "training"], ["rpc:layers=0", "training"],
    ]  # fmt: skip
    assert captured.err == "", "the profiler must be quiet"


def test_bad_input_is_answered(capfd):
    assert run(["cost", "test_vit", "--attention", "rcp"]) == 2
    assert "Did you mean rpc" in capfd.readouterr().err
    with pytest.raises(VitscopeError, match="at least 1"):
        measure_costs(build(), (3, 64, 64), ["softmax"], batch=0)


def test_the_command_takes_options_of_the_model(capsys):
    options = ["img_size=32", "depth=1", "embed_dim=24", "num_heads=3"]
    words = ["--model-options", *options, "--attention", "softmax", "--batch", "1", "--repeats", "1"]
    assert run(["cost", "vit_tiny_patch16_224", *words]) == 0
    printed = capsys.readouterr().out
    assert "1 blocks x 3 heads of 8" in printed
    assert printed.count("softmax ") == 2  # inference and training
