"""Seeing, in a real headless Chromium: no console error, no request while pointing, the model's own numbers."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from pages import (
    CANVAS,
    choose,
    click,
    errors,
    move,
    place,
    points,
    press,
    requests,
    screen,
    short,
    text,
    text_of_class,
    then,
    wait,
)

import vitscope


def test_it_opens_without_an_error_and_asks_nobody_else(browser, explorer):
    browser.get("about:blank")
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get(explorer.url)
    wait(browser, "document.body.dataset.started === 'true'")
    assert errors(browser) == []
    base = explorer.url.split("/?")[0]
    asked = [url for url in requests(browser) if not url.startswith(("data:", "blob:"))]
    assert [url for url in asked if not url.startswith(base)] == []
    assert f"{base}/api/look" in asked
    assert explorer.guard.token not in browser.current_url  # it has become a cookie
    assert "key=" not in browser.current_url


def test_at_twenty_tokens_all_that_is_drawn_is_the_models_own_and_the_server_is_not_asked(page, model, digits):
    _, cache = points(model, digits, 5)
    chosen = int(text_of_class(page))
    residuals = torch.cat([cache["blocks.0.hook_resid_pre"], *(cache[f"blocks.{b}.hook_resid_post"] for b in range(3))])
    read = model.to_class_space(residuals).detach().numpy()  # (L + 1, N, K)
    for kind, expected in (("logit", read[..., chosen]), ("norm", residuals.norm(dim=-1).numpy())):
        drawn = np.array(page.execute_script(CANVAS, f'.maprow[data-kind="{kind}"] canvas:not(.legend canvas)'))
        assert np.allclose(drawn, expected[:, 1:], rtol=1e-3, atol=1e-6), kind
    pattern = np.stack([cache[f"blocks.{b}.attn.hook_pattern"][0].numpy() for b in range(3)])  # (L, H, N, N)
    step = pattern.max(-1) / 255  # what a level of the eight bits is worth, (L, H, N)
    page.get_log("performance")
    for token in np.random.default_rng(0).integers(1, 17, 20).tolist():
        move(page, ".stage", *place(token))
        drawn = np.array(page.execute_script(CANVAS, '.maprow[data-kind="attention"] .cell canvas'))
        error = np.abs(drawn - pattern[:, :, token, 1:].mean(1))
        assert (error <= 0.51 * step[:, :, token].mean(1)[:, None]).all()
        looks = np.array(page.execute_script(CANVAS, 'canvas[data-kind="looks"]'))
        assert (np.abs(looks - pattern[2, :, token, 1:]) <= 0.51 * step[2, :, token][:, None]).all()
        seen = np.array(page.execute_script(CANVAS, 'canvas[data-kind="seen"]'))
        assert (np.abs(seen - pattern[2, :, 1:, token]) <= 0.51 * step[2, :, 1:]).all()
        lines = page.execute_script(
            "return document.querySelector('.says .chart').lines.map(l => [l.number, [...l.values]])"
        )
        best = read[-1, token].argsort()[::-1][:5]
        assert [number for number, _ in lines] == best.tolist()
        assert np.allclose([values for _, values in lines], read[:, token, best].T, rtol=1e-3, atol=1e-5)
        shown = text(page, ".sum .logit"), text(page, ".sum .together")
        assert shown[0] == short(read[-1, token, chosen])
        assert float(shown[1].replace("−", "-")) == pytest.approx(read[-1, token, chosen], rel=6e-3, abs=1e-3)
        assert f"row {(token - 1) // 4}, column {(token - 1) % 4}" in text(page, ".where")
    assert [url for url in requests(page) if "/api/" in url] == []


def test_the_value_under_the_pointer_in_a_small_picture_is_printed(page, model, digits):
    _, cache = points(model, digits, 5)
    token, norms = 7, cache["blocks.1.hook_resid_post"][0].norm(dim=-1)
    move(page, '.cell[data-kind="norm"][data-block="1"] canvas', *place(token))
    assert (
        text(page, ".glance .readout")
        == f"Norm after block 1 at the patch in row 1, column 2: {short(float(norms[token]))}"
    )
    move(page, '.cell[data-kind="attention"][data-block="0"] canvas', *place(token))
    found = re.fullmatch(
        r"Block 0: the class token takes ([\d.]+) % from the patch in row 1, column 2\.", text(page, ".glance .readout")
    )
    weight = float(cache["blocks.0.attn.hook_pattern"][0, :, 0, token].mean())
    digits_printed = len(found[1].partition(".")[2])
    level = 100 * float(cache["blocks.0.attn.hook_pattern"][0, :, 0].amax(-1).mean()) / 255
    assert abs(float(found[1]) - 100 * weight) <= 0.51 * level + 0.51 * 10**-digits_printed
    move(page, 'canvas[data-kind="seen"][data-head="1"]', *place(token))
    assert text(page, ".heads .readout").startswith("Block 2, head 1: the patch in row 1, column 2 takes ")
    move(page, ".parts", 0.5, 0.99)
    assert text(page, ".adds .readout").startswith("The MLP of block 1 adds ")


def test_items_classes_and_blocks_are_chosen_and_linked_by_the_address(page, explorer, digits):
    then(page, lambda: click(page, '.thumb[data-item="2"]'))
    assert text(page, "tr.true .name") == digits.classes[digits.labels[2]]
    click(page, '.cell[data-kind="norm"][data-block="1"]')
    press(page, ".stage", *place(6))
    then(page, lambda: choose(page, "#class-0", "4"))
    assert text(page, "tr.chosen .name") == "4"
    address = page.current_url
    assert "item=2&token=6&block=1&class=4" in address
    page.get(address)
    wait(page, "document.body.dataset.started === 'true'")
    assert "row 1, column 1" in text(page, ".where")
    assert text_of_class(page) == "4"
    assert (
        page.execute_script("return document.querySelector('.cell[data-kind=norm][aria-pressed=true]').dataset.block")
        == "1"
    )
    click(page, 'button[aria-label="later items"]')
    wait(page, "document.querySelector('.thumb[data-item=\"24\"]')")
    choose(page, "#class-0", "elephant")
    wait(page, "!document.querySelector('#message').hidden")
    assert "no class “elephant”" in text(page, "#message")
    then(page, lambda: choose(page, "#item", "999"))
    assert "There is no item 999" in text(page, "#message")
    assert page.execute_script("return document.querySelector('#item').value") == "2"  # what is shown stays
    then(page, lambda: click(page, "#apply"))
    assert page.execute_script("return document.querySelectorAll('#changes li').length") == 1
    assert [e for e in errors(page) if "400" not in e] == []  # the browser notes the refusal


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (360, "dark"), (800, "light"), (1280, "dark")])
def test_no_horizontal_scrolling_with_everything_open(page, width, scheme):
    screen(page, width, scheme)
    then(page, lambda: (choose(page, "#change-kind", "head"), click(page, "#apply")))
    then(page, lambda: (choose(page, "#eps", 30), choose(page, "#attack", "fgsm"), click(page, "#attack-go")))
    size = page.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert size[0] <= size[1]
    paper = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    wide = page.execute_script(
        "return [...document.querySelectorAll('main *')].filter(e => e.getClientRects().length"
        "    && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.className || e.tagName)"
    )
    assert wide == []


def test_two_models_side_by_side_have_linked_cursors(browser, model, digits):
    other = vitscope.open_model(
        "vit_tiny_patch16_224",
        "random",
        img_size=28,
        patch_size=14,
        in_chans=1,
        embed_dim=16,
        depth=2,
        num_heads=2,
        num_classes=10,
    )
    with vitscope.explore([model, other], digits) as explorer:
        screen(browser, 1280)
        browser.get(explorer.url)
        wait(browser, "document.body.dataset.started === 'true'")
        browser.get_log("browser")
        move(browser, ".stage", *place(16))  # lower right of 4 x 4
        named = browser.execute_script("return [...document.querySelectorAll('.view h2')].map(h => h.textContent)")
        assert named == [model.name, f"{model.name} (2)"]
        told = browser.execute_script("return [...document.querySelectorAll('.where')].map(w => w.textContent)")
        assert told == ["Looking from the patch in row 3, column 3.", "Looking from the patch in row 1, column 1."]
        chosen = "return [0, 1].map(m => document.querySelector(`#class-${m}`).value)"
        answer = text_of_class(browser)
        assert browser.execute_script(chosen) == [answer, answer]  # the first one's, so that maps compare
        then(browser, lambda: choose(browser, "#class-1", "4"))
        assert browser.execute_script(chosen) == ["4", "4"]
        then(browser, lambda: (choose(browser, "#change-model", 1), click(browser, "#apply")))
        press(browser, ".stage", *place(16))
        then(browser, lambda: (choose(browser, "#change-kind", "tokens"), click(browser, "#apply")))
        done = "return [...document.querySelectorAll('#changes li')].pop().firstChild.data"
        assert "Before block 0, the patch in row 1, column 1 is switched off" in browser.execute_script(done)
        click(browser, "#brush")
        move(browser, ".stage", 0.75, 0.75, "mousePressed", number=1, button="left", clickCount=1)
        move(browser, ".stage", 0.75, 0.75, "mouseReleased", number=1, button="left", clickCount=1)
        assert "1 token is chosen" in text(browser, "#region-words")
        choose(browser, "#change-model", 0)
        assert "4 tokens are chosen" in text(browser, "#region-words")
        click(browser, "#clear-region")
        for _ in range(2):
            then(browser, lambda: (choose(browser, "#change-model", 1), click(browser, "#undo")))
        then(browser, lambda: (choose(browser, "#change-kind", "head"), click(browser, "#apply")))
        columns = "return [0, 1].map(m => document.querySelectorAll(`[data-model='${m}'] .answers thead th`).length)"
        assert browser.execute_script(columns) == [2, 4]  # only the changed one has a before
        then(browser, lambda: (choose(browser, "#attack", "fgsm"), click(browser, "#attack-go")))
        assert browser.execute_script("return document.querySelectorAll('.broken-view').length") == 2
        screen(browser, 360)
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        assert errors(browser) == []


def test_a_large_models_rows_come_on_request(browser, model, digits, monkeypatch):
    monkeypatch.setattr("vitscope.explorer.looking.MOST", 1000)
    with vitscope.explore(model, digits) as explorer:
        screen(browser, 1280)
        browser.get(explorer.url + "&item=5")
        wait(browser, "document.body.dataset.started === 'true'")
        move(browser, ".stage", *place(9))
        wait(browser, "document.querySelector('.heads h3').textContent.includes('row 2, column 0')")
        _, cache = points(model, digits, 5)
        pattern = cache["blocks.2.attn.hook_pattern"][0].numpy()
        seen = np.array(browser.execute_script(CANVAS, 'canvas[data-kind="seen"]'))
        assert np.abs(seen - pattern[:, 1:, 9]).max() <= pattern.max() / 200
        assert errors(browser) == []


def test_a_sentence_is_typed_and_read(browser, shared):
    pytest.importorskip("transformers", reason="the extra `text` is not installed")
    model = vitscope.open_model(shared / "weights" / "stories260K")
    with vitscope.explore(model) as explorer:
        screen(browser, 360)
        browser.get(explorer.url)
        wait(browser, "document.body.dataset.started === 'true'")
        browser.get_log("browser")
        assert "Nothing is shown yet" in browser.find_element("css selector", ".hint").text
        assert browser.find_element("css selector", ".tools").text == ""  # there is nothing to take along
        sentence = "Once upon a time there was a dog"
        then(browser, lambda: browser.find_element("id", "sentence").send_keys(sentence + "\n"))
        words = browser.execute_script("return [...document.querySelectorAll('.word')].map(w => w.textContent)")
        assert words == model.tokens(sentence)
        with torch.no_grad():
            p = model([sentence])[0, -1].softmax(-1)
        assert text(browser, ".answers tbody td") == f"{100 * float(p.max()):.1f} %"
        then(browser, lambda: choose(browser, "#class-0", "play"))  # not among the words that are shown
        assert browser.find_element("css selector", ".answers .chosen .name").text == "play"
        assert "class=" in browser.current_url
        then(browser, lambda: choose(browser, "#class-0", "dog"))
        assert "is no single token" in text(browser, "#message")
        assert [e for e in errors(browser) if "400" not in e] == []  # the browser notes the refusal
        then(browser, lambda: browser.find_element("id", "go").click())
        assert text(browser, "#message") == ""
        move(browser, '.word[data-token="2"]', 0.5, 0.5)
        assert "(token 2)" in text(browser, ".where")
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        assert browser.execute_script("return document.querySelector('#break').hidden")
        cells = "document.querySelectorAll('.cell[data-kind=answer]')"
        answers = f"return [...{cells}].map(c => [c.textContent, c.className])"
        plain = browser.execute_script(answers)
        assert len(plain) == model.layout.blocks
        assert {kind for _, kind in plain} == {"cell"}
        then(browser, lambda: (choose(browser, "#change-kind", "mlp"), click(browser, "#apply")))  # of block 0
        for (old, _), (new, kind) in zip(plain, browser.execute_script(answers), strict=True):
            same = old.rsplit(" %")[0].rstrip("0123456789") == new.rsplit(" %")[0].rstrip("0123456789")
            assert ("changed" in kind) == (not same)
        assert errors(browser) == []
