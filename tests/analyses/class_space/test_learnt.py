"""Learnt lenses in the identifiability table: rows against brute force in float64, and the figure that shows them."""

from __future__ import annotations

import pytest
import torch

from vitscope.analyses import tables_of
from vitscope.analyses.class_space.identifiability import Identifiability
from vitscope.analyses.class_space.panels.learnt import draw_learnt, learnt_finding, with_lenses
from vitscope.analyses.one_pass import measure
from vitscope.models.learnt_lens import attach

TABLE = "class_space_identifiability"


def with_lens(tools, *kinds, **options):
    model = tools["build"](**options)
    for seed, kind in enumerate(kinds):
        tools["lively"](attach(model.module, kind), seed)
    return model


@torch.no_grad()
def oracle(model, batch, tools):
    """{(block, point, tokens): r of every token or image}, one by one in float64."""
    twin, found = tools["doubled"](model), {}
    _, cache = twin.run_with_cache(batch.images.double(), "blocks.*.hook_resid_post")
    for block in range(3):
        x = cache[f"blocks.{block}.hook_resid_post"]
        read = {"linear": twin.to_class_space(x, "linear", block)}  # (B, N, K)
        pooled = {"resid_post": x, "linear": x if block == 2 else twin.module.translators[block](x)}
        for point, y in pooled.items():
            y = twin.module.norm(y)
            y = y[:, 0] if model.layout.class_tokens else twin.module.fc_norm(y.mean(1))
            read[point, "whole"] = twin.module.head(y)[:, None]
        if "refined" in model.lenses:
            read["refined", "whole"] = twin.to_class_space(x, "refined", block)[:, None]
        for key, logits in read.items():
            true = logits.gather(2, batch.labels[:, None, None].expand(-1, logits.shape[1], 1))
            r = 1 - (logits > true).sum(-1).double() / logits.shape[-1]
            if key == "linear":
                found |= {(block, "linear", kind): r[:, span] for kind, span in model.layout.spans.items()}
            else:
                found[block, *key] = r
    return found


@pytest.mark.parametrize("options", [{}, {"class_token": False, "global_pool": "avg"}], ids=["class token", "pooled"])
def test_every_reading_of_a_learnt_lens_is_that_of_brute_force(options, tools):
    model = with_lens(tools, "linear", "refined", **options)
    batch, analysis = tools["make_batch"](model), Identifiability(permutations=9)
    measure(model, [batch], [analysis])
    table = tables_of(analysis)[TABLE].set_index(["block", "point", "tokens"])
    expected = oracle(model, batch, tools)
    assert {key for key in table.index if key[1] in ("linear", "refined") or key[2] == "whole"} - {
        (block, "linear", part) for block in range(3) for part in ("object", "context")
    } == expected.keys()
    for key, r in expected.items():
        assert table.loc[key, "mean"] == pytest.approx(float(r.mean()), abs=1e-9)
        assert table.loc[key, "rate"] == pytest.approx(100 * float((r == 1).double().mean()), abs=1e-9)
        assert table.loc[key, "n_images"] == 6
    for block in range(3):
        assert table.loc[(block, "refined", "whole"), "n_tokens"] == 6


def test_other_rows_are_those_of_the_model_without_its_lens(tools):
    plain, lensed = tools["build"](), with_lens(tools, "refined", "linear")
    batch, tables = tools["make_batch"](plain), []
    for model in (plain, lensed):
        analysis = Identifiability(permutations=9)
        measure(model, [batch], [analysis])
        tables.append(tables_of(analysis))
    rows = tables[1][TABLE]
    kept = rows[~rows["point"].isin(["linear", "refined"]) & (rows["tokens"] != "whole")].reset_index(drop=True)
    assert kept.equals(tables[0][TABLE])
    assert tables[1]["class_space_change"].equals(tables[0]["class_space_change"])


def test_the_control_has_nothing_to_say_of_a_learnt_lens(tools):
    model = with_lens(tools, "refined")
    model.source = {"name": "vit_tiny_patch16_224", "options": {"img_size": 28, "patch_size": 7, "in_chans": 1,
        "embed_dim": 32, "depth": 3, "num_heads": 4}}  # fmt: skip
    analysis = Identifiability(permutations=9, control="random")
    measure(model, [tools["make_batch"](model)], [analysis])
    table = tables_of(analysis)[TABLE]
    learnt = table["tokens"] == "whole"
    assert table.loc[learnt, "mean_control"].isna().all()
    assert table.loc[~learnt, "mean_control"].notna().all()
    assert {column for column in table if table[column].isna().any()} <= set(Identifiability.optional)


def test_the_figure_has_a_line_per_reading_and_the_sentence_the_largest_gain(tools):
    model = with_lens(tools, "refined", "linear")
    analysis = Identifiability(permutations=9)
    measure(model, [tools["make_batch"](model, n=12)], [analysis])
    rows = with_lenses({"one": tables_of(analysis)[TABLE]})
    figure = draw_learnt(rows)
    assert [len(axes.get_lines()) for axes in figure.axes] == [3, 3]
    assert "the plain projection in" in learnt_finding(rows["one"]).text
    assert with_lenses({"none": rows["one"].assign(tokens="class")}) == {}
