"""Accuracy, loss and calibration against a plain numpy computation, image by image."""

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitscope.analyses.accuracy import Accuracy, confidence_bin, true_rank
from vitscope.analyses.base import Setting
from vitscope.data.batch import Batch
from vitscope.errors import DataError, UnsupportedModelError


def head(classes):
    return SimpleNamespace(num_classes=classes, name="toy")


def make_batch(logits, labels, first=0):
    n = len(labels)
    indices = torch.arange(first, first + n)
    paths = [f"img{i}" for i in indices.tolist()]
    return Batch(torch.zeros(n, 1, 2, 2), torch.tensor(labels, dtype=torch.int64), indices, paths, outputs=logits)


def run_over(batches, classes, names=()):
    analysis = Accuracy()
    analysis.setting = Setting(classes=tuple(names))
    analysis.start(head(classes))
    for batch in batches:
        analysis.end_batch(batch)
    return analysis


def by_hand(logits, labels):
    """The definitions, one image at a time."""
    out = {"top1": [], "top5": [], "loss": [], "confidence": []}
    for z, y in zip(np.asarray(logits, dtype=np.float64), labels):
        p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
        order = np.argsort(-z, kind="stable")
        out["top1"].append(order[0] == y)
        out["top5"].append(y in order[:5])
        out["loss"].append(-math.log(p[y]))
        out["confidence"].append(p.max())
    n, ece, edges = len(labels), 0.0, np.arange(16) / 15
    confidence, right = np.array(out["confidence"]), np.array(out["top1"])
    for b in range(15):
        inside = (confidence >= edges[b]) & ((confidence < edges[b + 1]) if b < 14 else True)
        if inside.any():
            ece += inside.sum() / n * abs(right[inside].mean() - confidence[inside].mean())
    return 100 * right.mean(), 100 * np.mean(out["top5"]), np.mean(out["loss"]), 100 * ece


@pytest.mark.parametrize(("classes", "scale"), [(10, 1.0), (10, 8.0), (3, 2.0), (200, 3.0)])
def test_overall_figures_are_those_computed_by_hand(classes, scale):
    g = torch.Generator().manual_seed(classes)
    logits = scale * torch.randn(157, classes, generator=g)
    labels = torch.randint(0, classes, (157,), generator=g).tolist()
    parts = [make_batch(logits[i : i + 40], labels[i : i + 40], i) for i in range(0, 157, 40)]
    table = run_over(parts, classes).tables()["accuracy"].set_index("metric")
    expected = by_hand(logits.numpy(), labels)
    assert table.loc[["top1", "top5", "loss", "ece"], "value"].tolist() == pytest.approx(expected, rel=1e-9)
    assert (table["low"] <= table["value"]).all()
    assert (table["value"] <= table["high"]).all()
    assert (table["n"] == 157).all()


def test_calibration_interval_covers_what_resampling_shows():
    g = torch.Generator().manual_seed(1)
    logits = 4 * torch.randn(600, 5, generator=g)
    labels = torch.randint(0, 5, (600,), generator=g)
    row = run_over([make_batch(logits, labels.tolist())], 5).tables()["accuracy"].set_index("metric").loc["ece"]
    rng = np.random.default_rng(0)
    again = []
    for _ in range(120):
        pick = rng.integers(0, 600, 600)
        again.append(by_hand(logits[pick].numpy(), labels[pick].tolist())[3])
    assert (row["high"] - row["low"]) / (2 * 1.96) == pytest.approx(np.std(again), rel=0.25)


def test_per_class_rows_count_only_classes_with_images():
    logits = torch.eye(4)[[0, 1, 1, 3]]
    names = ("cat", "dog", "eel", "fox")
    table = (
        run_over([make_batch(logits, [0, 0, 1, 3])], 4, names).tables()["accuracy_per_class"].set_index("class_name")
    )
    assert list(table.index) == ["cat", "dog", "fox"]
    assert table["n"].tolist() == [2, 1, 1]
    assert table["top1"].tolist() == [50, 100, 100]
    assert table["predicted"].tolist() == [1, 2, 1]


def test_images_without_a_label_are_not_counted():
    logits = torch.eye(3)[[0, 1, 2]]
    analysis = run_over([make_batch(logits, [0, -1, 0])], 3)
    assert analysis.tables()["accuracy"]["n"].unique().tolist() == [2]
    assert pd.concat(analysis.rows["predictions"])["image"].tolist() == [0, 2]
    with pytest.raises(DataError, match="labelled images"):
        run_over([make_batch(logits, [-1, -1, -1])], 3).tables()


def test_predictions_name_the_rank_of_the_true_class():
    logits = torch.tensor([[0.1, 0.9, 0.5], [0.3, 0.2, 0.1]])
    rows = pd.concat(run_over([make_batch(logits, [2, 0], first=40)], 3).rows["predictions"])
    assert rows["image"].tolist() == [40, 41]
    assert rows["prediction"].tolist() == [1, 0]
    assert rows["rank"].tolist() == [2, 1]
    assert rows["confidence"].tolist() == pytest.approx(logits.double().softmax(1).max(1).values.tolist())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=7, max_size=7), min_size=1, max_size=8), st.data())
def test_rank_is_the_place_in_a_stable_sort_even_among_ties(rows, data):
    labels = data.draw(st.lists(st.integers(0, 6), min_size=len(rows), max_size=len(rows)))
    ranks = true_rank(torch.tensor(rows, dtype=torch.float64), torch.tensor(labels)).tolist()
    for row, label, rank in zip(rows, labels, ranks):
        order = sorted(range(7), key=lambda c: (-row[c], c))
        assert order[rank - 1] == label


def test_bins_are_closed_on_the_left_and_the_last_one_holds_certainty():
    confidence = torch.tensor([0.0, 1 / 15, 0.5, 14 / 15, 1.0], dtype=torch.float64)
    assert confidence_bin(confidence).tolist() == [0, 1, 7, 14, 14]


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 30), st.integers(0, 30), st.integers(0, 2**31))
def test_merging_two_parts_gives_the_whole(a, b, seed):
    g = torch.Generator().manual_seed(seed)
    logits, labels = torch.randn(a + b, 6, generator=g), torch.randint(0, 6, (a + b,), generator=g).tolist()
    whole = run_over([make_batch(logits, labels)], 6)
    left, right = run_over([make_batch(logits[:a], labels[:a])], 6), run_over([make_batch(logits[a:], labels[a:])], 6)
    left.merge(right)
    for key, value in whole.sums.items():
        assert torch.allclose(left.sums[key], value, rtol=1e-12), key
    pd.testing.assert_frame_equal(left.tables()["accuracy"], whole.tables()["accuracy"], rtol=1e-9)


def test_a_model_without_classes_and_labels_beyond_the_head_are_refused():
    with pytest.raises(UnsupportedModelError, match="no classes"):
        Accuracy().start(head(0))
    with pytest.raises(DataError, match="do not match the head"):
        run_over([make_batch(torch.zeros(1, 3), [3])], 3)
