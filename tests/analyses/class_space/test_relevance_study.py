from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from vitscope.analyses import tables_of
from vitscope.analyses.class_space.curves import area, curve_hits, most_relevant, published_area
from vitscope.analyses.class_space.localisation import average_precision, pointing_game
from vitscope.analyses.class_space.relevance import random_relevance, relevance
from vitscope.analyses.class_space.relevance_study import Relevance
from vitscope.analyses.one_pass import measure
from vitscope.data.masks import to_tokens_nearest
from vitscope.errors import VitscopeError


@pytest.fixture(scope="module")
def batches(model, tools):
    made = [tools["make_batch"](model, 5, seed=s, first=5 * s) for s in range(2)]
    with torch.no_grad():
        for batch in made:
            batch.labels[:4] = model(batch.images).argmax(1)[:4]
    return made


def test_one_table_equals_the_parts_computed_one_by_one(model, batches):
    analysis = Relevance(methods=["chefer", "attention"], steps=4, draws=2)
    measure(model, batches, [analysis])
    tables = analysis.tables()
    images, labels = torch.cat([b.images for b in batches]), torch.cat([b.labels for b in batches])
    masks = torch.cat([to_tokens_nearest(b.masks, model.layout.grid) for b in batches])
    counts = [0, 4, 8, 12, 16]
    table = tables["relevance"].set_index("method")
    assert list(table.index) == ["chefer", "attention", "random"]
    for method in ("chefer", "attention"):
        found = relevance(model, images, labels, method)
        for direction in ("negative", "positive"):
            hits = curve_hits(model, images, labels, most_relevant(found, direction), counts)
            accuracy = hits.mean(1)
            assert table.loc[method, f"{direction}_area"] == pytest.approx(area(accuracy.tolist(), counts))
            curve = tables["relevance_curves"].query("method == @method and direction == @direction")
            assert curve["accuracy"].tolist() == pytest.approx((100 * accuracy).tolist())
        assert table.loc[method, "pointing"] == pytest.approx(100 * float(pointing_game(found, masks).mean()))
        expected = float(average_precision(found, masks).mean())
        assert table.loc[method, "average_precision"] == pytest.approx(expected, abs=1e-6)
    draws = [random_relevance(range(10), 16, 0, draw) for draw in range(2)]
    areas = []
    for found in draws:
        hits = curve_hits(model, images, labels, most_relevant(found, "negative"), counts)
        areas.append(area(hits.mean(1).tolist(), counts))
    assert table.loc["random", "negative_area"] == pytest.approx(np.mean(areas))
    gain = table.loc["chefer", "negative_area"] - table.loc["random", "negative_area"]
    assert table.loc["chefer", "negative_gain"] == pytest.approx(gain)
    assert table.loc["chefer", "object_share"] == pytest.approx(float((masks == 1).double().mean(1).mean()))
    assert table.loc["random", "forward_passes"] == 0


def test_code_variant_adds_the_published_area(model, batches):
    analysis = Relevance(methods=["attention"], steps=0, variant="code", draws=1)
    measure(model, batches, [analysis])
    tables = analysis.tables()
    curve = tables["relevance_curves"].query("method == 'attention' and direction == 'negative'")
    expected = published_area((curve["accuracy"] / 100).tolist(), list(range(17)))
    assert tables["relevance"].set_index("method").loc["attention", "negative_published"] == pytest.approx(expected)
    with pytest.raises(VitscopeError, match="steps=0"):
        Relevance(variant="code")
    assert (Relevance().draws, Relevance(variant="code", steps=0).draws) == (3, 10)


def test_without_masks_there_is_no_localisation(model, tools):
    analysis = Relevance(methods=["attention"], steps=2)
    measure(model, [tools["make_batch"](model, masks=False)], [analysis])
    assert "pointing" not in analysis.tables()["relevance"].columns


def test_maps_of_gallery_images_are_emitted_with_largest_one(model, batches):
    analysis = Relevance(methods=["chefer"], steps=1, draws=1)
    analysis.setting = replace(analysis.setting, gallery=frozenset({7}))
    measure(model, batches, [analysis])
    maps = pd.concat(analysis.rows["maps_relevance"])
    assert set(maps["image"]) == {7}
    assert len(maps) == 16
    assert maps["value"].abs().max() == pytest.approx(1)


def test_the_control_and_halves(model, batches):
    whole = Relevance(methods=["attention"], steps=2, control="random")
    measure(model, batches, [whole])
    first, second = (Relevance(methods=["attention"], steps=2, control="random") for _ in range(2))
    measure(model, batches[:1], [first])
    measure(model, batches[1:], [second])
    first.merge(second)
    a, b = tables_of(whole)["relevance"], tables_of(first)["relevance"]
    assert "negative_area_control" in a.columns
    for column in a.columns.drop("method"):
        np.testing.assert_allclose(a[column].astype(float), b[column].astype(float), rtol=1e-9)


def test_unknown_methods_are_refused():
    with pytest.raises(VitscopeError, match="Did you mean rollout"):
        Relevance(methods=["rolout"])


def test_one_head_alone_is_refused():
    with pytest.raises(VitscopeError, match="head='class': relevance is asked of the model's own answer"):
        Relevance(head="class")


def test_none_right_keeps_intervals_of_areas_and_gains(model, tools):
    batch = tools["make_batch"](model)
    order = torch.arange(16).expand(6, 16)
    # a class that no image gets, neither from the class token alone nor from all tokens: areas and gains are all 0
    never = [c for c in range(10) if not curve_hits(model, batch.images, torch.full((6,), c), order, [0, 16]).any()]
    batch.labels[:] = never[0]
    analysis = Relevance(methods=["attention"], steps=1, draws=1)
    measure(model, [batch], [analysis])
    table, z = analysis.tables()["relevance"].set_index("method"), 1.959963984540054
    row = table.loc["attention"]
    assert (row["negative_area"], row["negative_low"], row["negative_gain"]) == (0, 0, 0)
    assert row["negative_high"] == pytest.approx(z**2 / (6 + z**2))  # Wilson, 0 of 6
    assert row["negative_gain_high"] == pytest.approx(z / 8)  # Agresti & Min, 0 gained and 0 lost of 6
    assert row["negative_gain_low"] == pytest.approx(-z / 8)
    assert np.isnan(table.loc["random", "negative_gain_low"])  # 0 by definition
    assert set(table.columns[table.isna().any()]) <= set(analysis.optional)
