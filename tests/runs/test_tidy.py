from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

from vitscope.runs.tidy import images_of, shape_of


def table(keys: dict[str, list], **figures: object) -> pd.DataFrame:
    """Every combination of the keys over three epochs and two splits. Figures: a number, or 'random', or 'count'."""
    rng = np.random.default_rng(0)
    all_keys = {"epoch": [0, 1, 2], "split": ["train", "test"], **keys}
    rows = pd.DataFrame(list(itertools.product(*all_keys.values())), columns=list(all_keys))
    for name, kind in figures.items():
        drawn = {"random": rng.random(len(rows)), "count": rng.integers(0, 1000, len(rows))}
        rows[name] = drawn[kind] if isinstance(kind, str) and kind in drawn else kind
    return rows


HEADS = {"block": [0, 1], "head": [0, 1, 2], "query": ["class", "image"], "metric": ["entropy", "distance"]}
CASES = {
    "heads": (table(HEADS, mean="random", std="random", n=60), tuple(HEADS), ("mean", "std")),
    "no blocks": (table({"metric": ["top1", "loss"]}, value="random", n=60), ("metric",), ("value",)),
    "a name that follows from the label": (
        table({"label": [0, 1]}, top1="random").assign(class_name=lambda t: t["label"].map({0: "cat", 1: "dog"})),
        ("label",),
        ("top1",),
    ),
    "bins are told apart by their lower edge": (
        table({"block": [0, 1], "from": [0.0, 0.5]}, share="random").assign(to=lambda t: t["from"] + 0.5),
        ("block", "from"),
        ("share",),
    ),
    "a row per epoch": (table({}, loss="random"), (), ("loss",)),
    "a measured count": (table({"way": ["a", "b"]}, accuracy="random", lost="count"), ("way",), ("accuracy", "lost")),
}


@pytest.mark.parametrize("case", CASES)
def test_keys_and_figures_are_told_from_the_table(case):
    rows, keys, moving = CASES[case]
    shape = shape_of(rows)
    assert (shape.keys, shape.moving) == (("epoch", "split", *keys), moving)


def test_a_count_before_the_block_is_no_key():
    rows = table({"block": [0, 1, 2]}, dead="count", mean="random")
    shape = shape_of(rows[["epoch", "split", "dead", "block", "mean"]])
    assert (shape.keys, shape.figures) == (("epoch", "split", "block"), ("mean", "dead"))


def test_a_count_per_bin_is_no_key():
    rows = table({"from": [0.0, 0.5]}, number="count")
    assert shape_of(rows[["epoch", "split", "number", "from"]]).keys == ("epoch", "split", "from")


def test_a_chance_level_is_a_figure_that_does_not_move():
    rows = table({"block": [0, 1]}, mean="random").assign(uniform=lambda t: 1.0 + t["block"])
    shape = shape_of(rows)
    assert (shape.figures, shape.moving) == (("mean", "uniform"), ("mean",))


def test_ends_of_intervals_belong_to_a_figure():
    rows = table({}, mean="random", low="random", high="random", rate="random", rate_low="random", rate_high="random")
    shape = shape_of(rows.assign(slow=rows["rate"]))
    assert shape.figures == ("mean", "rate", "slow")
    ends = [shape.interval_of(figure, list(rows.columns)) for figure in shape.figures]
    assert ends == [("low", "high"), ("rate_low", "rate_high"), None]


def test_units_follow_from_the_keys():
    rows = table({"metric": ["a", "b"]}, value="random").assign(unit=lambda t: t["metric"].map({"a": "%", "b": "px"}))
    assert shape_of(rows).facts == ("unit",)


def test_runs_that_are_stacked_share_their_keys():
    runs = [table({"block": [0, 1]}, mean="random").assign(run=number) for number in range(3)]
    assert shape_of(pd.concat(runs), given=["run"]).keys == ("epoch", "split", "block")


def test_the_number_of_images_is_told_where_all_rows_agree():
    assert images_of(table({}, n=60)) == 60
    assert images_of(table({}, n="count")) is None
