"""The general panel: any figure of any probe against the epochs."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from vitscope.errors import VitscopeError
from vitscope.report import build_report
from vitscope.runs import Run
from vitscope.sweeps.averages import averaged_tables
from vitscope.training.probes_panel import probe_figure, probes_panel

EPOCHS = [0, 2, 4]
TABLES = {
    "attention": {
        "block": list(range(6)), "head": [0, 1], "query": ["class", "image"], "metric": ["entropy", "distance"],
    },
    "memories": {"block": [0, 1], "layer": ["attn", "mlp"]},
    "kpca_eigenvalues": {"block": [0, 1], "axis": [0, 1, 2]},
    "evaluation": {},
    "of_my_own": {"colour": ["red", "blue"]},
}  # fmt: skip


def probe(keys: dict[str, list], seed: int = 0, scale: float = 1.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    every = {"epoch": EPOCHS, "split": ["train", "test"], **keys}
    rows = pd.DataFrame(list(itertools.product(*every.values())), columns=list(every))
    rows["mean"] = scale * (1 + rng.random(len(rows)))
    return rows.assign(low=rows["mean"] - 0.1, high=rows["mean"] + 0.1, chance=0.1, n=60)


def make(path: Path, tables: dict[str, pd.DataFrame], kind: str = "train") -> Run:
    config = {"label": path.name, "options": {"probe_images": 60}}
    with Run.create(path, config, kind=kind) as run:
        for name, table in tables.items():
            run.write_table(name, table, allow_nan=[c for c in table if table[c].dtype.kind == "f"])
        run.finish()
    return Run.open(path)


def lines(ax) -> list[list[float]]:
    return [list(line.get_ydata()) for line in ax.get_lines()]


@pytest.mark.parametrize("name", TABLES)
def test_every_probe_is_drawn(name, tmp_path):
    panel = probes_panel({"a": make(tmp_path / "a", {f"probe_{name}": probe(TABLES[name])})})
    assert panel.title.endswith("?")
    assert list(panel.tables) == [f"probe_{name}"]
    assert panel.figures
    for stem, figure in panel.figures.items():
        assert any(lines(ax) for ax in figure.axes)
        assert "60 " in panel.captions[stem], "how many images"
        assert "chance" not in panel.captions[stem], "what does not move is not drawn"


def test_one_run_has_a_line_per_block_which_is_the_mean_over_heads(tmp_path):
    table = probe(TABLES["attention"])
    figure = probe_figure({"a": make(tmp_path / "a", {"probe_attention": table})}, "probe_attention", "entropy")
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["class", "image"]
    rows = table[(table["split"] == "test") & (table["metric"] == "entropy") & (table["query"] == "image")]
    expected = [rows[(rows["block"] == b)].groupby("epoch")["mean"].mean().tolist() for b in range(6)]
    assert np.allclose(lines(figure.axes[1]), expected)
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()


def test_several_runs_have_a_line_each_and_blocks_beside_each_other(tmp_path):
    tables = [probe(TABLES["attention"], seed) for seed in range(2)]
    runs = {name: make(tmp_path / name, {"probe_attention": t}) for name, t in zip("ab", tables)}
    figure = probe_figure(runs, "probe_attention", "distance")
    assert len(figure.axes) == 2 * 4, "two queries, four of six blocks"
    said = [text.get_text() for ax in figure.axes[:4] for text in ax.texts]
    assert said == ["block 0", "block 2", "block 3", "block 5"]
    assert len(lines(figure.axes[0])) == 2
    assert len({ax.get_ylim() for ax in figure.axes[:4]}) == 1, "one scale in a row"


def test_a_sweep_is_drawn_with_means_and_intervals(tmp_path):
    tables = [probe(TABLES["attention"], seed).assign(setting=s, **{"option.lr": s}) for s in "xy" for seed in range(3)]
    averages = averaged_tables("probe_attention", tables, ["setting", "option.lr"])
    run = make(tmp_path / "sweep", {"sweep_probe_attention": averages}, kind="sweep")
    panel = probes_panel({"sweep": run})
    figure = panel.figures["sweep_probe_attention_entropy"]
    rows = averages[(averages["metric"] == "entropy") & (averages["query"] == "class") & (averages["split"] == "test")]
    first = rows[(rows["block"] == 0) & (rows["setting"] == "x") & (rows["figure"] == "mean")]
    assert lines(figure.axes[0])[0] == pytest.approx(first["mean"].tolist())
    bands = [path for band in figure.axes[0].collections for path in band.get_paths()]
    assert len(bands) == 2, "one per setting"
    assert bands[0].vertices[:, 1].max() == pytest.approx(first["high"].max())
    assert "3 seeds" in panel.captions["sweep_probe_attention_entropy"]
    assert "Student’s t" in panel.captions["sweep_probe_attention_entropy"]


@pytest.mark.parametrize(("values", "scale"), [((0.001, 5.0), "log"), ((1.0, 5.0), "linear"), ((1e-16, 5.0), "linear")])
def test_an_axis_is_logarithmic_where_values_span_decades(values, scale, tmp_path):
    table = probe({"block": [0, 1]})
    table["mean"] = np.where(table["epoch"] == 0, *values) * (1 + 0.01 * table["block"])
    figure = probe_figure({"a": make(tmp_path / "a", {"probe_x": table})}, "probe_x", "mean")
    assert figure.axes[0].get_yscale() == scale


def test_what_another_panel_draws_is_not_drawn_twice(tmp_path):
    accuracy = pd.concat([probe({}, seed).assign(metric=m) for seed, m in enumerate(("top1", "top5", "loss", "ece"))])
    run = make(tmp_path / "a", {"probe_separation": probe({"layer": [1, 2]}), "probe_accuracy": accuracy})
    panel = probes_panel({"a": run})
    assert list(panel.figures) == ["probe_accuracy"]
    (figure,) = panel.figures.values()
    assert [ax.texts[0].get_text() for ax in figure.axes] == ["top5", "ece"], "the panel of the training has the others"


def test_a_page_has_its_figures_and_names_what_is_only_in_the_table(tmp_path):
    many = probe({"block": [0, 1]}).assign(**{f"q{i}": lambda t, i=i: t["mean"] + i for i in range(9)})
    page = build_report(make(tmp_path / "a", {"probe_many": many}), strict=True).read_text()
    assert "What changed while it learned?" in page
    assert "In the table, not drawn: q5, q6, q7, q8." in page
    assert (tmp_path / "a" / "figures" / "probe-many-q4.png").exists()


def test_unknown_names_are_answered_with_the_nearest(tmp_path):
    runs = {"a": make(tmp_path / "a", {"probe_attention": probe(TABLES["attention"])})}
    with pytest.raises(VitscopeError, match="Did you mean probe_attention"):
        probe_figure(runs, "probe_atention", "entropy")
    with pytest.raises(VitscopeError, match="Did you mean entropy"):
        probe_figure(runs, "probe_attention", "entrpy")


def test_runs_without_probes_have_no_panel(tmp_path):
    assert (
        probes_panel({"a": make(tmp_path / "a", {"probe_positions": pd.DataFrame({"block": [0], "x": [1.0]})})}) is None
    )
