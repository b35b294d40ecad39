"""What objects look like in a notebook: escaped, without script, and with what the run holds."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from html.parser import HTMLParser
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image

import vitscope
from vitscope.errors import VitscopeError
from vitscope.registry import PANELS
from vitscope.report.card import Card, Value
from vitscope.report.notebook import DPI, figure_html
from vitscope.report.panel import Finding, Panel, register_panel
from vitscope.runs import Run

HOSTILE = "<script>alert(1)</script>\"'&"


class Read(HTMLParser):
    """Tags in their order, their attributes, and all text; unbalanced markup is an error."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text, self.open = "", list[str]()
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def harmless(self) -> bool:
        return "script" not in self.tags and not any(name.startswith("on") for name, _ in self.attributes)


def pictures(html: str) -> list[Image.Image]:
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', html)
    return [Image.open(io.BytesIO(base64.b64decode(data))) for data in found]


@pytest.fixture
def blobs() -> Iterator[None]:
    """A panel with a card, a figure and a finding about the table `maps_attention` of the fabricated runs."""
    from vitscope.report import figures as f

    def draw(runs: Mapping[str, Run]) -> Panel | None:
        fig, (ax,) = f.new_figure()
        ax.plot([0, 1], [0, 1])
        card = Card("How bright?", {label: Value(12.5, 12.0, 13.0) for label in runs}, "of cells shine", "shining")
        return Panel("blobs", "Where is it bright?", {"b": fig}, findings=[Finding("It shines.")], card=card)

    with PANELS.restored():
        register_panel("blobs")(draw)
        yield


@pytest.mark.usefixtures("blobs")
def test_a_run_shows_its_cards_and_figures(make_run: Callable[..., Run]) -> None:
    html = make_run("vit_tiny")._repr_html_()
    read = Read(html)
    assert read.harmless
    assert "How bright?12.5 % 12.0–13.0of cells shine" in read.text
    assert "Where is it bright? blobsIt shines." in read.text
    (figure,) = pictures(html)
    assert figure.size == (round(7.0 * DPI), round(2.6 * DPI))
    assert len(html) < 40_000


def test_what_is_small_in_a_figure_keeps_its_colour() -> None:
    figure = plt.figure(figsize=(7, 2.6))
    for y, colour in ((0.5, "#009e73"), (0.2, "#d55e00")):
        figure.add_artist(plt.Line2D([0.1, 0.9], [y, y + 0.1], color=colour, linewidth=20))
    figure.add_artist(plt.Line2D([0.1, 0.11], [0.9, 0.9], color="#0072b2", linewidth=2))  # as in a legend
    figure.figimage(np.random.default_rng(0).random((100, 400, 3)))  # many other colours
    (image,) = pictures(str(figure_html(figure, "three lines")))
    plt.close(figure)
    pixels = np.asarray(image.convert("RGB")).astype(int)
    assert (abs(pixels[:60] - (0x00, 0x72, 0xB2)).max(-1) <= 16).any()
    assert (pixels[0] == 255).all()  # paper stays white


@pytest.mark.usefixtures("blobs")
def test_a_run_shows_its_remarks(make_run: Callable[..., Run]) -> None:
    run = make_run("vit_tiny")
    (run.path / "warnings.json").write_text(json.dumps({"warnings": ["The pictures <b> are in colour."]}))
    assert "Note: The pictures <b> are in colour." in Read(run._repr_html_()).text
    (run.path / "warnings.json").unlink()
    assert "Note:" not in run._repr_html_()


@pytest.mark.usefixtures("blobs")
def test_one_panel_of_several_runs_is_one_call(make_run: Callable[..., Run]) -> None:
    panel = vitscope.panel([make_run("a"), make_run("b", seed=1)], "blobs")
    assert repr(panel) == "Panel('blobs': Where is it bright? 1 figure, 1 findings)"
    assert panel.card is not None
    assert list(panel.card.values) == ["a", "b"]
    assert len(pictures(panel._repr_html_())) == 1


@pytest.mark.usefixtures("blobs")
def test_a_panel_that_is_not_there_is_answered_with_those_that_are(make_run: Callable[..., Run]) -> None:
    with pytest.raises(VitscopeError, match=r"nothing to draw for the panel 'kpca_values'.* There are: blobs"):
        vitscope.panel(make_run("vit_tiny"), "kpca_values")
    with pytest.raises(VitscopeError, match="Did you mean attention"):
        vitscope.panel(make_run("vit_tiny"), "atention")


def test_foreign_words_are_text() -> None:
    card = Card(HOSTILE, {HOSTILE: Value(1.0)}, HOSTILE, HOSTILE)
    panel = Panel(HOSTILE, HOSTILE, reading=HOSTILE, findings=[Finding(HOSTILE)], card=card)
    picture = vitscope.Picture(np.eye(2), {HOSTILE: np.zeros((1, 2, 2))}, HOSTILE)
    for thing in (panel, picture):
        read = Read(thing._repr_html_())
        assert read.harmless
        assert read.text.count(HOSTILE) >= 2


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 3), (3, 4, 6), (1, 4, 6)])
def test_a_picture_is_drawn_pixel_by_pixel(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).normal(size=shape)
    (image,) = pictures(vitscope.Picture(values)._repr_html_())
    assert image.size == (6, 4)
    flat = np.moveaxis(values, 0, -1) if shape[0] in (1, 3) else values
    grey = (flat - flat.min()) / (flat.max() - flat.min()) * 255
    np.testing.assert_allclose(np.asarray(image, float).reshape(grey.shape), grey, atol=0.5)


def test_maps_of_all_blocks_share_one_scale() -> None:
    """The largest value has the last colour of the scale, half of it the middle one, in whichever block it lies."""
    from matplotlib import colormaps

    maps = np.zeros((2, 2, 2))
    maps[0, 0, 0], maps[1, 1, 1] = 1.0, 2.0
    _, first, second = pictures(vitscope.Picture(np.eye(2), {"map": maps})._repr_html_())
    colours = (np.array([colormaps["cividis"](x)[:3] for x in (0.0, 0.5, 1.0)]) * 255).round().tolist()
    corner, last = (1, 1), (first.width - 1, first.height - 1)
    seen = [first.convert("RGB").getpixel(at) for at in (last, corner)] + [second.convert("RGB").getpixel(last)]
    assert [list(map(float, pixel)) for pixel in seen] == colours


def test_a_map_of_another_shape_is_refused() -> None:
    with pytest.raises(VitscopeError, match=r"the shape \(4, 2, 2, 2\): expected \(blocks, rows, columns\)"):
        vitscope.Picture(np.eye(2), {"heads": np.zeros((4, 2, 2, 2))})


def test_a_run_gives_its_pictures_with_their_maps(make_run: Callable[..., Run]) -> None:
    run = make_run("vit_tiny")
    picture = vitscope.picture(run, 1)
    table: Any = run.table("maps_attention")
    cells = table[(table["image"] == 1) & (table["block"] == 2)]
    np.testing.assert_array_equal(
        picture.maps["attention"][2], cells.pivot(index="row", columns="col", values="value").to_numpy()
    )
    with pytest.raises(VitscopeError, match=r"keeps no picture 77\. It has 0, 1, 2"):
        vitscope.picture(run, 77)
