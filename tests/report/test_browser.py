"""The page in a real headless Chromium: no error, no network, and everything that can be touched works."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from vitscope.registry import PANELS
from vitscope.report import Finding, Panel, build_report, register_panel
from vitscope.report import figures as f
from vitscope.runs import Run

HOSTILE = """<script>document.title='hacked'</script>"><img src=x onerror="document.title='hacked'">'&amp;"""


def hostile_panel(runs: Mapping[str, Run]) -> Panel:
    """All text that can come from outside, hostile."""
    fig, (ax,) = f.new_figure(height=2)
    f.line_per_block(ax, range(6), range(6), style=f.LineStyle(f.BLUE), label=HOSTILE)
    f.label_axes(ax, x=HOSTILE[:40], y="y", title=f.ellipsis(HOSTILE))
    f.direct_labels(ax)
    table = pd.DataFrame({"name": [HOSTILE, "b", "a"], "value": [10.123456, 2.5, -1e-7], HOSTILE: [1, 2, 3]})
    return Panel(
        key="hostile", title=HOSTILE, figures={"hostile": fig}, alt={"hostile": HOSTILE}, captions={"hostile": HOSTILE},
        reading=HOSTILE, tables={"hostile": table}, protocol=HOSTILE, findings=[Finding(HOSTILE)],
    )  # fmt: skip


@pytest.fixture(scope="module")
def page(run_makers: tuple[Callable[..., Run], Callable[..., Run]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, one of them trained here, with hostile names everywhere."""
    from vitscope.training import panel as training

    analysis_run, training_run = run_makers
    root = tmp_path_factory.mktemp("runs")
    model = {"name": "vit_tiny_patch16_224.augreg_in21k_ft_in1k", "run": "t"}
    runs = [
        analysis_run(root, model["name"], folder="first", config={"model": model}),
        analysis_run(root, HOSTILE, folder="second", seed=1, blocks=3, classes=[HOSTILE, "$\\frac{1}$"]),
        training_run(root, "t", best=0.93),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PANELS, "_homes", {})
        patch.setattr(PANELS, "_things", {})
        register_panel("hostile")(hostile_panel)
        register_panel("training")(training.training_panel)
        return build_report(runs, strict=True)


@pytest.fixture
def opened(browser: Any, page: Path) -> Any:
    _media(browser)
    _screen(browser, 1280)
    browser.get(page.as_uri())
    return browser


def _media(browser: Any, media: str = "", scheme: str = "light") -> None:
    """Without smooth scrolling, so that a click hits what it aims at."""
    features = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
    listed = [{"name": name, "value": value} for name, value in features.items()]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": listed})


def _screen(browser: Any, width: int) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    )


def _all(browser: Any, selector: str) -> list[Any]:
    return list(browser.find_elements("css selector", selector))


def _column(browser: Any, number: int) -> list[str]:
    cells = f"#hostile tbody tr:not([hidden]) td:nth-child({number})"
    return browser.execute_script("return [...document.querySelectorAll(arguments[0])].map(c => c.textContent)", cells)


def _errors(browser: Any) -> list[str]:
    """Errors and warnings, but for the advice that follows from the tests' own reading of canvases."""
    found = [e["message"] for e in browser.get_log("browser") if e["level"] in ("SEVERE", "WARNING")]
    return [message for message in found if "willReadFrequently" not in message]


def test_no_console_error_no_network_and_nothing_foreign_runs(opened: Any, page: Path) -> None:
    opened.get("about:blank")
    for log in ("browser", "performance"):
        opened.get_log(log)  # what the browser itself did at its start
    opened.get(page.as_uri())
    assert _errors(opened) == []
    assert opened.title.endswith("· vitscope")
    assert HOSTILE in opened.title
    assert _all(opened, "img[onerror]") == []
    requests = [
        message["params"]["request"]["url"]
        for entry in opened.get_log("performance")
        if (message := json.loads(entry["message"])["message"])["method"] == "Network.requestWillBeSent"
    ]
    foreign = [url for url in requests if not url.startswith(("data:", "file:"))]
    assert page.as_uri() in requests
    assert foreign == []
    assert {url for url in requests if url.startswith("file:")} == {page.as_uri()}


def test_hostile_names_are_shown_as_they_are(opened: Any) -> None:
    assert _column(opened, 1)[0] == HOSTILE
    assert opened.execute_script("return document.querySelector('#hostile h2').textContent") == HOSTILE
    assert HOSTILE in opened.execute_script("return document.querySelector('h1').textContent")
    assert HOSTILE in opened.execute_script("return document.querySelector('#made').textContent")


@pytest.mark.parametrize("width", [360, 800, 1280])
def test_no_horizontal_scroll_and_every_figure_has_a_size(browser: Any, page: Path, width: int) -> None:
    _screen(browser, width)
    browser.get(page.as_uri())
    browser.execute_script("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    size = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    assert browser.execute_script(size) == [width, width]
    boxes = browser.execute_script(
        "return [...document.querySelectorAll('.figure svg, #gallery canvas, #gallery img')]"
        ".map(e => e.getBoundingClientRect()).map(r => [r.width, r.height])"
    )
    assert len(boxes) > 20
    assert all(w > 0 and h > 0 for w, h in boxes)
    figures = browser.execute_script(
        "return [...document.querySelectorAll('.figure svg')].map(e => e.getBoundingClientRect().width)"
    )
    assert all(w >= 300 for w in figures)


def test_the_sorter_sorts_numbers_by_value_and_text_by_letter(opened: Any) -> None:
    opened.execute_script("document.querySelector('#hostile .behind').open = true")
    name, value, _ = _all(opened, "#hostile thead button")
    value.click()
    assert _column(opened, 2) == ["−1.00e−7", "2.50", "10.1"]
    value.click()
    assert _column(opened, 2) == ["10.1", "2.50", "−1.00e−7"]
    heads = [th.get_attribute("aria-sort") for th in _all(opened, "#hostile thead th")]
    assert heads == [None, "descending", None]
    name.click()
    assert _column(opened, 1) == [HOSTILE, "a", "b"]
    assert _all(opened, "#hostile td.n")[0].get_attribute("title") == "10.123456"


def test_the_filter_hides_rows_and_counts(opened: Any) -> None:
    opened.execute_script("document.querySelector('#hostile .behind').open = true")
    box = _all(opened, "#hostile input[type=search]")[0]
    box.send_keys("HACKED")
    assert _column(opened, 1) == [HOSTILE]
    assert _all(opened, "#hostile .count")[0].text == "1 of 3 rows"
    box.clear()
    box.send_keys("2.50 b")
    assert _column(opened, 1) == ["b"]


def test_sections_fold_and_a_link_unfolds_its_section(opened: Any) -> None:
    fold, unfold = _all(opened, "[data-fold]")
    fold.click()
    assert {d.get_attribute("open") for d in _all(opened, "details.panel")} == {None}
    assert not _all(opened, "#training .figure svg")[0].is_displayed()
    _all(opened, ".toc a[href='#training']")[0].click()
    assert _all(opened, "#training")[0].get_attribute("open") is not None
    assert _all(opened, "#training .figure svg")[0].is_displayed()
    unfold.click()
    assert None not in {d.get_attribute("open") for d in _all(opened, "details.panel")}
    assert not _all(opened, "#hostile table")[0].is_displayed()  # tables stay folded until asked for


def test_the_slider_moves_with_keys_and_buttons(opened: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    bar = _all(opened, "#slider-training input")[0]
    shown = "#slider-training .frame:not([hidden])"
    assert _all(opened, "#slider-training output")[0].text == "epoch 12"
    assert _all(opened, shown)[0].get_attribute("data-label") == "12"
    before = _all(opened, shown)[0].text
    bar.send_keys(Keys.ARROW_LEFT)
    assert _all(opened, "#slider-training output")[0].text == "epoch 11"
    assert len(_all(opened, shown)) == 1
    assert _all(opened, shown)[0].text != before
    previous, following = _all(opened, "#slider-training .step")
    previous.click()
    assert _all(opened, shown)[0].get_attribute("data-label") == "10"
    bar.send_keys(Keys.END)
    assert not following.is_enabled()
    assert bar.get_attribute("aria-valuetext") == "epoch 12"


PIXELS = """
    const c = arguments[0];
    return [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data];
"""


def test_the_gallery_shows_another_image_and_slides_over_blocks(opened: Any) -> None:
    overlay = _all(opened, "#gallery .stage canvas")[0]
    grids = _all(opened, "#gallery .cells")
    assert [len(grid.find_elements("css selector", "button")) for grid in grids] == [6, 6, 3, 3]
    assert _all(opened, "#block-slider output")[0].text == "block 5"
    at_block_5 = opened.execute_script(PIXELS, overlay)
    _all(opened, "#block-slider .step")[0].click()
    assert _all(opened, "#block-slider output")[0].text == "block 4"
    at_block_4 = opened.execute_script(PIXELS, overlay)
    assert at_block_4 != at_block_5
    small = grids[0].find_elements("css selector", "button")
    assert small[4].get_attribute("aria-pressed") == "true"
    assert opened.execute_script(PIXELS, small[4].find_element("css selector", "canvas")) == at_block_4
    small[0].click()
    assert _all(opened, "#block-slider output")[0].text == "block 0"
    first = _all(opened, "#gallery .stage img")[0].get_attribute("src")
    opened.execute_script("arguments[0].click()", _all(opened, ".thumb input")[2])
    assert _all(opened, "#gallery .stage img")[0].get_attribute("src") != first
    assert "digits/2.png" in _all(opened, ".about .facts")[0].text
    assert _errors(opened) == []


def test_the_brightest_cell_and_the_value_under_the_pointer_are_those_of_the_table(opened: Any, page: Path) -> None:
    table = Run.open(page.parent / "first").table("maps_attention")
    assert table is not None
    cells = table[(table["image"] == 0) & (table["block"] == 5)]
    peak = cells.loc[cells["value"].idxmax()]
    for selector in ("#gallery .stage canvas", '#gallery .cell[data-block="5"] canvas'):
        opened.execute_script(
            "const c = document.querySelector(arguments[0]), b = c.getBoundingClientRect();"
            "const at = {clientX: b.left + b.width * arguments[1], clientY: b.top + b.height * arguments[2]};"
            "c.dispatchEvent(new PointerEvent('pointermove', {...at, bubbles: true}))",
            selector, (peak["col"] + 0.5) / 7, (peak["row"] + 0.5) / 7,
        )  # fmt: skip
        told = _all(opened, "#gallery .readout")[0].text
        assert f"attention, block 5, row {peak['row']}, column {peak['col']}: about " in told
        largest = table[table["image"] == 0]["value"].max()
        assert float(told.rpartition(" ")[2]) == pytest.approx(peak["value"], abs=0.51 * largest / 255 + 0.0051)
    pixels = opened.execute_script(PIXELS, _all(opened, "#gallery .stage canvas")[0])
    brightness = [sum(pixels[i : i + 3]) for i in range(0, len(pixels), 4)]
    assert divmod(brightness.index(max(brightness)), 7) == (peak["row"], peak["col"])


def test_keyboard_reaches_every_control_and_focus_is_visible(opened: Any) -> None:
    def tab() -> list[Any]:
        opened.execute_cdp_cmd(
            "Input.dispatchKeyEvent", {"type": "keyDown", "key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}
        )
        return opened.execute_script(
            "const e = document.activeElement; return [`${e.localName} ${e.getAttribute('type') || ''}`.trim(),"
            "  e.textContent, getComputedStyle(e).outlineStyle]"
        )

    opened.execute_script("document.body.tabIndex = -1; document.body.focus()")
    assert tab()[1] == "Skip to the report"
    seen = set()
    for _ in range(100):
        kind, _, outline = tab()
        if kind == "body":  # past the last one
            break
        seen.add(kind)
        assert outline != "none" or kind == "input radio"
    assert {"a", "button button", "summary", "input range", "div"} <= seen


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_light_and_dark(browser: Any, page: Path, scheme: str) -> None:
    _media(browser, scheme=scheme)
    try:
        _screen(browser, 1280)
        browser.get(page.as_uri())
        colours = browser.execute_script("""
            const colour = (e, p) => getComputedStyle(e)[p];
            const all = (selector, property) => [...document.querySelectorAll(selector)].map(e => colour(e, property));
            const texts = all('main p, main h2, figcaption, td, .toc a', 'color');
            const drawn = all('.figure svg text', 'fill');
            return [colour(document.body, 'backgroundColor'), [...new Set([...texts, ...drawn])]];
        """)
    finally:
        _media(browser)
    background, texts = colours
    assert (_luminance(background) > 0.5) == (scheme == "light")
    assert len(texts) >= 3
    for text in texts:
        a, b = sorted((_luminance(background), _luminance(text)))
        assert (b + 0.05) / (a + 0.05) >= 3, f"{text} on {background}"


def _luminance(colour: str) -> float:
    """Relative luminance of 'rgb(r, g, b)' (WCAG 2)."""
    parts = [float(p) / 255 for p in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def test_it_prints_without_controls_and_with_all_sections(opened: Any) -> None:
    import base64

    pdf = opened.execute_cdp_cmd("Page.printToPDF", {"paperWidth": 8.27, "paperHeight": 11.69})
    data = base64.b64decode(pdf["data"])
    assert data.startswith(b"%PDF")
    assert 2 <= data.count(b"/Type /Page\n") <= 12
    _media(opened, "print")
    hidden = [".toc", "#slider-training input", ".table-tools", ".findings a"]
    assert not any(element.is_displayed() for selector in hidden for element in _all(opened, selector))
    assert _all(opened, "#training .figure svg")[0].is_displayed()
    _media(opened)
