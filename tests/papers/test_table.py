from __future__ import annotations

import io
import math
import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import vitscope
from vitscope.errors import VitscopeError
from vitscope.papers import paper_table, written
from vitscope.papers.columns import EXAMPLE, full_name, parse_columns
from vitscope.papers.formats import escape
from vitscope.papers.measured import Measured
from vitscope.papers.table import Missing
from vitscope.runs import Run

TOP1 = {"value": 73.5, "unit": "%", "n": 1000, "note": ""}


def training(folder, seed, lr=0.1):
    config = {"label": "vit", "model": {"name": "vit", "weights": f"random, seed {seed}"}, "data": {"name": "digits"}}
    with Run.create(folder, {**config, "options": {"lr": lr, "seed": seed}}, kind="train") as run:
        run.write_summary({"train.test_accuracy": {"value": 70.0 + seed, "unit": "%", "n": 1000}})
        run.finish()
    return folder


def analysis(folder, model, top1=73.5, n=1000, analyses=("accuracy",), **more):
    config = {"label": model["name"], "model": model, "data": {"name": "digits"}, "seed": 0}
    with Run.create(folder, {**config, "analyses": {name: {} for name in analyses}, **more}, kind="analyze") as run:
        if "accuracy" in analyses:
            row = {"metric": "top1", "value": top1, "unit": "%", "low": top1 - 2.25, "high": top1 + 2}
            run.write_table("accuracy", pd.DataFrame([{**row, "interval": "Wilson", "n": n}]))
            run.write_summary({"accuracy.top1": {**TOP1, "value": top1, "n": n}})
        if "attack" in analyses:
            run.write_table("attack", attacks(steps=20), allow_nan=["accuracy", "accuracy_low", "accuracy_high"])
        run.finish()
    return folder


def attacks(steps):
    row = {"attack": "pgd", "norm": "linf", "n_images": 200, "options": f"steps {steps}", "protocol": "pixels"}
    row |= {f"{name}{end}": 80.0 for name in ("clean", "accuracy_cumulative") for end in ("", "_low", "_high")}
    return pd.DataFrame(
        [
            {**row, "eps": "1/255", "accuracy": 31.25, "accuracy_low": 25.0, "accuracy_high": 38.0},
            {**row, "eps": "0.5", "accuracy": math.nan, "accuracy_low": math.nan, "accuracy_high": math.nan},
        ]
    )


@pytest.fixture
def two(tmp_path):
    """A model with accuracy and attack in two folders, and one with accuracy alone."""
    first = {"name": "a_b", "sha256": "1"}
    analysis(tmp_path / "a", first)
    analysis(tmp_path / "a-attack", first, analyses=("attack",))
    analysis(tmp_path / "c", {"name": "c&d"}, top1=50.0, n=500)
    return tmp_path


def test_cells_are_the_numbers_and_intervals_of_the_tables(two):
    table = paper_table(two, "top1,pgd@1/255")
    assert table.rows == ("a_b", "c&d")
    assert table.cells[0] == (
        Measured(73.5, 71.25, 75.5, "%", 1000, "Wilson"),
        Measured(31.25, 25.0, 38.0, "%", 200, "Wilson", "linf, steps 20; pixels"),
    )
    assert table.cells[1][1] == Missing("`attack` was not run")


def test_a_gap_and_rows_that_are_not_alike_are_said(two):
    notes = "\n".join(paper_table(two, "top1,pgd@1/255").notes)
    assert "No pgd@1/255: `attack` was not run (c&d)." in notes
    assert "top1: not the same number of images in all rows (a_b: 1,000; c&d: 500)." in notes


def test_a_budget_with_a_point_is_one_name_and_a_cumulative_attack_says_so(two):
    found = paper_table(two, "pgd@0.5").cells[0][0]
    assert (found.value, found.how.endswith("cumulative")) == (80.0, True)


def test_csv_reads_back_to_the_bit(two):
    found = pd.read_csv(io.StringIO(written(paper_table(two, "top1=T,pgd@1/255"), "csv")))
    assert found["T"].tolist() == [73.5, 50.0]
    assert found["T low"].tolist() == [71.25, 47.75]
    assert found["pgd@1/255 missing"].fillna("").tolist() == ["", "`attack` was not run"]


def test_latex_is_escaped_and_every_line_has_the_columns(two):
    text = written(paper_table(two, "top1,pgd@1/255=PGD_1 {%}"), "latex")
    body = text[text.index(r"\begin{tabular}{lrr}") :]
    lines = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert [len(re.findall(r"(?<!\\)&", line)) for line in lines] == [2, 2, 2]
    assert r"a\_b & 73.5 {\scriptsize [71.2, 75.5]} & 31.2 {\scriptsize [25.0, 38.0]} \\" in body
    assert r"c\&d & 50.0 {\scriptsize [47.8, 52.0]} & -- \\" in body
    assert r"PGD\_1 \{\%\} (\%)" in body
    assert all(f"\\{rule}" in body for rule in ("toprule", "midrule", "bottomrule"))


def test_latex_specials_are_all_escaped():
    assert escape("a_b^2 ~ 5% \\ #1 $x$ {y} <z>") == (
        r"a\_b\textasciicircum{}2 \textasciitilde{} 5\% \textbackslash{} \#1 \$x\$ \{y\} \textless{}z\textgreater{}"
    )


def test_markdown_has_a_dash_for_a_gap_and_bars_are_escaped(two):
    text = written(paper_table(two, "top1=a|b,pgd@1/255"), "markdown")
    assert text.splitlines()[0] == "| model | a\\|b (%) | pgd@1/255 (%) |"
    assert text.splitlines()[3] == "| c&d | 50.0 [47.8, 52.0] | – |"


def test_an_unknown_column_is_answered_with_the_nearest_and_what_is_there(two):
    with pytest.raises(VitscopeError, match=r"Did you mean pgd@1/255.*There are: top1, .*pgd@1/255"):
        paper_table(two, "pdg@1/255")


def test_an_ambiguous_column_names_all_that_it_may_be():
    with pytest.raises(VitscopeError, match=r"attack\.clean, evaluation\.clean"):
        full_name("clean", ["attack.clean", "evaluation.clean"])


def test_any_cell_of_a_table_has_an_address(two):
    with Run.create(two / "e", {"label": "e", "data": {"name": "digits"}}, kind="analyze") as run:
        rows = {"block": [0, 1], "rate": [10.0, 20.0], "rate_low": [9.0, 18.0], "rate_high": [11.0, 22.0], "n": [7, 7]}
        run.write_table("mine", pd.DataFrame(rows))
        run.finish()
    assert paper_table(two / "e", "mine.rate[block=1]").cells[0][0].low == 18.0
    assert paper_table([two / "e", two / "a"], "mine.rate[block=1]").cells[1][0] == Missing("it has no table mine")
    with pytest.raises(VitscopeError, match=r"2 rows .* Say also, for example, block=0"):
        paper_table(two / "e", "mine.rate[]")
    with pytest.raises(VitscopeError, match=r"no column 'rat'. Did you mean rate"):
        paper_table(two / "e", "mine.rat[block=1]")


def test_the_address_that_error_and_page_show_as_an_example_is_one(tmp_path, repository):
    model = vitscope.open_model("vit_tiny_patch16_224", "random", img_size=32, in_chans=1, embed_dim=8, num_heads=2)
    run = vitscope.analyze(model, vitscope.load_data("mnist5k", "test", images=2), ["attention"], tmp_path / "run")
    (cell,) = paper_table(run.path, EXAMPLE).cells[0]
    assert cell.unit == "nats"
    assert f"`{EXAMPLE}`" in (repository / "docs" / "papers.md").read_text(encoding="utf-8")


def test_commas_between_brackets_do_not_separate():
    assert [c.name for c in parse_columns("top1,mine.rate[block=1,head=2]=R")] == ["top1", "mine.rate[block=1,head=2]"]
    assert [c.heading for c in parse_columns("top1,mine.rate[block=1,head=2]=R")] == ["top1", "R"]


@pytest.fixture
def seeds(tmp_path):
    """Three seeds of one setting, one of another; each training was looked at. Accuracies 60, 61, 62 and 90."""
    for i, (seed, lr) in enumerate([(0, 0.1), (1, 0.1), (2, 0.1), (0, 0.2)]):
        place = training(tmp_path / f"{'slow' if lr == 0.1 else 'fast'}-seed-{seed}", seed, lr)
        model = {"name": "vit", "run": place.name, "run_path": str(place), "sha256": str(i)}
        analysis(tmp_path / f"look-{i}", model, top1=60.0 + seed if lr == 0.1 else 90.0, label=place.name)
    return tmp_path


def test_seeds_of_one_setting_are_averaged_with_students_interval(seeds):
    table = paper_table(seeds, "top1,test_accuracy", average_seeds=True)
    assert dict(zip(table.rows, table.seeds)) == {"slow": 3, "fast-seed-0": 1}
    low, high = stats.t.interval(0.95, 2, loc=61, scale=stats.sem([60, 61, 62]))
    found = table.cells[table.rows.index("slow")][0]
    np.testing.assert_allclose((found.value, found.low, found.high), (61, low, high), rtol=1e-12)
    assert "95 % intervals, Student's over seeds: top1, test_accuracy." in table.notes


def test_without_asking_every_seed_is_a_row(seeds):
    assert len(paper_table(seeds, "top1").rows) == 4


def test_seeds_on_other_numbers_of_images_have_no_mean(seeds):
    place = training(seeds / "slow-seed-3", 3)
    model = {"name": "vit", "run": place.name, "run_path": str(place), "sha256": "9"}
    analysis(seeds / "look-9", model, n=10, label=place.name)
    table = paper_table(seeds, "top1", average_seeds=True)
    cell = table.cells[table.rows.index("slow")][0]
    assert isinstance(cell, Missing)
    assert "10 and 1000" in cell.reason


def test_a_model_whose_training_is_gone_is_not_averaged(seeds):
    analysis(seeds / "look-8", {"name": "vit", "run": "gone", "run_path": "nowhere/gone"}, label="gone")
    table = paper_table(seeds, "top1", average_seeds=True)
    assert table.seeds[table.rows.index("gone")] == 1
    assert any("the training behind it is not there" in note for note in table.notes)


def test_a_format_that_does_not_exist_suggests_one(two):
    with pytest.raises(VitscopeError, match="Did you mean latex"):
        written(paper_table(two, "top1"), "latx")
