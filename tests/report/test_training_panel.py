"""The training panel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from vitscope.report import figures as f
from vitscope.runs import Run
from vitscope.training.panel import Curve, curves_over_seeds, draw_curves, epoch_slider, training_panel


def _table(epochs: int = 3) -> pd.DataFrame:
    epoch = np.arange(1, epochs + 1)
    return pd.DataFrame(
        {
            "epoch": epoch,
            "train_loss": 1.0 / epoch,
            "train_accuracy": 1 - 0.5 / epoch,
            "test_loss": 2.0 / epoch,
            "test_accuracy": [0.5, 0.9, 0.8, *np.full(max(epochs - 3, 0), 0.7)][:epochs],
        }
    )


def test_the_curves_are_the_numbers_in_the_table() -> None:
    with f.house_style():
        fig = draw_curves([Curve("a", (_table(),))], ["a"])
    loss, accuracy = fig.axes
    assert [line.get_ydata().tolist() for line in loss.get_lines()] == [[1, 0.5, 1 / 3], [2, 1, 2 / 3]]
    assert accuracy.get_lines()[1].get_ydata().tolist() == [50, 90, 80]


def test_several_runs_keep_the_colours_of_the_page() -> None:
    with f.house_style():
        fig = draw_curves([Curve("b", (_table(),))], ["a", "b"])
    assert {line.get_color() for line in fig.axes[0].get_lines()} == {f.model_styles(["a", "b"])["b"].colour}


def test_the_finding_tells_last_and_best(make_training: Callable[..., Run]) -> None:
    run = make_training("t")
    with Run.create(run.path, run.config, kind="train") as writer:
        writer.write_table("training", _table())
    panel = training_panel({"t": Run.open(run.path)})
    assert panel is not None
    (finding,) = panel.findings
    assert finding.text == (
        "80.0 % of held-out images right after epoch 3 (best: 90.0 % after epoch 2), 83.3 % of training images."
    )
    assert "learning rate 0.001" in panel.protocol


def test_epochs_without_evaluation_are_gaps_not_errors() -> None:
    table = _table()
    table.loc[1, ["test_loss", "test_accuracy"]] = np.nan
    with f.house_style():
        fig = draw_curves([Curve("a", (table,))], ["a"])
    assert fig.axes[1].get_lines()[1].get_xdata().tolist() == [1, 3]
    assert "–" in epoch_slider([Curve("a", (table,))])


def test_a_long_training_has_a_bounded_slider_that_ends_with_the_last_epoch() -> None:
    html = epoch_slider([Curve("a", (_table(1000),))])
    assert html.count('class="frame"') <= 121
    assert 'data-label="1000"' in html


def test_no_training_table_no_panel(make_run: Callable[..., Run]) -> None:
    assert training_panel({"a": make_run("a")}) is None


def _trained(make_training: Callable[..., Run], name: str, shift: float, **options: object) -> Run:
    run = make_training(name)
    config = {**run.config, "label": "vit", "options": {"lr": 0.001, "seed": 0, "attention": "", **options}}
    with Run.create(run.path, config, kind="train", overwrite=True) as writer:
        table = _table()
        table[["test_accuracy", "test_loss"]] += shift
        writer.write_table("training", table)
    return Run.open(run.path)


def test_trainings_that_differ_in_their_seed_share_a_curve_with_its_spread(make_training: Callable[..., Run]) -> None:
    runs = {
        f"run {seed} {attention}": _trained(make_training, f"{attention}{seed}", shift, seed=seed, attention=attention)
        for attention in ("", "rpc:layers=0")
        for seed, shift in ((0, 0.0), (1, 0.03))
    }
    tables = {label: run.table("training") for label, run in runs.items()}
    first, second = curves_over_seeds(runs, tables)
    assert (first.name, second.name) == ("softmax", "rpc:layers=0")
    points = first.over_seeds("test_accuracy")
    assert np.allclose(points["mean"], [0.515, 0.915, 0.815])
    assert np.allclose(points["low"], [0.5, 0.9, 0.8])
    assert np.allclose(points["high"], [0.53, 0.93, 0.83])
    panel = training_panel(runs)
    assert panel is not None
    assert "smallest to the largest" in panel.captions["training"]
    assert [finding.text for finding in panel.findings][1].startswith(
        "rpc:layers=0: 81.5 % of held-out images right after epoch 3 (2 seeds, 80.0 % to 83.0 %)"
    )
    assert len(panel.figures["training"].axes[1].collections) == 2  # a band each


def test_different_trainings_stay_apart(make_training: Callable[..., Run]) -> None:
    runs = {str(lr): _trained(make_training, str(lr), 0.0, lr=lr) for lr in (0.1, 0.2)}
    curves = curves_over_seeds(runs, {label: run.table("training") for label, run in runs.items()})
    assert [curve.name for curve in curves] == ["0.1", "0.2"]


def test_many_settings_are_named_in_full_under_the_figure() -> None:
    names = [f"symmetric; rpc:layers=0,iterations=4,variant=code number {i}" for i in range(6)]
    with f.house_style():
        fig = draw_curves([Curve(name, (_table(), _table())) for name in names], names)
    assert [text.get_text() for text in fig.legends[0].get_texts()] == names
    assert len(fig.axes[0].get_lines()) == 6  # training curves would be too much
