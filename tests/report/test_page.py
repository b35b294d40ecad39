"""build_report: what is in the file. How it behaves is tested in a browser (test_browser.py)."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from vitscope.errors import RunError
from vitscope.registry import PANELS
from vitscope.report import Finding, Panel, build_report, collect_findings, register_panel
from vitscope.report import figures as f
from vitscope.report.page import LARGEST_PAGE
from vitscope.runs import Run

MakeRun = Callable[..., Run]


@pytest.fixture
def per_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page with one panel, whatever analyses the package brings."""
    monkeypatch.setattr(PANELS, "_homes", {})
    monkeypatch.setattr(PANELS, "_things", {})

    @register_panel("per_block")
    def panel(runs: Mapping[str, Run]) -> Panel | None:
        fig, (ax,) = f.new_figure()
        tables = {label: run.table("per_block") for label, run in runs.items()}
        for label, style in f.model_styles(runs).items():
            table = tables[label]
            assert table is not None
            f.line_per_block(ax, table["block"], table["value"], style=style, label=label)
        f.direct_labels(ax)
        return Panel(
            key="per_block",
            title="Is it <large>?",
            figures={"per_block": fig},
            alt={"per_block": "value per block"},
            captions={"per_block": "n = 1,000 <images>"},
            reading="Up is <more>.",
            tables={"per_block": pd.concat([t.assign(model=k) for k, t in tables.items() if t is not None])},
            protocol="all <classes>",
            findings=[Finding("it is <b>large</b>", 0.9), Finding("dull", 0.1)],
            html="<p id='extra'>trusted</p>",
        )


class Page(HTMLParser):
    """Tags, ids, links and visible text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._raw = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._raw = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._raw = False

    def handle_data(self, data: str) -> None:
        if not self._raw:
            self.text += data

    def values(self, attribute: str) -> list[str]:
        return [v for _, attrs in self.tags if (v := attrs.get(attribute))]


def _page(path: Path) -> Page:
    return Page(path.read_text("utf-8"))


@pytest.mark.usefixtures("per_block")
def test_the_page_has_all_parts_of_a_panel_in_order(make_run: MakeRun) -> None:
    run = make_run("vit_tiny")
    out = build_report(run, strict=True)
    assert out == run.path.resolve() / "report.html"
    text = _page(out).text
    order = ["vit_tiny", "mnist5k (test)", "It is <b>large</b>", "What does the model see", "n = 1,000 <images>",
             "Up is <more>.", "trusted", "The table behind it", "all <classes>", "All 2 findings", "Key figures",
             "How this was made", "9f2c51d0aa31"]  # fmt: skip
    start = text.index("vitscope report")  # after the contents, which name the sections too
    places = [text.index(part, start) for part in order]
    assert places == sorted(places)


@pytest.mark.usefixtures("per_block")
def test_figures_are_saved_beside_the_tables(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run("a")
    build_report(run, tmp_path / "elsewhere" / "page.html", strict=True)
    assert sorted(p.name for p in run.figures_dir.iterdir()) == ["per-block.png", "per-block.svg"]
    build_report([run, make_run("b")], tmp_path / "both", strict=True)
    assert (tmp_path / "both" / "report.html").exists()
    assert (tmp_path / "both" / "figures" / "per-block.svg").exists()


@pytest.mark.usefixtures("per_block")
def test_a_redrawn_page_is_the_same_to_the_byte(make_run: MakeRun) -> None:
    run = make_run("a")
    assert build_report(run).read_bytes() == build_report(run).read_bytes()


@pytest.mark.usefixtures("per_block")
def test_nothing_is_loaded_from_anywhere(make_run: MakeRun) -> None:
    html = build_report([make_run("a"), make_run("b", seed=1)], strict=True).read_text("utf-8")
    page = Page(html)
    assert all(src.startswith("data:") for src in page.values("src"))
    for tag, attrs in page.tags:
        if tag == "link":
            assert (attrs.get("href") or "").startswith("data:")
        assert tag not in ("iframe", "object", "embed", "base")
    assert "@import" not in html
    assert not re.search(r"url\((?!#|\"data:)", html)
    assert len(html.encode()) < LARGEST_PAGE


@pytest.mark.usefixtures("per_block")
def test_every_anchor_leads_somewhere_and_no_id_is_there_twice(make_run: MakeRun) -> None:
    page = _page(build_report([make_run("a"), make_run("b", seed=1)], strict=True))
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    anchors = {h[1:] for tag, attrs in page.tags if tag == "a" and (h := attrs.get("href") or "").startswith("#")}
    assert {"top", "per-block", "images", "made"} <= anchors <= set(ids)


@pytest.mark.filterwarnings("ignore:Glyph")
@pytest.mark.usefixtures("per_block")
def test_control_characters_in_names_break_neither_the_page_nor_its_figures(make_run: MakeRun) -> None:
    runs = [make_run("bell\x07", folder="a", classes=["esc\x1b[31m"] * 10), make_run("other", seed=1)]
    out = build_report(runs, strict=True)
    assert not set(re.findall(r"[\x00-\x1f]", out.read_text())) - {"\n", "\t"}
    (svg,) = (out.parent / "figures").glob("*.svg")
    assert "bell\N{REPLACEMENT CHARACTER}" in [e.text for e in ET.parse(svg).getroot().iter() if e.text]


@pytest.mark.usefixtures("per_block")
def test_csv_links_lead_from_the_page_to_the_tables(make_run: MakeRun) -> None:
    a, b = make_run("a", folder="name with space & <b>"), make_run("b")
    out = build_report([a, b], strict=True)
    from urllib.parse import unquote

    links = [attrs.get("href") or "" for tag, attrs in _page(out).tags if tag == "a"]
    targets = {(out.parent / unquote(link)).resolve() for link in links if link.endswith(".csv")}
    assert targets == {(r.tables_dir / "per_block.csv").resolve() for r in (a, b)}


@pytest.mark.usefixtures("per_block")
def test_an_unfinished_run_is_drawn_and_said_to_be_so(make_run: MakeRun) -> None:
    run = make_run("a", finished=False)
    (run.tables_dir / "images.csv").unlink()
    text = _page(build_report(run, strict=True)).text
    assert "is unfinished" in text
    assert "Is it <large>?" in text


def test_an_empty_unfinished_run_still_gives_a_page(tmp_path: Path) -> None:
    Run.create(tmp_path / "r", {"model": {"name": "m"}}, kind="analyze").close()
    text = _page(build_report(tmp_path / "r", strict=True)).text
    assert "is unfinished" in text
    assert "How this was made" in text


@pytest.mark.usefixtures("per_block")
def test_a_panel_that_fails_is_named_and_does_not_cost_the_others(
    make_run: MakeRun, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run("a")

    @register_panel("broken")
    def broken(runs: Mapping[str, Run]) -> Panel | None:
        raise KeyError("<column>")

    text = _page(build_report(run)).text
    assert "The panel 'broken' could not be drawn (KeyError: '<column>')" in text
    assert "Is it <large>?" in text
    (record,) = caplog.records  # one line, without a traceback
    assert record.getMessage().endswith("report.html: The panel 'broken' could not be drawn (KeyError: '<column>').")
    assert record.exc_info is None
    with pytest.raises(KeyError):
        build_report(run, strict=True)


@pytest.mark.usefixtures("per_block")
def test_a_folder_that_cannot_be_written_still_gives_the_page_elsewhere(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run("a")
    run.figures_dir.write_text("a file in the place of the folder")
    text = _page(build_report(run, tmp_path / "page.html", strict=True)).text
    assert "is on this page only" in text
    with pytest.raises(RunError, match="Cannot write"):
        build_report(run, run.figures_dir / "page.html")


@pytest.mark.usefixtures("per_block")
def test_findings_are_ranked_by_interest(make_run: MakeRun) -> None:
    found = collect_findings(make_run("a"))
    assert [finding.text for finding in found] == ["It is <b>large</b>", "Dull"]
    assert len(collect_findings(make_run("b"), 1)) == 1


@pytest.mark.usefixtures("per_block")
def test_huge_tables_and_many_images_stay_under_the_size(make_run: MakeRun) -> None:
    run = make_run("a")
    rng = np.random.default_rng(0)

    @register_panel("big")
    def big(runs: Mapping[str, Run]) -> Panel | None:
        wide = pd.DataFrame(rng.random((5000, 50)), columns=[f"c{i}" for i in range(50)])
        return Panel(key="big", title="big", tables={f"big{i}": wide for i in range(3)})

    out = build_report(run, strict=True)
    assert out.stat().st_size <= LARGEST_PAGE
    assert "of 5,000 rows" in out.read_text("utf-8")


def test_the_package_s_own_panels_are_found(make_training: MakeRun) -> None:
    page = _page(build_report(make_training("t"), strict=True))
    assert "training" in page.values("id")
    assert {"training"} <= set(PANELS.names())
