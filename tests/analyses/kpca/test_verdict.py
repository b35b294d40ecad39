"""Verdicts are right where the truth is known: on values made by the theorem, and on random ones."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from vitscope.analyses import measure
from vitscope.analyses.kpca.claims import FAILS, HOLDS, OPEN, judge
from vitscope.analyses.kpca.construction import constructed_values
from vitscope.analyses.kpca.verdict import verdict_table, verdicts
from vitscope.analyses.kpca.verdict_panel import verdict_panel
from vitscope.analyses.selection import choose_analyses
from vitscope.statistics.bootstrap import Mean


class Tables:
    """What a verdict reads of a run."""

    config: dict = {}  # noqa: RUF012
    parts = ()

    def __init__(self, tables: dict[str, pd.DataFrame]) -> None:
        self.tables = tables

    def table(self, name):
        return self.tables.get(name)

    def list_tables(self):
        return sorted(self.tables)


def tables_after(model, batches, *names) -> Tables:
    analyses = choose_analyses(names or ["kpca"])
    measure(model, batches, analyses)
    tables = {name: table for a in analyses for name, table in a.tables().items()}
    rows = {name: pd.concat(parts, ignore_index=True) for a in analyses for name, parts in a.rows.items()}
    return Tables(tables | rows)


@pytest.fixture(scope="module")
def wide_model(small_model):
    """65 tokens and heads of 8: room for axes to differ from chance."""
    return small_model(img_size=32, patch_size=4, embed_dim=16)


@pytest.fixture(scope="module")
def ordinary(wide_model, batches):
    return tables_after(wide_model, batches([6], size=32))


@pytest.fixture(scope="module")
def theorem(wide_model, batches):
    """The positive control: the same model with the values of the theorem in every head."""
    with wide_model.edits(constructed_values("kpca")):
        return tables_after(wide_model, batches([6], size=32))


@pytest.mark.parametrize(("low", "high", "word"), [
    (0.0, 0.005, HOLDS), (0.02, 0.03, FAILS), (0.005, 0.02, OPEN), (None, None, OPEN),
])  # fmt: skip
def test_a_claim_is_judged_by_the_whole_interval(low, high, word):
    assert judge(Mean(0.01, low, high, 5), most=0.01) == word


def test_where_the_theorem_is_built_in_its_claims_hold(theorem):
    found = {v.key: v for v in verdicts(theorem)}
    for key in ("bessel", "values_principal_overlap", "residual", "centre", "gamma"):
        assert found[key].verdict == HOLDS, found[key]
    assert found["bessel"].measured == 0
    assert found["values_principal_overlap"].measured == pytest.approx(1, abs=1e-4)
    assert "proves nothing" not in found["gamma"].why


def test_random_values_fail_what_the_theorem_s_values_pass(ordinary):
    found = {v.key: v for v in verdicts(ordinary)}
    for key in (
        "bessel",
        "values_optimal_cosine",
        "values_linear_cka",
        "values_principal_overlap",
        "residual",
        "gamma",
    ):
        assert found[key].verdict == FAILS, found[key]
    assert "impossible for a projection" in found["bessel"].why
    assert "proves nothing" in found["gamma"].why


def test_the_published_eigenvalue_is_impossible_whatever_is_measured(ordinary):
    verdict = next(v for v in verdicts(ordinary) if v.key == "eigenvalues")
    assert verdict.verdict == FAILS
    assert "at most 65" in verdict.why


def test_a_null_that_beats_the_learned_values_is_named(ordinary):
    images = ordinary.tables["kpca_values_images"].copy()
    learned, random = images["values"] == "learned", images["values"] == "random"
    images.loc[learned, "optimal_cosine"] = 0.2 + 0.001 * np.arange(learned.sum())
    images.loc[random, "optimal_cosine"] = 0.3
    run = Tables(ordinary.tables | {"kpca_values_images": images})
    verdict = next(v for v in verdicts(run) if v.key == "values_optimal_cosine")
    assert verdict.beaten
    assert "the null is better" in verdict.why
    panel = verdict_panel({"model": run})
    assert any("random values of the same norms match" in f.text for f in panel.findings)


def test_untrained_values_that_are_further_above_chance_are_named(ordinary):
    table = ordinary.tables["kpca_values"]
    found = {}
    for name, twin in (("nearer", 0.99), ("no nearer", 0.31)):
        random = table.assign(weights="random", mean=np.where(table["values"] == "learned", twin, 0.3))
        run = Tables(ordinary.tables | {"kpca_values": pd.concat([table, random], ignore_index=True)})
        found[name] = next(v for v in verdicts(run) if v.key == "values_principal_overlap")
    assert "training led away from the theory" in found["nearer"].why
    assert "training led away" not in found["no nearer"].why
    assert "random weights 0.990" in found["nearer"].null


def test_one_image_cannot_tell(small_model, batches):
    run = tables_after(small_model(), batches([1]), "kpca.reconstruction", "kpca.gamma")
    found = verdicts(run)
    assert {v.verdict for v in found} == {OPEN}
    assert all("no interval" in v.shown for v in found)


def test_each_analysis_alone_gives_its_own_verdicts(small_model, batches):
    expected = {
        "kpca.reconstruction": {"bessel", "size"},
        "kpca.spectrum": {"eigenvalues"},
        "kpca.norms": set(),
        "kpca.gamma": {"residual", "centre", "gamma"},
    }
    for name, keys in expected.items():
        assert {v.key for v in verdicts(tables_after(small_model(), batches([2]), name))} == keys


def test_the_training_curve_is_judged_by_where_output_and_feature_end(ordinary):
    table = ordinary.tables["kpca_reconstruction"]
    own = table[table["weights"] == "own"]
    apart = pd.concat([own.assign(epoch=e, split="test") for e in (0, 5)], ignore_index=True)
    together = apart.copy()
    together.loc[(together["epoch"] == 5) & (together["metric"] == "log10_ratio"), ["mean", "std"]] = (0.1, 0.05)
    words = {}
    for name, probe in (("apart", apart), ("together", together)):
        (verdict,) = verdicts(Tables({"probe_kpca_reconstruction": probe}))
        words[name] = verdict.verdict
        assert "From epoch 0 to 5" in verdict.why
    assert words == {"apart": FAILS, "together": HOLDS}


def test_the_panel_puts_models_side_by_side_and_escapes_their_names(ordinary, theorem):
    panel = verdict_panel({"<b>plain</b>": ordinary, "theorem": theorem})
    assert panel.order == 1
    assert "&lt;b&gt;" in panel.html
    assert "<b>" not in panel.html
    assert panel.html.count("does not hold</span>") >= 6
    assert panel.html.count(">holds</span>") >= 5
    assert set(panel.tables["kpca_verdicts"]["model"]) == {"<b>plain</b>", "theorem"}
    assert verdict_panel({"empty": Tables({})}) is None


def test_the_table_has_a_row_per_claim(ordinary):
    table = verdict_table(ordinary)
    assert list(table["key"]) == [
        "bessel", "size", "values_optimal_cosine", "values_linear_cka", "values_kernel_cka", "values_principal_overlap",
        "residual", "centre", "gamma", "eigenvalues",
    ]  # fmt: skip


def test_the_report_writes_the_verdicts_beside_the_tables_and_says_what_was_not_measured(ordinary, tmp_path):
    panel = verdict_panel({"m": ordinary})
    assert "--set kpca.control=random" in panel.reading
    ordinary.tables_dir = tmp_path
    for write in panel.write:
        write()
    written = pd.read_csv(tmp_path / "kpca_verdicts.csv")
    assert written["verdict"].tolist() == [v.verdict for v in verdicts(ordinary)]
