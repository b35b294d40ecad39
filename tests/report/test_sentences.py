"""The gallery of texts: what the page is given, and the page in a real Chromium."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from vitscope.registry import PANELS
from vitscope.report import build_report
from vitscope.report.gallery import gallery_data
from vitscope.report.sentences import sentences_data
from vitscope.runs import Run

HOSTILE = "</script><script>document.title='hacked'</script><img src=x onerror=\"document.title='hacked'\">"
WORDS = [" Once", HOSTILE, " upon", "\\n", " a time"]
BLOCKS = 3
TASK = {"name": "language", "words": {"item": "text", "items": "texts", "token": "token", "tokens": "tokens"}}


def text_run(root: Path, label: str, words: list[str] = WORDS, maps: bool = True) -> Run:
    """Two texts; log-probabilities of all tokens but the last."""
    config = {"model": {"name": label}, "data": {"name": "stories", "n": 2, "fingerprint": "1"}, "task": TASK}
    n = len(words)
    with Run.create(root / label.replace(" ", "-"), config, kind="analyze", command="vitscope analyze") as run:
        run.write_table("images", pd.DataFrame({"image": [0, 4], "path": [f"{HOSTILE}[0:5]", "b.txt"]}))
        texts = {"token": [*range(n)] * 2, "word": words * 2, "target_word": [*words[1:], ""] * 2}
        run.write_table("texts", pd.DataFrame({"image": np.repeat([0, 4], n), **texts}))
        if maps:
            cells = [(i, b, t, -(1 + i + t) / (1 + b)) for i in (0, 4) for b in range(BLOCKS) for t in range(n - 1)]
            table = pd.DataFrame(cells, columns=["image", "block", "col", "value"]).assign(row=0, map="log p")
            run.write_table("maps_vocabulary", table[["image", "map", "block", "row", "col", "value"]])
            guesses = [
                (i, b, t, w, p, HOSTILE)
                for i in (0, 4)
                for b in range(BLOCKS)
                for t, w in enumerate(words)
                for p in (0, 1)
            ]
            table = pd.DataFrame(guesses, columns=["image", "block", "token", "word", "place", "guess"])
            run.write_table("vocabulary_topk", table.assign(log_probability=-1.0))
        run.finish()
    return Run.open(root / label.replace(" ", "-"))


def test_values_read_back_within_a_level_and_tokens_without_one_are_named(tmp_path: Path) -> None:
    data = sentences_data({"a": text_run(tmp_path, "a")})
    assert data is not None
    (row,) = data["rows"]
    assert (row["map"], row["signed"]) == ("log p", False)
    text = row["texts"][1]  # image 4
    assert (text["low"], text["high"]) == (-8.0, 0.0)  # zero is one end
    levels = np.frombuffer(base64.b64decode(text["blocks"][1]), np.uint8).astype(float)
    np.testing.assert_allclose(-8 + 8 * levels / 255, [-2.5, -3, -3.5, -4], atol=4 / 255)
    assert data["texts"][1]["words"] == {"a": WORDS}
    assert data["texts"][1]["targets"]["a"] == [*WORDS[1:], ""]
    assert data["texts"][0]["guesses"]["a"] == {b: [0] * len(WORDS) for b in range(BLOCKS)}
    assert data["guessed"] == [HOSTILE]


def test_models_share_texts_and_scales_but_not_tokens(tmp_path: Path) -> None:
    runs = {name: text_run(tmp_path, name, words) for name, words in (("a", WORDS), ("b", ["On", "ce", "!"]))}
    data = sentences_data(runs)
    assert data is not None
    assert len(data["texts"]) == 2
    assert {name: len(words) for name, words in data["texts"][0]["words"].items()} == {"a": 5, "b": 3}
    assert [row["texts"][0]["low"] for row in data["rows"]] == [-4.0, -4.0]
    limited = sentences_data(runs, limit=1)
    assert limited is not None
    assert len(limited["texts"]) == 1


def test_pictures_have_no_sentences_and_texts_no_pictures(make_run: Callable[..., Run], tmp_path: Path) -> None:
    assert sentences_data({"a": make_run("a")}) is None
    assert gallery_data({"t": text_run(tmp_path, "t")}) is None


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("texts")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PANELS, "_homes", {})
        patch.setattr(PANELS, "_things", {})
        return build_report([text_run(root, "a"), text_run(root, "plain", maps=False)], strict=True)


def test_the_page_holds_no_markup_from_texts(page: Path) -> None:
    html = page.read_text(encoding="utf-8")
    assert "<script>document.title" not in html
    assert "<img src=x" not in html
    assert html.count("</script>") == 2  # the data and the page's own script


@pytest.fixture
def opened(browser: Any, page: Path) -> Any:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 360, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    )
    browser.get_log("browser")
    browser.get(page.as_uri())
    yield browser
    assert [e["message"] for e in browser.get_log("browser") if e["level"] in ("SEVERE", "WARNING")] == []
    assert browser.title.endswith("· vitscope")


def _all(browser: Any, selector: str) -> list[Any]:
    return list(browser.find_elements("css selector", selector))


def test_a_row_of_coloured_tokens_per_block_shows_texts_as_they_are(opened: Any) -> None:
    words = "[...line.querySelectorAll('.token')].map(token => token.textContent)"
    script = f"return [...document.querySelectorAll('.line')].map(line => {words})"
    assert opened.execute_script(script) == [WORDS] * BLOCKS
    size = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    assert opened.execute_script(size) == [360, 360]
    colours = [t.value_of_css_property("background-color") for t in _all(opened, ".line:first-child .token")]
    assert len(set(colours)) == 5  # falling values, and the last without one
    assert _all(opened, "#sentences img") == []


def test_arrow_keys_tell_word_value_and_first_guess(opened: Any) -> None:
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    readout = _all(opened, "#sentences .readout")[0]

    def says(text: str) -> str:
        """What stands there once it has `text`: a browser on a busy machine takes its time."""
        WebDriverWait(opened, 20).until(lambda _: text in str(readout.get_attribute("textContent")))
        return str(readout.get_attribute("textContent"))

    _all(opened, ".token")[0].click()  # a page that has lost the keyboard hears of no focus
    says("Token 0: “ Once”")
    for key in (Keys.ARROW_DOWN, Keys.ARROW_RIGHT):
        opened.switch_to.active_element.send_keys(key)
    told = says("Token 1")
    clipped = f"“{HOSTILE[:40]}…”"
    assert f"Token 1: {clipped} · then “ upon” · block 1: about −1" in told
    assert f"first guess {clipped}" in told
    assert len(_all(opened, ".token[tabindex='0']")) == 1
    for _ in range(9):  # stops at the end
        opened.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    says("Token 4")
    assert "no value" in readout.get_attribute("textContent")


def test_another_text_is_chosen_from_the_list(opened: Any) -> None:
    before = opened.execute_script("return document.querySelector('#sentences .scale').textContent")
    opened.execute_script(
        "const s = document.querySelector('#sentences select'); s.value = 1; s.dispatchEvent(new Event('change'))"
    )
    assert before == "−40"  # the ends of the scale: −4 and 0
    assert opened.execute_script("return document.querySelector('#sentences .scale').textContent") == "−80"
