"""Swapped words and typos against what their definitions say, word by word."""

from __future__ import annotations

import re

import pytest

from vitscope.errors import VitscopeError
from vitscope.robustness.text import keyboard_typos, swap_words
from vitscope.robustness.text.alter import NEIGHBOURS, Altered, joined
from vitscope.robustness.text.stop_words import STOP_WORDS

TEXT = """= Robert <unk> =

Robert is an English film , television and theatre actor . He had a guest @-@ starring role in 2000 , "twice" .
of the and
In 2006 he starred alongside <unk> in the play (Citizenship) , written by Mark Ravenhill ; it wasn't Robert's first !
\u2026 -- !
Caf\u00e9s were closed."""


def bare(word: str) -> str:
    """A word without the signs around it, letter by letter; '' where nothing is left."""
    while word and not (word[0].isalnum() or word[0] == "_"):
        word = word[1:]
    while word and not (word[-1].isalnum() or word[-1] == "_"):
        word = word[:-1]
    return word


def changes_per_line(old: str, new: str) -> list[list[tuple[str, str]]]:
    lines = list(zip(old.split("\n"), new.split("\n"), strict=True))
    return [[(a, b) for a, b in zip(x.split(), y.split(), strict=True) if a != b] for x, y in lines]


@pytest.mark.parametrize("share", [0.015, 0.2, 0.6, 1.0])
@pytest.mark.parametrize("unknown", ["keep", "swap"])
def test_every_line_loses_its_share_of_words_that_are_no_stop_words(share, unknown):
    found = swap_words(TEXT, share, "XYZ", unknown=unknown, seed=3, name="a")
    for line, changes in zip(TEXT.split("\n"), changes_per_line(TEXT, found.text), strict=True):
        words = [w if w == "<unk>" else bare(w) for w in line.split() if bare(w)]
        free = [w for w in words if w.lower() not in STOP_WORDS and (w != "<unk>" or unknown == "swap")]
        assert len(changes) == min(max(int(share * len(words)), 1), len(free))
        for old, new in changes:
            assert new == ("XYZ" if old == "<unk>" else old.replace(bare(old), "XYZ"))
            assert bare(old).lower() not in STOP_WORDS
    white = [re.findall(r"\s+", text) for text in (TEXT, found.text)]
    assert white[0] == white[1]


def test_spans_say_where_words_are_and_where_they_were():
    for found in (swap_words(TEXT, 0.3, "AAA"), keyboard_typos(TEXT, 0.2)):
        assert len(found.spans) == len(found.before) > 3
        rest, old_rest, at, old_at = [], [], 0, 0
        for (start, stop), (old_start, old_stop) in zip(found.spans, found.before):
            assert found.text[start:stop] != TEXT[old_start:old_stop]
            rest.append(found.text[at:start])
            old_rest.append(TEXT[old_at:old_start])
            at, old_at = stop, old_stop
        assert [*rest, found.text[at:]] == [*old_rest, TEXT[old_at:]]  # all that stands between is as it was
    assert {swap_words(TEXT, 0.3).text[a:b] for a, b in swap_words(TEXT, 0.3).spans} == {"AAA"}


def test_draws_depend_on_seed_name_and_line_alone_and_more_is_more():
    assert swap_words(TEXT, 0.2, seed=1, name="a") == swap_words(TEXT, 0.2, seed=1, name="a")
    assert len({swap_words(TEXT, 0.2, seed=s, name=n).text for s in (0, 1) for n in "ab"}) == 4
    assert len({keyboard_typos(TEXT, 0.2, seed=s, name=n).text for s in (0, 1) for n in "ab"}) == 4
    lines = TEXT.split("\n")
    lines[0] = "Another line"
    other = swap_words("\n".join(lines), 0.2, seed=1, name="a").text.split("\n")
    assert other[1:] == swap_words(TEXT, 0.2, seed=1, name="a").text.split("\n")[1:]
    assert set(swap_words(TEXT, 0.1).before) < set(swap_words(TEXT, 0.4).before)
    assert set(keyboard_typos(TEXT, 0.05).before) < set(keyboard_typos(TEXT, 0.3).before)


def test_nothing_is_changed_at_share_0_in_empty_lines_and_among_stop_words():
    for same in (swap_words(TEXT, 0), keyboard_typos(TEXT, 0.0)):
        assert same == Altered(TEXT)
    for text in ("", "\n\n", "of the and", "It isn't .", " ... \t", "It isn\u2019t"):
        assert swap_words(text, 0.5) == Altered(text)
    assert swap_words("<unk> of <unk>") == Altered("<unk> of <unk>")
    assert swap_words("<unk> of", unknown="swap").text == "AAA of"


def test_typos_are_neighbours_on_the_keyboard_in_the_same_case_at_the_rate_that_is_asked_for():
    text = "The Quick brown fox, 1234 <unk> JUMPS\nover \u00e9 it " * 400
    found = keyboard_typos(text, 0.1).text
    pairs = [(a, b) for a, b in zip(text, found, strict=True) if a != b]
    assert all(b.lower() in NEIGHBOURS[a.lower()] and a.isupper() == b.isupper() for a, b in pairs)
    letters = sum(c.isascii() and c.isalpha() for c in text.replace("<unk>", ""))
    assert 0.09 < len(pairs) / letters < 0.11
    assert found.count("<unk>") == 400
    assert all(a in NEIGHBOURS[b] for a, near in NEIGHBOURS.items() for b in near)  # nearness is mutual
    assert set(NEIGHBOURS["g"]) == set("tyfhvb")


def test_joined_texts_have_the_spans_of_their_parts():
    olds = ["red ball here", "blue sky"]
    parts = [swap_words(text, 0.5, "ZZ", name=text) for text in olds]
    whole = joined(parts, olds, "\n")
    assert whole.text == "\n".join(part.text for part in parts)
    assert [whole.text[a:b] for a, b in whole.spans] == ["ZZ"] * 2
    assert ["\n".join(olds)[a:b] for a, b in whole.before] == [
        old[a:b] for part, old in zip(parts, olds) for a, b in part.before
    ]


@pytest.mark.parametrize("wrong", [{"share": -0.1}, {"share": 2}, {"word": "a b"}, {"word": ""}, {"unknown": "kep"}])
def test_options_that_mean_nothing_are_refused(wrong):
    with pytest.raises(VitscopeError, match="swap_"):
        swap_words("a text", **wrong)
    with pytest.raises(VitscopeError, match="noise"):
        keyboard_typos("a text", 1.5)
