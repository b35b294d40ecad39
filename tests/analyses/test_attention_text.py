"""Attention statistics of texts against a brute force over the float64 pattern of each text alone."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from vitscope.analyses.attention import Attention
from vitscope.analyses.attention_facts import AttentionFacts, attention_facts
from vitscope.analyses.attention_panel import attention_panel
from vitscope.analyses.attention_text import CAUSAL, seen_keys
from vitscope.analyses.one_pass import measure
from vitscope.models import open_model

sys.path.insert(0, str(Path(__file__).parents[1]))
from text_batches import SEPARATOR, text_batches, token_rows
from text_models import FAMILIES, build

LENGTHS = (12, 20, 3, 12, 1)


def tiny(family, dtype=torch.float64, separators=(SEPARATOR,)):
    model = open_model(build(family).to(dtype))
    model.layout = replace(model.layout, separators=separators)
    return model


def measured(model, batches):
    analysis = Attention()
    measure(model, batches, [analysis])
    return analysis


def brute_force(pattern, row, causal, window):
    """{(head, query, metric): value} of one text, from its pattern (H, N, N), query by query."""
    a, n = pattern.double().numpy(), len(row)
    kind = ["first" if i == 0 else "separator" if token == SEPARATOR else "text" for i, token in enumerate(row)]
    sees = [[j for j in range(n) if abs(i - j) < (window or n) and (j <= i or not causal)] for i in range(n)]
    found = {}
    for h in range(len(a)):
        for name in set(kind):
            queries = [i for i in range(n) if kind[i] == name]
            entropy = {i: -sum(x * math.log(x) for x in a[h, i] if x > 0) for i in queries}
            found[h, name, "entropy"] = np.mean(list(entropy.values()))
            shares = [entropy[i] / math.log(len(sees[i])) for i in queries if len(sees[i]) > 1]
            if shares:
                found[h, name, "entropy_normalised"] = np.mean(shares)
            found[h, name, "mass_first"] = np.mean([a[h, i, 0] for i in queries])
            found[h, name, "mass_self"] = np.mean([a[h, i, i] for i in queries])
            apart = [j for j in range(n) if kind[j] == "separator"]
            found[h, name, "mass_separator"] = np.mean([a[h, i, apart].sum() for i in queries])
        pairs = [(i, j) for i in range(n) for j in range(n) if kind[i] == kind[j] == "text"]
        if pairs:
            travelled = sum(a[h, i, j] * abs(i - j) for i, j in pairs)
            found[h, "text", "distance"] = travelled / sum(a[h, i, j] for i, j in pairs)
    return found


@pytest.mark.parametrize("family", ["bert", "llama", "modernbert", "gemma3"])
def test_statistics_are_those_of_a_brute_force_over_each_text_alone(family):
    model = tiny(family)
    table = measured(model, text_batches(LENGTHS)).tables()["attention"]
    expected = {}
    for row, batch in zip(token_rows(LENGTHS), text_batches(LENGTHS, [1] * len(LENGTHS))):
        with torch.no_grad():
            _, cache = model.run_with_cache(batch.inputs, "blocks.*.attn.hook_pattern")
        for block in range(2):
            window = model.layout.windows[block]
            found = brute_force(cache[f"blocks.{block}.attn.hook_pattern"][0], row, model.layout.causal, window)
            for key, value in found.items():
                expected.setdefault((block, *key), []).append(value)
    assert len(table) == len(expected)
    for row in table.itertuples():
        values = expected[row.block, row.head, row.query, row.metric]
        assert row.n == len(values)
        assert row.mean == pytest.approx(np.mean(values), rel=1e-9, abs=1e-12)
        assert row.std == pytest.approx(np.std(values), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("family", ["bert", "llama", "gemma3"])
def test_a_text_alone_and_padded_among_longer_ones_gives_the_same_tables(family):
    model = tiny(family)
    together, alone = (measured(model, text_batches(LENGTHS, sizes)) for sizes in ([5], [1] * 5))
    one, two = (x.tables()["attention"] for x in (together, alone))
    pd.testing.assert_frame_equal(one, two, rtol=1e-5, atol=1e-6)
    maps = [pd.concat(x.rows["maps_attention"]).sort_values(["image", "block", "col"]) for x in (together, alone)]
    pd.testing.assert_frame_equal(*(x.reset_index(drop=True) for x in maps), rtol=1e-5)


@pytest.mark.parametrize("family", ["bert", "gpt2", "modernbert", "mistral"])
def test_uniform_attention_has_the_values_of_the_uniform_column(family):
    model = tiny(family)
    with torch.no_grad():
        for name, parameter in model.module.named_parameters():
            if any(part in name for part in ("query", "key", "c_attn", "Wqkv", "q_proj", "k_proj")):
                parameter.zero_()
    table = measured(model, text_batches(LENGTHS)).tables()["attention"]
    np.testing.assert_allclose(table["mean"], table["uniform"], rtol=1e-9, atol=1e-12)
    assert set(table.query("metric == 'entropy_normalised'")["uniform"].round(9)) == {1.0}


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_query_is_said_to_see_is_where_its_attention_is(family):
    model = open_model(build(family))
    (batch,) = text_batches((9, 5, 12))
    with torch.no_grad():
        _, cache = model.run_with_cache(batch.inputs, "blocks.*.attn.hook_pattern")
    real = batch.valid[:, :, None]  # what padding looks at does not matter
    for block in range(2):
        seen = seen_keys(model.layout, block, batch.valid)
        for head in range(4):
            there = cache[f"blocks.{block}.attn.hook_pattern"][:, head] > 0
            assert torch.equal(there & real, seen)
    assert attention_facts(model) == AttentionFacts()  # known by its code, without a forward pass


def test_the_first_token_of_a_causal_model_has_nothing_to_choose_from():
    analysis = measured(tiny("llama"), text_batches(LENGTHS))
    assert analysis.remarks == [CAUSAL]
    table = analysis.tables()["attention"]
    first = table[table["query"] == "first"].groupby("metric")["mean"].unique().map(list).to_dict()
    assert first == {"entropy": [0.0], "mass_first": [1.0], "mass_self": [1.0], "mass_separator": [0.0]}


def test_maps_are_what_the_token_that_sees_the_whole_text_looks_at():
    for family, place in (("bert", 0), ("llama", -1)):
        model = tiny(family)
        rows = pd.concat(measured(model, text_batches(LENGTHS)).rows["maps_attention"])
        assert list(rows) == ["image", "map", "block", "row", "col", "value"]
        batch = text_batches(LENGTHS, [1] * 5)[1]
        with torch.no_grad():
            _, cache = model.run_with_cache(batch.inputs, "blocks.1.attn.hook_pattern")
        (pattern,) = cache.values()
        shown = rows.query("image == 1 and block == 1")
        assert shown["col"].tolist() == list(range(20))
        np.testing.assert_allclose(shown["value"], pattern[0, :, place].mean(0), rtol=1e-5)
        np.testing.assert_allclose(rows.groupby(["image", "block"])["value"].sum(), 1.0, rtol=1e-5)


def test_an_attention_with_a_forward_pass_of_its_own_is_tried_out_with_a_text():
    model = tiny("opt")
    attention = model.blocks[0].self_attn
    forward, calls = attention.forward, []

    def own(*args, **kwargs):
        calls.append(kwargs["hidden_states"].shape[1])
        return forward(*args, **kwargs)

    attention.forward = own
    assert attention_facts(model) == AttentionFacts()  # softmax, at the scale of the layout
    assert calls == [12]


def test_a_real_language_model_and_its_panel(shared, tmp_path):
    from vitscope.data import load_data
    from vitscope.runs import Run

    model = open_model(shared / "weights" / "stories260K")
    data = load_data("pydoc", unit="lines", min_chars=60, first=6, context=60)
    together, alone = (measured(model, data.batches(model.preprocess, size)) for size in (6, 1))
    one, two = (x.tables()["attention"] for x in (together, alone))
    pd.testing.assert_frame_equal(one, two, rtol=1e-3, atol=1e-5)
    figures = together.summary()
    assert figures["distance"].unit == "tokens"
    assert 0 < figures["mass_first"].value < 1
    run = Run.create(tmp_path / "run", {"label": "stories"}, kind="analyze")
    run.write_table("attention", one)
    panel = attention_panel({"stories": run})
    assert set(panel.figures) == {"attention", "attention_mass"}
    assert "sink" in panel.reading
    assert "tokens (95 %" in panel.findings[0].text
    assert "px" not in " ".join(finding.text for finding in panel.findings)
    run.close()
