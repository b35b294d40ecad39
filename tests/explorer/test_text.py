"""Sentences: tokens in a row, their numbers, a patched word, and the script."""

from __future__ import annotations

import runpy

import numpy as np
import pytest
import torch

import vitscope
from vitscope.errors import VitscopeError
from vitscope.explorer.options import ExploreOptions
from vitscope.explorer.session import Session
from vitscope.explorer.transfer import unpack

SENTENCE, OTHER = "Once upon a time there was a dog", "Once upon a time there was a cat"


@pytest.fixture(scope="module")
def session(shared):
    pytest.importorskip("transformers", reason="the extra `text` is not installed")
    return Session([vitscope.open_model(shared / "weights" / "stories260K")])


def look(session, **asked):
    return unpack(session.look(session.asked(asked), lambda: None))


def test_tokens_and_numbers_are_the_models_own(session):
    model = session.models[0]
    head, arrays = look(session, subject={"text": SENTENCE})
    with torch.no_grad():
        logits, cache = model.run_with_cache([SENTENCE], ["blocks.*.hook_resid_post", "blocks.*.attn.hook_pattern"])
    assert head["words"] == model.tokens(SENTENCE)
    assert head["answer"] == int(logits[0, -1].argmax())
    last = model.layout.blocks - 1
    read = model.to_class_space(cache[f"blocks.{last}.hook_resid_post"][0]).detach()
    assert np.allclose(arrays["logit"][-1], read[:, head["answer"]], rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        said = model.to_class_space(torch.stack([cache[f"blocks.{b}.hook_resid_post"][0, -1] for b in range(last + 1)]))
    assert (arrays["said"][1:] == said.argmax(-1).numpy()).all()  # what the last token says, block by block
    assert np.allclose(arrays["said_p"][1:], said.softmax(-1).amax(-1), rtol=1e-4)
    assert np.allclose(arrays["chosen_p"][1:], said.softmax(-1)[:, head["answer"]], rtol=1e-4)
    assert np.allclose(arrays["part_total"], arrays["logit"][-1], rtol=1e-3, atol=1e-3)
    drawn = arrays["attention"][last] * arrays["scale"][last][..., None]
    pattern = cache[f"blocks.{last}.attn.hook_pattern"][0].numpy()
    assert (np.abs(drawn - pattern) <= 0.5001 * arrays["scale"][last][..., None]).all()
    assert head["names"][str(head["answer"])] == model.preprocess.words([head["answer"]])[0]


def test_a_patched_word_and_its_script(session, tmp_path, capsys):
    from vitscope.explorer.script import script

    token = len(session.models[0].tokens(SENTENCE)) - 1
    change = {"kind": "patch", "block": 2, "tokens": [token], "subject": {"text": OTHER}}
    asked = {"subject": {"text": SENTENCE}, "changes": [change]}
    head, _ = look(session, **asked)
    plain, _ = look(session, subject={"text": SENTENCE})
    assert head["answers"] != plain["answers"]
    path = tmp_path / "taken.py"
    path.write_text(script(session, [session.asked(asked)]))
    runpy.run_path(str(path))
    number, p = capsys.readouterr().out.splitlines()[0].removeprefix("class ").split(": ")
    assert int(number) == head["answers"][0][0]
    assert float(p) == pytest.approx(head["answers"][0][1], abs=2e-6)


def test_any_word_of_the_vocabulary_is_chosen_as_it_is_typed(session):
    head, arrays = look(session, subject={"text": SENTENCE}, **{"class": "time"})
    assert session.models[0].preprocess.words([head["chosen"]]) == [" time"]
    numbered, same = look(session, subject={"text": SENTENCE}, **{"class": head["chosen"]})
    assert numbered["chosen"] == head["chosen"]
    assert (arrays["logit"] == same["logit"]).all()
    with pytest.raises(VitscopeError, match="“dog” is no single token of stories260K, but"):
        look(session, subject={"text": SENTENCE}, **{"class": "dog"})


@pytest.mark.parametrize(("subject", "words"), [({"text": "  "}, "Type a sentence"), ({"item": 0}, "type one")])
def test_what_is_no_sentence_is_refused_in_words(session, subject, words):
    with pytest.raises(VitscopeError, match=words):
        look(session, subject=subject)


def test_data_beside_a_model_of_texts_is_refused_in_words(session):
    with pytest.raises(VitscopeError, match="typed on the page: leave the data out"):
        ExploreOptions(data="pydoc").load(session.models)
