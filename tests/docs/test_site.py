"""The built site (`make docs`): it needs nothing from outside, fits a phone, finds words, and has every public name."""

from __future__ import annotations

import importlib.util
import json
import re
from html import unescape
from pathlib import Path
from types import ModuleType

import pytest

import vitscope
from vitscope.cli import COMMANDS

REPOSITORY = Path(__file__).resolve().parents[2]
SITE = REPOSITORY / "site"
PHONE = 360


@pytest.fixture(scope="module")
def pages() -> list[Path]:
    found = sorted(SITE.rglob("*.html"))
    if not found:
        pytest.skip("there is no site: `make docs` builds it")
    assert len(found) > 60
    return found


def test_nothing_is_fetched_from_outside(pages):
    """Links may lead out; scripts, styles, pictures and frames may not."""
    wanted = r"<(?:script|img|iframe|source|video)\b[^>]*\bsrc=.?(https?:)?//"
    wanted += r"|<link\b(?![^>]*canonical)[^>]*\bhref=.?(https?:)?//"
    assert [page.name for page in pages if re.search(wanted, page.read_text(encoding="utf-8"))] == []
    for style in SITE.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//", style.read_text(encoding="utf-8")), style.name


def test_no_command_is_printed_as_a_sentence(pages):
    """Indented code behind a list is the list's next paragraph, unless a sentence stands between."""
    said = {}
    for page in pages:
        text = re.sub(r"<(pre|code)\b.*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        if found := re.search(r"\b(?:vitscope|python|torchrun|make) [^<]*? --\w[^<]*", text):
            said[page.name] = found[0]
    assert said == {}


def hook(name: str) -> ModuleType:
    """A file of docs/site."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: `make docs` brings it")
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "docs" / "site" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_notebook_becomes_a_page_with_its_outputs_and_without_its_progress_bars():
    picture = {"output_type": "display_data", "data": {"image/png": "iVBO\n", "text/plain": "<Figure>"}}
    table = {"output_type": "execute_result", "data": {"text/html": ["<table>", "</table>"], "text/plain": "x"}}
    printed = {"output_type": "stream", "name": "stdout", "text": ["a < b\n"]}
    bar = {"output_type": "stream", "name": "stderr", "text": "100%"}
    cells = [
        {"cell_type": "markdown", "source": ["# Look\n", "[models](../docs/models.md), [next](2-where.ipynb)"]},
        {"cell_type": "code", "source": "draw()", "outputs": [picture, table, printed, bar]},
    ]
    text, outputs = hook("notebooks").as_page({"cells": cells})
    assert text.startswith("# Look\n[models](../models.md), [next](2-where.md)\n\n````python\ndraw()\n````\n")
    assert text.count('class="output"') == len(outputs) == 3
    assert 'src="data:image/png;base64,iVBO"' in outputs[0]
    assert outputs[1:] == ["<table></table>", "<pre><code>a &lt; b\n</code></pre>"]


def test_every_public_name_has_its_entry(pages):
    found = hook("packages").packages(REPOSITORY / "src")
    assert set(found["vitscope"][1]) == set(vitscope.__all__) - {"__version__"}
    for package, (_, names) in found.items():
        text = (SITE / "api" / f"{package}.html").read_text(encoding="utf-8")
        assert [name for name in names if not re.search(rf'<h2 id="vitscope\.[\w.]*\b{name}"', text)] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_a_command_has_its_entry(command, capsys, pages):
    """The reference against what `--help` prints."""
    from vitscope.cli import run

    with pytest.raises(SystemExit):
        run([command, "--help"])
    text = unescape((SITE / "commands" / f"{command}.html").read_text(encoding="utf-8"))
    flags = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)))
    assert len(flags) > 1
    assert [flag for flag in sorted(flags) if flag not in text] == []


def test_no_page_is_wider_than_a_phone(pages, browser):
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": PHONE, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    )
    wide = {}
    try:
        for page in pages:
            browser.get(page.as_uri())
            width = browser.execute_script("return document.scrollingElement.scrollWidth")
            if width > PHONE:
                wide[page.name] = width
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert wide == {}


@pytest.mark.parametrize(
    ("word", "page"), [("identifiability", "glossary.html"), ("--probe-every", "commands/train.html")]
)
def test_search_finds_a_word_and_an_option_from_disk(word, page, pages, browser):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get((SITE / "index.html").as_uri() + f"?q={word}")
    browser.find_element(By.CSS_SELECTOR, "[data-md-component='search-query']").send_keys(" ")
    hits = WebDriverWait(browser, 30).until(lambda b: b.find_elements(By.CSS_SELECTOR, ".md-search-result__link"))
    assert any(page in hit.get_attribute("href") for hit in hits)


def test_it_can_be_dark(pages, browser):
    browser.get((SITE / "index.html").as_uri())
    colours = []
    for scheme in ("light", "dark"):
        browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        )
        browser.get((SITE / "index.html").as_uri())
        colour = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        colours.append(sum(map(int, re.findall(r"\d+", colour)[:3])))
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert colours[0] > 700
    assert colours[1] < 250


def test_the_search_index_has_the_pages_of_docs(pages):
    index = json.loads((SITE / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    wanted = {str(p.relative_to(REPOSITORY / "docs").with_suffix(".html")) for p in (REPOSITORY / "docs").rglob("*.md")}
    assert wanted - found == set()
