"""The first screen: cards, the table of several models, and what fits on a screen."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from first_screen import first_screen
from vitscope.registry import PANELS
from vitscope.report import Finding, Panel, build_report, register_panel
from vitscope.report.card import HEIGHT, WIDTH, Card, Mark, Value, best, of_words, shown, side_by_side
from vitscope.report.figures import model_styles
from vitscope.runs import Run

STYLES = model_styles(["a", "b"])


def card(**changes: Any) -> Card:
    given: dict[str, Any] = {
        "question": "Is it right?", "says": "of images", "name": "right",
        "values": {"a": Value(90.0, 88.0, 92.0), "b": Value(80.0, 77.0, 83.0)},
    }  # fmt: skip
    return Card(**(given | changes))


def test_an_interval_below_zero_is_said_with_a_word() -> None:
    texts = [
        shown(card(values={"a": Value(2.0, low, 3.0)}), "x", STYLES)["values"][0]["interval"] for low in (1.0, -1.0)
    ]
    assert texts == ["1.00–3.00", "−1.00 to 3.00"]


@pytest.mark.parametrize(
    ("a", "b", "larger", "expected"),
    [
        (Value(90, 88, 92), Value(80, 77, 83), True, "a"),
        (Value(90, 88, 92), Value(80, 77, 83), False, "b"),
        (Value(90, 82, 95), Value(80, 77, 83), True, None),  # the intervals meet
        (Value(90), Value(80, 77, 83), True, None),  # one has none
        (Value(90, 88, 92), Value(80, 77, 83), None, None),  # neither is better
    ],
)
def test_a_value_is_best_only_where_its_interval_meets_no_other(
    a: Value, b: Value, larger: bool | None, expected: str | None
) -> None:
    assert best(card(values={"a": a, "b": b}, larger=larger)) == expected


def test_one_model_has_no_best() -> None:
    assert best(card(values={"a": Value(90, 88, 92)})) is None


def test_the_table_has_models_as_columns_and_a_gap_where_one_was_not_measured() -> None:
    (row,) = side_by_side([("accuracy", card(values={"b": Value(80.0, 77.0, 83.0)}))], ["a", "b"])
    assert row["cells"][0] is None
    assert row["cells"][1]["interval"] == "77.0–83.0"
    assert "80.0" in row["cells"][1]["number"]


def test_lines_lie_inside_of_the_small_figure_on_one_scale() -> None:
    figure = shown(card(lines={"a": [0, 50, 100], "b": [100, math.nan, 25]}, chance=10), "x", STYLES)["figure"]
    lines = [e.attrib["points"] for e in ET.fromstring(figure).iter() if e.tag == "polyline"]
    points = [[tuple(map(float, p.split(","))) for p in line.split()] for line in lines]
    assert len(points[0]) == 3
    assert len(points[1]) == 2  # what is not known is left out
    assert points[0][2][1] == points[1][0][1]  # both are 100
    assert points[0][0][1] > points[0][1][1] > points[0][2][1]  # up is more
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for line in points for x, y in line)


def test_a_number_without_curve_has_whiskers_where_it_is_a_share() -> None:
    assert "stroke" in shown(card(), "x", STYLES)["figure"]
    assert shown(card(values={"a": Value(3.0, unit="px")}), "x", STYLES)["figure"] == ""


def test_a_strip_says_its_verdicts_in_words_and_escapes_them() -> None:
    figure = shown(card(marks=[Mark("fails", "<claim>: does not hold")]), "x", STYLES)["figure"]
    assert "&lt;claim&gt;: does not hold" in figure
    assert "<claim>" not in figure


def test_a_lens_without_a_card_shows_its_most_interesting_finding() -> None:
    panel = Panel(key="k", title="Why?", findings=[Finding("dull", 0.1), Finding("telling", 0.9)])
    found = of_words(panel)
    assert found is not None
    assert found["says"] == "telling"
    assert of_words(Panel(key="k", title="Why?")) is None


@pytest.fixture
def page(make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two models and six lenses, one of them with two panels."""
    monkeypatch.setattr(PANELS, "_homes", {})
    monkeypatch.setattr(PANELS, "_things", {})

    def lens(key: str, name: str, carded: bool = True) -> None:
        @register_panel(key)
        def panel(runs: Mapping[str, Run]) -> Panel | None:
            values = {label: Value(90.0 + i, 89.5 + i, 90.4 + i) for i, label in enumerate(runs)}
            lines = {label: [10, 40 + i, 90] for i, label in enumerate(runs)}
            made = card(question=f"Is {name} <so>?", values=values, lines=lines, says="of the images are so")
            return Panel(
                key=key, lens=name, title=f"How is {key}?", findings=[Finding("it is long " * 12)] * 4,
                card=made if carded else None,
            )  # fmt: skip

    for number in range(6):
        lens(f"p{number}", f"lens{number}")
    lens("p0_more", "lens0", carded=False)
    return build_report([make_run("a"), make_run("b", seed=1)], strict=True)


def test_the_first_screen_is_an_answer_with_a_picture_and_few_words(browser: Any, page: Path) -> None:
    words, pictures, figures = first_screen(browser, page)
    assert len(words) <= 120
    assert pictures >= 1
    assert figures >= 3
    canvas = "const c = document.querySelector('.hero canvas'); return [c.width, c.height]"
    assert browser.execute_script(canvas) == [7, 7]
    assert browser.execute_script("return document.querySelectorAll('.card').length") == 6  # one per lens
    heads = browser.execute_script("return [...document.querySelectorAll('.card h2')].map(h => h.textContent)")
    assert heads[0] == "Is lens0 <so>?"
    assert not browser.execute_script("return document.querySelector('#findings').open")
    order = browser.execute_script("return [...document.querySelectorAll('main > *')].map(e => e.id)")
    assert order.index("images") < order.index("p0") < order.index("findings") < order.index("key-figures")


def test_the_best_of_two_models_is_marked_in_the_table(page: Path) -> None:
    html = page.read_text("utf-8")
    table = html[html.index('class="side-by-side"') :]
    table = table[: table.index("</table>")]
    assert table.count('class="mark"') == 6  # 91 against 90, intervals apart, in every row
    assert re.search(r'90\.0 %.*?91\.0 %</span> <span class="mark">best', table, re.DOTALL)
