from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
import torch

from vitscope.analyses.class_space.lens import Lens
from vitscope.analyses.one_pass import measure


@pytest.fixture(scope="module")
def seen(model, tools):
    batch = tools["make_batch"](model, 6, first=10)
    analysis = Lens(topk=3)
    analysis.setting = replace(analysis.setting, gallery=frozenset({11, 14}), classes=tuple("abcdefghij"))
    measure(model, [batch], [analysis])
    return {name: pd.concat(frames) for name, frames in analysis.rows.items()}, batch


def test_top_classes_are_those_of_the_projected_tokens(model, seen):
    tables, batch = seen
    topk = tables["class_space_topk"]
    assert set(topk["image"]) == {11, 14}
    with torch.no_grad():
        _, cache = model.run_with_cache(batch.images, "blocks.1.hook_resid_post")
        logits = model.to_class_space(cache["blocks.1.hook_resid_post"])
    for token in (0, 7):
        rows = topk[(topk["image"] == 14) & (topk["block"] == 1) & (topk["token"] == token)].sort_values("place")
        best = logits[4, token].sort(descending=True)
        assert rows["class"].tolist() == best.indices[:3].tolist()
        assert rows["class_name"].tolist() == ["abcdefghij"[c] for c in best.indices[:3]]
        assert rows["logit"].tolist() == pytest.approx(best.values[:3].tolist(), abs=1e-4)
    image_token = topk[topk["token"] == 7].iloc[0]
    assert (image_token["kind"], image_token["row"], image_token["col"]) == ("image", 1, 2)
    assert topk[topk["token"] == 0]["kind"].unique().tolist() == ["class"]


def test_maps_hold_identifiability_and_logit_in_their_place(model, seen):
    tables, batch = seen
    maps = tables["maps_class_space"]
    with torch.no_grad():
        _, cache = model.run_with_cache(batch.images, "blocks.2.hook_resid_post")
        logits = model.to_class_space(cache["blocks.2.hook_resid_post"])[1]
    true = logits[:, batch.labels[1]]
    part = maps[(maps["image"] == 11) & (maps["block"] == 2) & (maps["row"] == 3) & (maps["col"] == 1)]
    values = part.set_index("map")["value"]
    token = 1 + 3 * 4 + 1
    assert values["logit of the class"] == pytest.approx(float(true[token]), abs=1e-4)
    rank = int((logits[token] > true[token]).sum())
    assert values["identifiability of the class"] == pytest.approx(1 - rank / 10)
    assert list(maps.columns) == ["image", "map", "block", "row", "col", "value"]


def test_chosen_images_instead_of_the_gallery(model, tools):
    analysis = Lens(images=[2])
    measure(model, [tools["make_batch"](model)], [analysis])
    assert set(pd.concat(analysis.rows["class_space_topk"])["image"]) == {2}
