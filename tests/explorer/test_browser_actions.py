"""Changing, breaking and taking along, in a real headless Chromium."""

from __future__ import annotations

import base64
import io
import re
import time
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from pages import choose, click, errors, move, place, points, press, text, then, wait
from PIL import Image

from vitscope.data.transforms import build_transform
from vitscope.robustness.attack_lens import settled_block


def test_changes_stack_are_told_in_words_and_taken_back(page, model, digits):
    then(
        page,
        lambda: (
            choose(page, "#change-kind", "head"),
            choose(page, "#change-block", 1),
            choose(page, "#change-by", "zero"),
            click(page, "#apply"),
        ),
    )
    press(page, ".stage", *place(6))
    click(page, "#brush")
    move(page, ".stage", *place(6), "mousePressed", button="left", clickCount=1)
    move(page, ".stage", *place(16), buttons=1)  # a quick pointer: 11 lies on its way
    move(page, ".stage", *place(16), "mouseReleased", button="left", clickCount=1)
    choose(page, "#change-kind", "tokens")
    assert "3 tokens are chosen" in text(page, "#region-words")
    then(page, lambda: (choose(page, "#change-block", 0), choose(page, "#change-by", "mean"), click(page, "#apply")))
    then(
        page,
        lambda: (
            choose(page, "#change-kind", "patch"),
            choose(page, "#change-block", 2),
            choose(page, "#change-item", 9),
            click(page, "#apply"),
        ),
    )
    told = page.execute_script(
        "return [...document.querySelectorAll('#changes li')].map(l => l.firstChild.data.trim())"
    )
    assert told == [
        "Head 0 of block 1 is switched off: its output is zero.",
        "Before block 0, 3 tokens (6, 11, 16) are switched off: the mean patch of this input stands there.",
        "Before block 2, 3 tokens (6, 11, 16) are taken from item 9.",
    ]
    name = "blocks.2.hook_resid_pre"
    source = points(model, digits, 9)[1][name]

    def off(z, point):
        return torch.cat([torch.zeros_like(z[:, :1]), z[:, 1:]], 1)

    def mean(x, point):
        x = x.clone()
        x[:, [6, 11, 16]] = x[:, 1:].mean(1, keepdim=True)
        return x

    def put(x, point):
        x = x.clone()
        x[:, [6, 11, 16]] = source[:, [6, 11, 16]]
        return x

    before = points(model, digits, 5)[0][0].softmax(-1)
    with model.edits({"blocks.1.attn.hook_z": off, "blocks.0.hook_resid_pre": mean, name: put}):
        logits, cache = points(model, digits, 5)
    now = logits[0].softmax(-1)
    rows = page.execute_script(
        "return [...document.querySelectorAll('.answers tbody tr')]"
        ".map(r => [Number(r.dataset.class), ...[...r.querySelectorAll('td')].map(c => c.textContent)])"
    )
    assert len(rows) >= 5
    for number, new, old, difference in rows:
        assert new == f"{100 * float(now[number]):.1f} %"
        assert old == f"{100 * float(before[number]):.1f} %"
        assert float(difference.replace("−", "-")) == pytest.approx(
            100 * float(now[number] - before[number]), abs=0.051
        )
    marked = page.execute_script(
        "return [...document.querySelectorAll('.cell[data-kind=answer]')].map(c => c.classList.contains('changed'))"
    )
    clean = points(model, digits, 5)[1]
    answers = [
        [int(model.to_class_space(c[f"blocks.{b}.hook_resid_post"][:, 0]).argmax()) for b in range(3)]
        for c in (clean, cache)
    ]
    assert marked == [a != b for a, b in zip(*answers)]
    then(page, lambda: click(page, "#undo"))
    assert page.execute_script("return document.querySelectorAll('#changes li').length") == 2
    then(page, lambda: click(page, "#changes li button"))
    then(page, lambda: click(page, "#reset"))
    assert page.execute_script("return document.querySelectorAll('#changes li').length") == 0
    assert page.execute_script("return document.querySelectorAll('.cell.changed, .cell.moved').length") == 0


def test_an_attack_shows_three_pictures_and_the_block_where_the_decision_is_lost(page, model, digits):
    from vitscope.robustness import perturb

    then(
        page,
        lambda: (
            choose(page, "#attack", "pgd"),
            choose(page, "#eps", 64),
            choose(page, "#steps", 5),
            click(page, "#attack-go"),
        ),
    )
    assert text(page, "#break output") == "64/255"
    assert page.execute_script("return document.querySelectorAll('.broken .shown').length") == 3
    picture = torch.from_numpy(np.array(build_transform(model.preprocess).cut(digits[5].image)[0]))[None, None] / 255
    label = torch.tensor([digits.labels[5]])
    attacked = perturb(model, picture, label, "pgd", "64/255", indices=torch.tensor([5]), steps=5)
    with torch.no_grad():
        mean, std = (torch.tensor(v)[:, None, None] for v in (model.preprocess.mean, model.preprocess.std))
        logits, cache = model.run_with_cache((attacked - mean) / std, ["blocks.*.hook_resid_post"])
        reads = torch.cat(
            [model.to_class_space(cache[f"blocks.{b}.hook_resid_post"][:, 0]) for b in range(3)]
        )  # (L, K)
    wrong = int(logits.argmax())
    assert wrong != int(label)  # else there is nothing to see
    lost = int(settled_block((reads[:, int(label)] < reads[:, wrong])[None]))
    assert f"is lost to “{wrong}” in block {lost}" in text(page, ".lost")
    then(
        page,
        lambda: (choose(page, "#severity", 5), choose(page, "#corruption", "contrast"), click(page, "#corrupt-go")),
    )
    assert "contrast, severity 5" in text(page, ".broken h3")
    then(page, lambda: click(page, "#clean"))
    assert text(page, ".broken") == ""


def test_an_attack_can_be_stopped(page, explorer, monkeypatch):
    from vitscope.explorer.queue import Ticket

    steps = Ticket.between_steps
    monkeypatch.setattr(Ticket, "between_steps", lambda ticket, *at: (time.sleep(0.1), steps(ticket, *at)))
    choose(page, "#steps", 100)
    click(page, "#attack-go")
    wait(page, "document.querySelector('#progress').value > 0")
    then(page, lambda: click(page, '.thumb[data-item="3"]'))  # a look is answered meanwhile
    assert page.execute_script("return !document.querySelector('#progress').hidden")
    click(page, "#stop")
    wait(page, "document.querySelector('#progress').hidden")
    assert "stopped" in text(page, "#message")
    assert text(page, ".broken") == ""


def test_pictures_are_chosen_dropped_and_pasted_and_bad_ones_are_answered_in_words(page, tmp_path, model):
    rng = np.random.default_rng(1)
    Image.fromarray(rng.integers(0, 255, (30, 30, 3), dtype=np.uint8)).save(tmp_path / "mine.png")
    (tmp_path / "bad.png").write_text("no picture")
    then(page, lambda: page.find_element("id", "file").send_keys(str(tmp_path / "mine.png")))
    with torch.no_grad():
        logits = model(build_transform(model.preprocess)(Image.open(tmp_path / "mine.png"))[0][None])
    assert text(page, ".answers tbody tr .name") == str(int(logits.argmax()))
    assert re.search(r"[?]picture=[0-9a-f]{16}&", page.current_url)
    page.get(page.current_url)  # linked by its hash while the server runs
    wait(page, "document.body.dataset.started === 'true'")
    assert text(page, ".answers tbody tr .name") == str(int(logits.argmax()))
    page.find_element("id", "file").send_keys(str(tmp_path / "bad.png"))
    wait(page, "!document.querySelector('#message').hidden")
    assert "not an image" in text(page, "#message")
    assert [e for e in errors(page) if "400" not in e] == []  # the browser notes the refusal
    event = """
        const bytes = Uint8Array.from(atob(arguments[0]), c => c.charCodeAt(0));
        const data = new DataTransfer();
        data.items.add(new File([bytes], "other.png", {type: "image/png"}));
        if (arguments[1] === "drop") dispatchEvent(new DragEvent("drop", {dataTransfer: data}));
        else dispatchEvent(new ClipboardEvent("paste", {clipboardData: data}));
    """

    for i, kind in enumerate(("drop", "paste")):
        file = io.BytesIO()
        Image.fromarray(rng.integers(0, 255, (20 + i, 30, 3), dtype=np.uint8)).save(file, "PNG")
        old, given = page.current_url, (base64.b64encode(file.getvalue()).decode(), kind)
        then(page, partial(page.execute_script, event, *given))
        assert page.current_url != old
        assert "picture=" in page.current_url
    sources = page.execute_script("return [...document.querySelector('#change-source').options].map(o => o.text)")
    assert sources[-2:] == ["other.png", "other.png"]


def test_script_save_and_downloads(page, explorer, tmp_path):
    click(page, "#copy")
    wait(page, "document.querySelector('#code').open")
    assert "vitscope.open_model" in text(page, "#code pre")
    click(page, "#code [data-close]")
    click(page, "#save")
    wait(page, "document.querySelector('#message').textContent.startsWith('Saved to')", 60)
    folder = Path(text(page, "#message").removeprefix("Saved to ").partition(": tables")[0])
    assert {"report.html", "script.py", "tables", "config.yaml"} <= {f.name for f in folder.iterdir()}
    page.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    views = page.execute_script("return document.querySelectorAll('.take').length")
    assert views == 6  # input, answers, blocks, heads, readings, contributions
    for number in range(views):
        for button in page.find_elements("css selector", ".take")[number].find_elements("css selector", "button"):
            page.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
            button.click()  # as a person does: a script may not take more than ten files
        until = time.monotonic() + 20
        while len([*tmp_path.glob("*.svg"), *tmp_path.glob("*.png")]) < 2 * (number + 1) and time.monotonic() < until:
            time.sleep(0.02)
    for file in tmp_path.glob("*.svg"):
        root = ElementTree.parse(file).getroot()
        words = " ".join(t.text or "" for t in root.iter("{http://www.w3.org/2000/svg}text"))
        assert len(words) > 20
        if "blocks" in file.name:
            images = root.findall("{http://www.w3.org/2000/svg}image")
            assert len(images) == 3 + 3 * 4 + 4  # maps of four rows, and their legends
    sizes = {file.name: Image.open(file).size for file in tmp_path.glob("*.png")}
    assert len(sizes) == views
    assert all(min(size) > 100 for size in sizes.values())


def test_the_keyboard_alone_reaches_everything(page):
    page.execute_script("document.querySelector('.stage').focus()")
    keys = page.switch_to.active_element
    for key, words in (
        ("\ue014", "row 0, column 0"),
        ("\ue014", "row 0, column 1"),
        ("\ue015", "row 1, column 1"),
        ("\ue012", "row 1, column 0"),
    ):
        keys.send_keys(key)
        assert words in text(page, ".where")
    keys.send_keys(" ")
    assert page.execute_script("return document.querySelectorAll('.region .chosen').length") == 1
    keys.send_keys(" ")
    assert page.execute_script("return document.querySelectorAll('.region .chosen').length") == 0
    for selector, words in (
        ('.cell[data-kind="logit"][data-block="-1"]', "before block 0 at the patch in row 0, column 1: "),
        ('canvas[data-kind="seen"][data-head="1"]', "head 1: the patch in row 0, column 1 takes "),
        (".parts", "The head 0 of block 1 adds "),
    ):
        page.execute_script("document.querySelector(arguments[0]).focus()", selector)
        for key in ("\ue014", "\ue014"):
            page.switch_to.active_element.send_keys(key)
        assert words in text(page, "#views"), selector
    wanted = set(page.execute_script(
        "return [...document.querySelectorAll('button, select, input, textarea, a[href], [tabindex=\"0\"]')]"
        ".filter(e => !e.disabled && e.getClientRects().length && !e.closest('dialog'))"
        ".map((e, i) => (e.dataset.stop = i, i))"
    ))  # fmt: skip
    page.execute_script(
        "document.activeElement.blur(); getSelection().removeAllRanges();"
        "document.body.tabIndex = -1; document.body.focus()"
    )
    reached = set()
    for _ in range(len(wanted) + 5):
        page.execute_cdp_cmd(
            "Input.dispatchKeyEvent", {"type": "keyDown", "key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}
        )
        stop = page.execute_script("return document.activeElement.dataset.stop")
        reached.add(None if stop is None else int(stop))
    assert wanted - reached == set()
