"""SVG for the page and for paper."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image

from vitscope.report import figures as f
from vitscope.report.svg import inline_svg, save_figure, slug, to_svg


def _figure(text: str = "a<b>&\"'") -> Figure:
    with f.house_style():
        fig, axes = f.new_figure(columns=2)
        for ax in axes:
            f.line_per_block(ax, [0, 1, 2], [1, 3, 2], style=f.LineStyle(f.BLUE), label=text)
        f.direct_labels(axes[0])
    return fig


def test_the_same_figure_gives_the_same_bytes(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        save_figure(_figure(), tmp_path / folder, "x")
    for name in ("x.svg", "x.png"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert "202" not in re.sub(r"[\d.]*\d\.\d+", "", (tmp_path / "a" / "x.svg").read_text()).split("<style")[0]


def test_files_are_valid_white_and_of_paper_size(tmp_path: Path) -> None:
    svg, png = save_figure(_figure(), tmp_path, "x")
    root = ET.parse(svg).getroot()
    assert float(root.attrib["width"].removesuffix("pt")) == f.PAGE * 72
    image = Image.open(png).convert("RGBA")
    assert image.width == f.PAGE * 200
    assert image.getpixel((0, 0)) == (255, 255, 255, 255)


def test_two_inline_figures_have_no_id_in_common_and_all_references_resolve() -> None:
    ids = []
    for key in ("one", "two"):
        svg = inline_svg(to_svg(_figure(), key), key, "alt")
        own = re.findall(r'\bid="([^"]+)"', svg)
        assert len(own) == len(set(own))
        assert set(re.findall(r'(?:url\(#|href="#)([^")]+)', svg)) <= set(own)
        ids.append(set(own))
    assert ids[0]
    assert not ids[0] & ids[1]


def test_inks_become_css_variables_and_alt_text_is_escaped() -> None:
    svg = inline_svg(to_svg(_figure(), "k"), "k", 'say "<b>"')
    assert f.INK not in svg
    assert f.BLUE not in svg
    assert "var(--ink)" in svg
    assert "var(--blue)" in svg
    root = ET.fromstring(svg)
    assert root.attrib["aria-label"] == 'say "<b>"'
    assert root[0].text == 'say "<b>"'


def test_text_stays_text() -> None:
    root = ET.fromstring(inline_svg(to_svg(_figure("label <1>"), "k"), "k", ""))
    assert "label <1>" in [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.filterwarnings("ignore:Glyph")
@pytest.mark.parametrize("character", ["\0", "\x07", "\x0b", "\x1b", "\x1f", "\ufffe", "\uffff"], ids=ascii)
def test_a_label_with_a_control_character_leaves_a_file_that_is_xml(tmp_path: Path, character: str) -> None:
    svg, _ = save_figure(_figure(f"bell{character}"), tmp_path, "x")
    assert "bell\N{REPLACEMENT CHARACTER}" in [e.text for e in ET.parse(svg).getroot().iter() if e.text]


def test_slugs_are_safe_names() -> None:
    assert slug("Kernel PCA/../x <y>") == "kernel-pca-x-y"
    assert slug("…") == "x"
