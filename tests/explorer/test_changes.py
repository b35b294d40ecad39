"""A change does what its sentence and its line of Python say."""

from __future__ import annotations

import pytest
import torch

from vitscope.errors import DataError, VitscopeError
from vitscope.explorer.changes import Change, edits_of, in_python, in_words, parse_changes
from vitscope.explorer.subjects import parse_subject

CHANGES = [
    Change("head", 1, "mean", head=1),
    Change("head", 0, "zero", head=0),
    Change("attention", 2, "mean"),
    Change("attention", 2, "zero"),
    Change("mlp", 0, "zero"),
    Change("mlp", 1, "mean"),
    Change("tokens", 0, "mean", tokens=(3, 5)),
    Change("tokens", 2, "zero", tokens=(0,)),
    Change("patch", 1, tokens=(2, 4), subject={"item": 1}),
]


@pytest.fixture(scope="module")
def x():
    return torch.randn(1, 1, 28, 28, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: f"{c.kind}-{c.by}")
def test_the_edit_is_what_its_line_of_python_does(change, model, x):
    source = torch.randn(1, 17, 16, generator=torch.Generator().manual_seed(1))
    scope = {"source_0": source}
    exec("\n".join(in_python(change, 0, model)), scope)
    with torch.no_grad():
        plain = model(x)
        with model.edits(edits_of([change], model, {change: source[0]})):
            edited = model(x)
        with model.edits({change.point: scope["change_0"]}):
            assert torch.equal(model(x), edited)
    assert not torch.allclose(plain, edited, atol=1e-4)


def test_a_switched_off_head_is_gone_and_the_others_are_as_they_were(model, x):
    change = Change("head", 1, "zero", head=1)
    name = "blocks.1.attn.hook_z"
    with torch.no_grad():
        _, before = model.run_with_cache(x, name)
        with model.edits(edits_of([change], model, {})):
            _, after = model.run_with_cache(x, name)
    assert float(after[name][:, 1].abs().max()) == 0
    assert torch.equal(after[name][:, 0], before[name][:, 0])


def test_the_mean_patch_is_a_mean_of_patches_without_the_class_token(model, x):
    change, name = Change("tokens", 1, "mean", tokens=(4,)), "blocks.1.hook_resid_pre"
    with torch.no_grad():
        _, before = model.run_with_cache(x, name)
        with model.edits(edits_of([change], model, {})):
            _, after = model.run_with_cache(x, name)
    assert torch.allclose(after[name][0, 4], before[name][0, 1:].mean(0), atol=1e-6)
    assert torch.equal(after[name][0, :4], before[name][0, :4])


def test_changes_of_one_point_act_in_their_order(model, x):
    both = [Change("tokens", 0, "zero", tokens=(1,)), Change("tokens", 0, "mean", tokens=(2,))]
    name = "blocks.0.hook_resid_pre"
    with torch.no_grad():
        _, before = model.run_with_cache(x, name)
        with model.edits(edits_of(both, model, {})):
            _, after = model.run_with_cache(x, name)
    patches = before[name][0, 1:].clone()
    patches[0] = 0  # token 1 is gone when the mean is taken
    assert float(after[name][0, 1].abs().max()) == 0
    assert torch.allclose(after[name][0, 2], patches.mean(0), atol=1e-6)


def test_changes_in_words(model):
    assert [in_words(c, model) for c in CHANGES][1:8:3] == [
        "Head 0 of block 0 is switched off: its output is zero.",
        "The MLP of block 0 is switched off: its output is zero.",
        "Before block 2, the class token is switched off: zero stands there.",
    ]
    assert "2 tokens (3, 5) are switched off: the mean patch" in in_words(CHANGES[6], model)
    one = Change("patch", 1, tokens=(7,), source="item 3")
    assert in_words(one, model) == "Before block 1, the patch in row 1, column 2 is taken from item 3."


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("x", "is a list"),
        ([{"kind": "module", "block": 0}], "A change is one of"),
        ([{"kind": "head", "block": 3}], "block 3 is none of 0 to 2"),
        ([{"kind": "head", "block": 0, "head": 2}], "head 2 is none of 0 to 1"),
        ([{"kind": "head", "block": True}], "block True is none"),
        ([{"kind": "tokens", "block": 0}], "No token is chosen"),
        ([{"kind": "tokens", "block": 0, "tokens": [17]}], "token 17 is none of 0 to 16"),
        ([{"kind": "mlp", "block": 0, "by": "noise"}], "by mean or zero"),
        ([{"kind": "mlp", "block": 0}] * 41, "at most 40"),
    ],
)
def test_a_change_that_means_nothing_is_refused_in_words(given, words, model):
    with pytest.raises(VitscopeError, match=words):
        parse_changes(given, model, 17, parse_subject)


@pytest.mark.parametrize(
    "given", [{"path": "x.png"}, {"item": "../x"}, {"item": True}, {}, None, {"item": 1, "hash": ""}]
)
def test_the_page_can_name_items_hashes_and_sentences_and_nothing_else(given):
    with pytest.raises(DataError, match="What is to be looked at"):
        parse_subject(given)
