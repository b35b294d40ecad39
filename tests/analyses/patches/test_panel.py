"""The panels of the lens on patches: drawn from tables alone, by models side by side."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from segmented_scenes import CLASSES, scene_batches, tiny
from vitscope.analyses import create_analysis, measure
from vitscope.analyses.patches.attention_panel import patch_attention_panel
from vitscope.analyses.patches.panel import patches_panel
from vitscope.report.class_colours import NONE, class_colours, label_image
from vitscope.report.figures import house_style
from vitscope.report.svg import CSS_VARIABLES
from vitscope.runs import Run


def run_of(path, **options):
    """A run folder with the tables of both lenses and the pictures of its gallery."""
    import pandas as pd

    analyses = [create_analysis("patches.identifiability", rare=0.2), create_analysis("patches.attention")]
    measure(tiny(**options), scene_batches(), analyses)
    with Run.create(path, {"label": path.name, "seed": 0}, kind="analyze") as run:
        for analysis in analyses:
            for name, table in analysis.tables().items():
                run.write_table(name, table, allow_nan=[c for c in analysis.optional if c in table])
        for name, frames in analyses[0].rows.items():
            run.write_table(name, pd.concat(frames).sort_values("image", kind="stable"))
        run.images_dir.mkdir(exist_ok=True)
        for i in range(6):
            Image.new("L", (24, 24), 40 * i).save(run.images_dir / f"{i}.png")
        run.finish()
    return Run.open(path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {"softmax": run_of(folder / "softmax"), "<b>rpc": run_of(folder / "rpc", attention="rpc:layers=0")}


@pytest.fixture(scope="module")
def panels(runs):
    with house_style():
        return patches_panel(runs), patch_attention_panel(runs)


def test_both_models_are_drawn_with_what_is_read(runs, panels):
    panel, attention = panels
    table = runs["softmax"].table("patches_identifiability")
    left, right = panel.figures["patches_levels"].axes
    drawn = [list(line.get_ydata()) for line in left.get_lines()]
    for kind in ("inside", "border"):
        rows = table[table["tokens"] == kind]
        assert rows["rate"].tolist() in drawn
    assert {"frequent", "rare"} <= {line.get_label() for line in right.get_lines()}
    last = table[(table["tokens"] == "all") & (table["block"] == 2)].iloc[0]
    assert f"{last['rate']:.3g} %" in panel.findings[0].text
    assert f"{int(last['n_patches'])} patches of 6 images" in panel.captions["patches_levels"]
    assert len(attention.figures["patches_heads"].axes) == 3  # a heat map each, one colour bar
    assert "head" in attention.findings[0].text


def test_the_slider_shows_the_reading_of_every_block(runs, panels):
    html = str(panels[0].html)
    assert html.count('class="frame"') == 4  # the embedding and three blocks
    assert "<b>rpc" not in html  # a label is no markup
    table = runs["softmax"].table("patches_maps")
    cells = table[(table["image"] == 0) & (table["block"] == 2)]
    expected = label_image(cells["class"].to_numpy().reshape(6, 6), class_colours(CLASSES))
    assert expected in html
    known = cells[cells["truth"] >= 0]
    assert f"{100 * (known['class'] == known['truth']).mean():.0f} %" in html
    assert {f">{number}</span>" in html for number in range(CLASSES)} == {True}  # the legend


def test_a_run_without_the_lens_has_no_panel(tmp_path):
    with Run.create(tmp_path / "other", {}, kind="analyze") as run:
        run.finish()
    assert patches_panel({"other": Run.open(tmp_path / "other")}) is None
    assert patch_attention_panel({"other": Run.open(tmp_path / "other")}) is None


@pytest.mark.parametrize("classes", [2, 11, 150])
def test_every_class_has_a_colour_of_its_own(classes):
    colours = class_colours(classes)
    assert len({*colours, NONE}) == classes + 1
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in colours)
    assert class_colours(150)[:classes] == colours  # a class keeps its colour, however many there are
    assert not set(colours) & set(CSS_VARIABLES)  # and on a dark page, in the legend as in the pixels


def test_a_label_map_has_one_pixel_per_cell_in_these_colours():
    labels, colours = np.array([[0, 2, -1], [1, 1, 3]]), class_colours(4)
    data = base64.b64decode(label_image(labels, colours).partition(",")[2])
    pixels = np.asarray(Image.open(io.BytesIO(data)))
    for place, number in np.ndenumerate(labels):
        wanted = NONE if number < 0 else colours[number]
        assert "#" + bytes(pixels[place]).hex() == wanted
