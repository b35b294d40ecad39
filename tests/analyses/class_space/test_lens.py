from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
import torch

from vitscope.analyses.class_space.lens import Lens
from vitscope.analyses.one_pass import measure
from vitscope.errors import DataError


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


def test_the_control_says_what_the_random_twin_says_of_the_same_tokens(model, tools):
    from vitscope.analyses.control import random_twin

    batch, setting = tools["make_batch"](model), {"gallery": frozenset({1, 4})}
    analysis, alone = Lens(control="random"), Lens()
    for lens in (analysis, alone):
        lens.setting = replace(lens.setting, **setting)
    measure(model, [batch], [analysis])
    measure(random_twin(model, 0), [batch], [alone])
    for name, columns in (("class_space_topk", ["class", "logit"]), ("maps_class_space", ["value"])):
        mine, expected = pd.concat(analysis.rows[name]), pd.concat(alone.rows[name])
        assert len(mine) == len(expected) > 0
        for column in columns:
            assert mine[f"{column}_control"].tolist() == pytest.approx(expected[column].tolist(), abs=1e-5)
        assert mine[columns[-1]].tolist() != expected[columns[-1]].tolist()


def test_labels_outside_the_head_are_an_error(model, tools):
    batch = tools["make_batch"](model)
    batch.labels[2] = 10
    with pytest.raises(DataError, match="class number 10"):
        measure(model, [batch], [Lens()])


def test_images_that_the_data_do_not_have_are_refused():
    from vitscope.data import load_data

    data = load_data("mnist5k", images=3)
    Lens(images=[0, 2]).check_data(data)
    for wrong in (3, -1):
        with pytest.raises(DataError, match=f"there is no image {wrong}. mnist5k has 3 images"):
            Lens(images=[0, wrong]).check_data(data)


def test_chosen_images_come_first_in_the_gallery_with_their_maps_and_in_the_figure(tools, tmp_path):
    from PIL import Image

    from vitscope.analyses.class_space.panels.lens import class_token, lens_panel
    from vitscope.analyses.engine import analyze
    from vitscope.data import load_data
    from vitscope.report.figures import house_style
    from vitscope.report.gallery import gallery_data

    data = load_data("mnist5k", images=9)
    model, wanted = tools["build"](), {"class_space.lens": {"images": [6, 5], "control": "random"}}
    run = analyze(model, data, wanted, tmp_path / "run", report=False, progress=False, gallery=2, batch_size=4)
    listed = run.table("images").set_index("image")
    assert {5, 6} < set(listed.index)
    assert listed.index.is_unique
    assert listed["path"].to_dict() == {i: data.paths[i] for i in listed.index}
    assert all(Image.open(run.images_dir / f"{i}.png").size == (28, 28) for i in listed.index)
    gallery = gallery_data({"one": run}, limit=2)
    assert {image["path"] for image in gallery["images"]} == {data.paths[5], data.paths[6]}
    name = "identifiability of the class"
    maps = {row["map"]: row["images"] for row in gallery["rows"]}
    assert {0, 1} == set(maps[name]) == set(maps[f"{name} (random weights)"])
    with house_style():
        panel = lens_panel({"one": run})
        figure = panel.figures["class_space_maps"]
        figure.canvas.draw()
    pictures = [ax for ax in figure.axes if ax.images]
    assert len(pictures) == 2 * 3
    topk = run.table("class_space_topk")
    part = topk[(topk["image"] == 5) & (topk["block"] == 1) & (topk["token"] == 0)].sort_values("place")
    said = class_token(run, topk).set_index(["image", "block"]).loc[5, 1]
    assert said[["top_1", "top_2", "top_3"]].tolist() == part["class_name"].tolist()
    assert said["true_class"] == data.classes[data.labels[5]]
    assert len(panel.tables["class_space_topk"]) == 2 * 3


def test_a_map_lies_over_the_picture_in_its_place():
    import numpy as np
    from matplotlib import colormaps

    from vitscope.analyses.class_space.panels.lens import COVER, covered

    cells = pd.DataFrame({"row": [0, 0, 1, 1], "col": [0, 1, 0, 1], "value": [0.0, 0.25, 0.5, 1.0]})
    picture = np.linspace(0, 1, 36).reshape(6, 6)
    seen = covered(picture, cells)
    for row, col, value in ((0, 2, 0.0), (2, 3, 0.25), (3, 0, 0.5), (5, 5, 1.0)):
        colour = np.array(colormaps["cividis"](value)[:3])
        np.testing.assert_allclose(seen[row, col], COVER * colour + (1 - COVER) * picture[row, col])
