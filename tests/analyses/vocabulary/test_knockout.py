"""Knock-outs against forward passes written out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from vitscope.analyses import create_analysis, measure
from vitscope.analyses.vocabulary.knockout import hidden_keys
from vitscope.errors import VitscopeError


def masked_gpt2(module, ids, hidden, silent=None):
    """GPT-2 of one text (N,) written out: `hidden` (N, N) keys get no attention, head `silent` = (block, head) is 0."""
    n, config = len(ids), module.config
    x = module.transformer.wte.weight[ids] + module.transformer.wpe.weight[:n]
    size = config.n_embd // config.n_head
    blind = hidden | torch.ones(n, n, dtype=torch.bool).triu(1)
    for b, block in enumerate(module.transformer.h):
        q, k, v = block.attn.c_attn(block.ln_1(x)).split(config.n_embd, -1)
        heads = []
        for h in range(config.n_head):
            part = slice(h * size, (h + 1) * size)
            scores = q[:, part] @ k[:, part].T / math.sqrt(size) / (b + 1)  # scale_attn_by_inverse_layer_idx
            z = scores.masked_fill(blind, -math.inf).softmax(-1) @ v[:, part]
            heads.append(torch.zeros_like(z) if silent == (b, h) else z)
        x = x + block.attn.c_proj(torch.cat(heads, -1))
        x = x + block.mlp(block.ln_2(x))
    return module.lm_head(module.transformer.ln_f(x)).log_softmax(-1)


@pytest.fixture
def study(open_tiny, batch_of):
    model, batch = open_tiny("gpt2"), batch_of((9, 5, 1))
    analysis = create_analysis("vocabulary.knockout", distances=[1, 3, 20])
    measure(model, [batch], [analysis])
    return model, batch, analysis


def expected_sum(model, batch, hide, silent=None, first=0):
    total = count = 0
    for row, valid in zip(batch.inputs["input_ids"], batch.valid):
        ids = row[: int(valid.sum())]
        n = len(ids)
        place = torch.arange(n)
        with torch.no_grad():
            log_p = masked_gpt2(model.module, ids, hide(place[:, None], place[None]), silent)
        for i in range(first, n - 1):
            total, count = total + float(log_p[i, ids[i + 1]]), count + 1
    return total / count


def test_hidden_tokens_are_those_of_a_masked_forward_pass(study):
    model, batch, analysis = study
    rows = analysis.tables()["vocabulary_knockout_tokens"].set_index("distance")
    assert rows.index.tolist() == [0, 1, 3]  # no text has a token 20 before another
    nothing = lambda query, key: (query < 0) & (key < 0)  # noqa: E731
    hides = {
        0: lambda query, key: (key == 0) & (query > 0),
        1: lambda query, key: query - key == 1,
        3: lambda query, key: query - key == 3,
    }
    for distance, hide in hides.items():
        first = max(1, distance)
        row = rows.loc[distance]
        assert row["log_probability"] == pytest.approx(expected_sum(model, batch, nothing, first=first), abs=1e-9)
        assert row["log_probability_after"] == pytest.approx(expected_sum(model, batch, hide, first=first), abs=1e-9)
        assert row["change"] == pytest.approx(row["log_probability_after"] - row["log_probability"], abs=1e-9)
    assert rows["n_tokens"].tolist() == [10, 10, 6]


def test_a_silenced_head_is_one_whose_output_is_zero(study):
    model, batch, analysis = study
    rows = analysis.tables()["vocabulary_knockout_heads"]
    assert len(rows) == 2 * 4
    nothing = lambda query, key: (query < 0) & (key < 0)  # noqa: E731
    for row in rows.to_dict("records"):
        silent = row["block"], row["head"]
        assert row["log_probability_after"] == pytest.approx(expected_sum(model, batch, nothing, silent), abs=1e-9)
        assert row["change_low"] < row["change"] < row["change_high"]


def test_padding_changes_nothing_and_parts_merge(model, batch_of):
    together, alone, second = (create_analysis("vocabulary.knockout", distances=[1, 2]) for _ in range(3))
    measure(model, [batch_of((1, 5, 12))], [together])
    measure(model, [batch_of((1, 5))], [alone])
    measure(model, [batch_of((12,), 2)], [second])
    alone.merge(second)
    for key, sums in together.sums.items():
        assert sums.isfinite().all()
        assert torch.allclose(sums.double(), alone.sums[key].double(), atol=1e-5, rtol=0)


def test_the_model_is_as_it_was_and_a_token_always_sees_itself(study):
    model, batch, _ = study
    assert model.active_edits() == {}
    for distance in (0, 1, 2):
        hidden = hidden_keys(batch.valid, distance)
        assert not hidden.diagonal(dim1=1, dim2=2).any()
        assert not hidden[~batch.valid].any()


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True])
def test_distances_are_whole_numbers_from_one_on(wrong):
    with pytest.raises(VitscopeError, match="distances"):
        create_analysis("vocabulary.knockout", distances=[wrong])
