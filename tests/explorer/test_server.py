"""Real requests to a real server: numbers are the model's own, bad input is answered in words, answers do not mix."""

from __future__ import annotations

import io
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

import vitscope
from vitscope.data.transforms import build_transform
from vitscope.errors import DataError
from vitscope.explorer import subjects
from vitscope.explorer.transfer import MOST, MOST_ROWS, unpack


def png(size=(40, 30), mode="RGB") -> bytes:
    file = io.BytesIO()
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)).convert(mode).save(file, "PNG")
    return file.getvalue()


def truth(model, image, *names):
    x = build_transform(model.preprocess)(image)[0][None]
    with torch.no_grad():
        return model.run_with_cache(x, [*names])


def test_all_numbers_are_those_of_run_with_cache_and_to_class_space(client, model, digits):
    head, arrays = client.look(subject={"item": 5}, **{"class": 3})
    logits, cache = truth(model, digits[5].image, "*")
    residuals = [cache["blocks.0.hook_resid_pre"], *(cache[f"blocks.{i}.hook_resid_post"] for i in range(3))]
    read = model.to_class_space(torch.cat(residuals)).detach()  # (L + 1, N, K)
    assert np.allclose(arrays["logit"], read[..., 3], rtol=1e-4, atol=1e-5)
    assert np.allclose(arrays["norm"], torch.cat(residuals).norm(dim=-1), rtol=1e-5)
    rank = (read > read[..., 3:4]).sum(-1)  # no ties
    assert np.allclose(arrays["identifiability"], 1 - rank / 10)
    assert (arrays["top"] == read.topk(5, -1).indices.numpy()).all()
    final = read[-1].topk(5, -1).indices
    assert np.allclose(arrays["curves"], read.gather(-1, final.expand(4, -1, -1)), rtol=1e-4, atol=1e-5)
    pattern = torch.cat([cache[f"blocks.{i}.attn.hook_pattern"] for i in range(3)])
    drawn = arrays["attention"] * arrays["scale"][..., None]
    assert np.abs(drawn - pattern.numpy()).max() <= 0.5001 * arrays["scale"].max()
    assert (np.abs(drawn - pattern.numpy()) <= 0.5001 * arrays["scale"][..., None]).all()
    assert head["answer"] == int(logits.argmax())
    assert {c: p for c, p, _ in head["answers"]}[3] == pytest.approx(float(logits[0].double().softmax(-1)[3]))
    assert head["label"] == digits.labels[5]
    assert np.allclose(arrays["part_total"], read[-1, :, 3], rtol=1e-3, atol=1e-4)
    assert np.allclose(arrays["readout"][-1], logits[0], rtol=1e-4, atol=1e-4)
    assert (arrays["picture"][..., 0] == np.array(build_transform(model.preprocess).cut(digits[5].image)[0])).all()


def test_a_dropped_picture_is_decoded_as_data_sets_are_and_known_by_its_hash(client, model):
    content = png(mode="P")
    name = client.http.post("/api/upload", content=content).json()["hash"]
    head, _ = client.look(subject={"hash": name})
    logits, _ = truth(model, Image.open(io.BytesIO(content)).convert("RGB"))
    assert head["answers"][0][2] == pytest.approx(float(logits.max()), rel=1e-5)
    assert head["label"] == -1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty file"),
        (b"no picture", "not an image"),
        (png()[:200], "damaged"),
        (b"%!PS-Adobe-3.0\n", "not an image"),  # another program would have to be started for it
    ],
)
def test_a_bad_file_is_answered_in_words(client, content, words):
    answer = client.http.post("/api/upload", content=content)
    assert answer.status_code == 400
    assert words in answer.text


def test_uploads_are_limited_in_bytes_and_pixels(client, monkeypatch):
    monkeypatch.setattr(subjects, "MOST_PIXELS", 1000)
    answer = client.http.post("/api/upload", content=png())
    assert (answer.status_code, "the limit is 1,000" in answer.text) == (400, True)
    monkeypatch.setattr("vitscope.explorer.server.MOST_BYTES", 100)
    answer = client.http.post("/api/upload", content=png())
    assert (answer.status_code, "100 bytes at most" in answer.text) == (400, True)


def test_large_pictures_make_room_for_each_other(monkeypatch):
    monkeypatch.setattr(subjects, "KEPT_PIXELS", 2000)
    store = subjects.Store()
    first, second = (store.take_upload(png((40, 30 + i))) for i in range(2))
    assert store.get(second).image.size == (40, 31)
    with pytest.raises(DataError, match="not here any more"):
        store.get(first)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({}, "What is to be looked at"),
        ({"subject": {"item": 60}}, "There is no item 60"),
        ({"subject": {"hash": "abc"}}, "not here any more"),
        ({"subject": {"text": "hello"}}, "reads pictures"),
        ({"subject": {"item": 0}, "model": 1}, "There is no model 1"),
        ({"subject": {"item": 0}, "model": "os"}, "There is no model 'os'"),
        ({"subject": {"item": 0}, "class": 10}, "There is no class 10"),
        ({"subject": {"item": 0}, "class": True}, "There is no class True"),
        ({"subject": {"item": 0}, "changes": [{"kind": "patch", "tokens": [1]}]}, "What is to be looked at"),
        ({"subject": {"item": 0}, "changes": [{"kind": "head", "block": 9}]}, "block 9 is none"),
    ],
)
def test_an_impossible_request_is_answered_in_words(client, asked, words):
    answer = client.http.post("/api/look", json=asked)
    assert (answer.status_code, words in answer.text) == (400, True), answer.text


@pytest.mark.parametrize("views", [None, [], ["a"], [{"subject": {"item": 0}}] * 2])
def test_a_script_of_no_view_is_refused_in_words(client, views):
    answer = client.http.post("/api/script", json={"views": views})
    assert (answer.status_code, "view" in answer.text) == (400, True), answer.text


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_object_is_answered_in_words(client, content):
    answer = client.http.post("/api/look", content=content)
    assert answer.status_code == 400
    assert "JSON" in answer.text


def test_an_edit_and_a_patch_are_those_of_model_edits(client, model, digits):
    changes = [
        {"kind": "head", "block": 0, "head": 1, "by": "zero"},
        {"kind": "patch", "block": 1, "tokens": [2, 3], "subject": {"item": 9}},
    ]
    head, _ = client.look(subject={"item": 4}, changes=changes)
    name = "blocks.1.hook_resid_pre"
    _, other = truth(model, digits[9].image, name)

    def off(z, point):
        return torch.cat([z[:, :1], torch.zeros_like(z[:, 1:])], 1)

    def put(x, point):
        return torch.cat([x[:, :2], other[name][:, 2:4], x[:, 4:]], 1)

    with model.edits({"blocks.0.attn.hook_z": off, name: put}):
        logits, _ = truth(model, digits[4].image)
    expected = logits[0].double().softmax(-1)
    for number, p, _ in head["answers"]:
        assert p == pytest.approx(float(expected[number]), rel=1e-4)
    assert head["changes"][1] == "Before block 1, 2 tokens (2, 3) are taken from item 9."


def test_an_attack_is_that_of_perturb_and_stays_in_its_ball(client, model, digits):
    from vitscope.robustness import perturb

    lines = client.break_it(subject={"item": 7}, attack="pgd", eps=12, steps=3)
    assert [line["step"] for line in lines[:-1]] == [0, 1, 2]
    attacked = lines[-1]["done"]["hash"]
    head, arrays = client.look(subject={"hash": attacked})
    clean = torch.from_numpy(np.array(build_transform(model.preprocess).cut(digits[7].image)[0]))[None, None] / 255
    label = torch.tensor([digits.labels[7]])
    expected = perturb(model, clean, label, "pgd", "12/255", indices=torch.tensor([7]), steps=3)
    assert np.abs(arrays["picture"][..., 0] - 255 * expected[0, 0].numpy()).max() <= 0.5001
    assert head["steps"] == ["PGD with epsilon 12/255"]
    assert head["label"] == digits.labels[7]
    assert client.break_it(subject={"item": 7}, attack="fgsm", eps=0)[-1]["done"]  # which changes nothing


def test_a_picture_without_label_is_led_away_from_what_the_model_says(client):
    name = client.http.post("/api/upload", content=png()).json()["hash"]
    answer = client.look(subject={"hash": name})[0]["answer"]
    assert client.break_it(subject={"hash": name}, attack="fgsm", eps=8)[-1]["done"]["label"] == answer


def test_the_fifteen_corruptions_are_offered_and_change_the_picture(client):
    from vitscope.robustness.corruptions import COMMON

    offered = client.http.get("/api/start").json()["corruptions"]
    assert [name for names in offered.values() for name in names] == list(COMMON)
    clean = client.look(subject={"item": 2})[1]["picture"]
    for name in ("gaussian_noise", "contrast"):
        (done,) = client.break_it(subject={"item": 2}, corruption=name, severity=4)
        found = client.look(subject={"hash": done["done"]["hash"]})
        assert (found[1]["picture"] != clean).any()
        assert found[0]["steps"] == [f"{name.replace('_', ' ')}, severity 4"]


@pytest.mark.parametrize(
    "asked",
    [
        {"attack": "os.system", "eps": 1},
        {"attack": "pgd", "eps": 1000},
        {"attack": "pgd", "eps": 8, "steps": 10**6},
        {"corruption": "fog", "severity": 9},
        {"corruption": "fog", "severity": True},
        {"corruption": "package.module:function", "severity": 1},
    ],
)
def test_an_attack_that_is_not_offered_is_refused(client, asked):
    (line,) = client.break_it(subject={"item": 0}, **asked)
    assert "Expected" in line["error"] or "whole number" in line["error"]


def test_twenty_requests_at_once_are_not_mixed_while_an_attack_runs(client):
    alone = {i: client.look(subject={"item": i}) for i in range(20)}
    steps, done = [], threading.Event()

    def attack():
        body = {"subject": {"item": 0}, "attack": "pgd", "eps": 8, "steps": 100}
        with client.http.stream("POST", "/api/break", json=body) as answer:
            for line in answer.iter_lines():
                steps.append(json.loads(line))
        done.set()

    thread = threading.Thread(target=attack)
    thread.start()
    with ThreadPoolExecutor(20) as pool:
        together = list(pool.map(lambda i: client.look(subject={"item": i}), range(20)))
    during = not done.is_set()
    thread.join(30)
    for i, (head, arrays) in enumerate(together):
        assert head == alone[i][0]
        assert all((arrays[name] == alone[i][1][name]).all() for name in arrays)
    assert "done" in steps[-1]
    assert during or len(steps) == 101  # the looks did not wait for the last step


def test_who_leaves_stops_the_attack(client, explorer):
    body = {"subject": {"item": 1}, "attack": "pgd", "eps": 8, "steps": 100}
    ended = threading.Event()
    with client.http.stream("POST", "/api/break", json=body) as answer:
        next(answer.iter_lines())
        (ticket,) = [t for t in explorer._server.queue._running if t.slow] or [None]
        if ticket is not None:
            ticket.result.add_done_callback(lambda _: ended.set())
    if ticket is not None:  # else it was over before we could look
        assert ended.wait(10)
        assert type(ticket.result.exception()).__name__ in ("Cancelled", "NoneType")
    assert client.look(subject={"item": 1})  # and the next one is answered


def test_a_large_models_attention_comes_by_the_row(digits):
    """577 tokens and 12 heads, as in a ViT-Base at 384 pixels; narrow, since its width does not matter here."""
    options = {"img_size": 384, "patch_size": 16, "embed_dim": 24, "depth": 12, "num_heads": 12, "num_classes": 10}
    model = vitscope.open_model("vit_tiny_patch16_224", "random", in_chans=1, **options)
    from vitscope.explorer.session import Session

    session = Session([model], digits)
    asked = session.asked({"subject": {"item": 0}, "token": 100})
    content = session.look(asked, lambda: None)
    head, arrays = unpack(content)
    assert head["whole"] is False
    assert "attention" not in arrays
    assert len(content) <= MOST
    rows = session.rows(asked, lambda: None)
    assert len(rows) <= MOST_ROWS
    _, found = unpack(rows)
    _, cache = truth(model, digits[0].image, "blocks.*.attn.hook_pattern")
    for block in (0, 11):
        pattern = cache[f"blocks.{block}.attn.hook_pattern"][0].numpy()  # (H, N, N)
        row = found["row"][block] * found["row_scale"][block][:, None]
        assert (np.abs(row - pattern[:, 100]) <= 0.5001 * found["row_scale"][block][:, None]).all()
        column = found["column"][block] * found["column_scale"][block][:, None]
        assert np.abs(column - pattern[:, :, 100]).max() <= pattern.max() / 200


def test_a_model_without_a_head_is_looked_at_without_an_answer(digits):
    from vitscope.explorer.session import Session

    options = {"img_size": 28, "patch_size": 7, "in_chans": 1, "embed_dim": 16, "depth": 2, "num_heads": 2}
    session = Session([vitscope.open_model("vit_tiny_patch16_224", "random", num_classes=0, **options)], digits)
    head, arrays = unpack(session.look(session.asked({"subject": {"item": 0}}), lambda: None))
    assert head["readable"] is False
    assert "its head is empty" in head["notes"][0]
    assert {"norm", "attention", "picture"} <= set(arrays)
    assert "logit" not in arrays


def test_a_segmenter_is_refused_before_the_page_opens():
    from vitscope.errors import VitscopeError
    from vitscope.explorer.session import Session

    sizes = {"backbone": "vit_tiny_patch16_224", "image_size": 32, "depth": 1, "embed_dim": 16, "num_heads": 2}
    segmenter = vitscope.open_model("segmenter", "random", num_classes=3, **sizes)
    with pytest.raises(VitscopeError, match="a class for every pixel"):
        Session([segmenter])


def test_models_of_pictures_and_of_texts_or_of_neither_are_refused_in_words(model, monkeypatch):
    from dataclasses import replace

    from vitscope.errors import VitscopeError
    from vitscope.explorer.session import Session

    with pytest.raises(VitscopeError, match="No model"):
        Session([])
    monkeypatch.setattr(model, "layout", replace(model.layout, sequence=True))
    with pytest.raises(VitscopeError, match="neither pictures nor texts"):
        Session([model])
