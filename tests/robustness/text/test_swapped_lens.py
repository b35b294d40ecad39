"""The lens on changed texts against a loop: one text at a time, no padding, tokens paired by hand."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

import vitscope
from vitscope.robustness.text import keyboard_typos, swap_words
from vitscope.robustness.text.names import GROUPS
from vitscope.robustness.text.pairing import NONE, behind, pair_tokens

SHARED = Path(os.environ.get("VITSCOPE_SHARED", Path(__file__).parents[4] / "shared"))
STORIES = SHARED / "weights" / "stories260K"
real = pytest.mark.skipif(not STORIES.exists(), reason="stories260K is not here")
QUIET = {"progress": False, "report": False}
TEXTS = {
    "one.txt": "Once upon a time there was a little girl.\n\nShe lived in a house near the woods, and she was glad.",
    "two.txt": "Tom had a red ball. He liked to play with it all day long,\nand his dog did too.",
    "three.txt": "The sun was high. Lily ran to her mother with a big red flower in her small hand.",
}


@pytest.fixture(scope="module")
def model():
    return vitscope.open_model(STORIES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("texts")
    for name, text in TEXTS.items():
        (place / name).write_text(text)
    return place


def group_of(distance: int) -> str:
    limits = ((0, "0"), (1, "1"), (4, "2-4"), (16, "5-16"))
    return next((name for limit, name in limits if distance <= limit), "further")


def by_hand(model, text: str, altered) -> list[tuple[str, int, int, int | None]]:
    """(group, place in the new text, place in the old one, the next token where it is the same) of paired tokens."""
    tokenizer = model.preprocess.tokenizer.backend_tokenizer
    coded = [tokenizer.encode(t, add_special_tokens=False) for t in (altered.text, text)]
    origin, at, old_at = {}, 0, 0  # character of the new text -> of the old one
    edges = [*zip(altered.spans, altered.before), ((len(altered.text),) * 2, (len(text),) * 2)]
    for (start, stop), (_, old_stop) in edges:
        origin |= {at + k: old_at + k for k in range(start - at)}
        at, old_at = stop, old_stop
    pairs = {}
    for i, (a, b) in enumerate(coded[0].offsets):
        for j, (c, d) in enumerate(coded[1].offsets):
            same = coded[0].ids[i] == coded[1].ids[j] and b - a == d - c
            if same and all(origin.get(a + k) == c + k for k in range(b - a)):
                pairs[i] = j
    ends = {}
    for (_, stop), (_, old_stop) in zip(altered.spans, altered.before):
        i, j = (max(k for k, (a, _) in enumerate(c.offsets) if a < s) for c, s in zip(coded, (stop, old_stop)))
        ends[i] = j
    first, last = min(pairs), max(pairs)
    found = []
    for i, j in sorted({**pairs, **ends}.items()):
        if first <= i <= last:
            passed = [e for e in ends if first <= e <= i]  # a word in front of the stretch is not seen
            group = group_of(i - max(passed)) if passed else "before"
            follows = pairs.get(i + 1) == j + 1 and i + 1 not in ends and i < last
            found.append((group, i, j, coded[0].ids[i + 1] if follows else None))
    return found


@real
@pytest.mark.parametrize(
    "change",
    [lambda t, n: swap_words(t, 0.2, name=n), lambda t, n: keyboard_typos(t, 0.1, name=n)],
    ids=["swap", "typos"],
)
def test_tokens_are_paired_as_by_hand(model, change):
    for name, text in TEXTS.items():
        altered = change(text, name)
        pairing = pair_tokens(text, altered, model.preprocess)
        rows = pairing.rows(0, len(pairing.new), 512)
        hand = by_hand(model, text, altered)
        first, old_first = hand[0][1], hand[0][2]
        assert [GROUPS[g] for g in rows.group] == [group for group, *_ in hand]
        assert (rows.new_at + first).tolist() == [i for _, i, _, _ in hand]
        assert (rows.old_at + old_first).tolist() == [j for _, _, j, _ in hand]
        assert rows.follows.tolist() == [token is not None for *_, token in hand]
        known = pairing.partner[pairing.partner != NONE]
        assert (np.diff(known) > 0).all()
        short = pairing.rows(3, 20, 9)
        assert max(len(short.new), len(short.old)) <= 9


@real
def test_the_lens_equals_a_loop_over_texts(model, folder, tmp_path):
    how = {"unit": "documents", "lens": True, "batch_size": 2, **QUIET}
    run = vitscope.evaluate(model, folder, tmp_path / "run", swap=True, swap_share=0.1, **how)
    table = run.table("swapped_lens").set_index(["block", "distance"])
    blocks, sums = model.layout.blocks, {}
    lead = [model.preprocess.bos] if model.preprocess.encode("") else []
    for name, text in TEXTS.items():
        altered = swap_words(text, 0.1, name=name)
        hand = by_hand(model, text, altered)
        (_, a, c, _), (_, b, d, _) = hand[0], hand[-1]
        ids = [model.preprocess.encode(t, special=False) for t in (altered.text, text)]
        rows = [ids[0][a : b + 1], ids[1][c : d + 1]]
        with torch.no_grad():
            caches = [model.run_with_cache(torch.tensor([lead + row]), "blocks.*.hook_resid_post")[1] for row in rows]
        for block in range(blocks):
            x, y = (cache[f"blocks.{block}.hook_resid_post"][0, len(lead) :].double() for cache in caches)
            p, q = (model.to_class_space(side.float()).detach().double().log_softmax(-1) for side in (x, y))
            for group, i, j, token in hand:
                i, j = i - a, j - c
                cosine = float(x[i] @ y[j] / x[i].norm() / y[j].norm())
                cosines, changes = sums.setdefault((block, group), ([], []))
                cosines.append(cosine)
                changes += [] if token is None else [float(p[i, token] - q[j, token])]
    for key, (cosines, changes) in sums.items():
        row = table.loc[key]
        assert (row["n_cosine"], row["n_change"]) == (len(cosines), len(changes))
        assert row["cosine"] == pytest.approx(np.mean(cosines), abs=1e-5)
        assert row["change"] == pytest.approx(np.mean(changes), abs=1e-4)
    assert len(table) == len(sums)


@real
def test_what_stands_before_a_changed_word_does_not_notice_and_a_rerun_says_the_same(folder, tmp_path):
    how = {"context": 24, "bos": True, "lens": True, "noise": 0.05, "batch_size": 5, **QUIET}
    run = vitscope.evaluate(STORIES, folder, tmp_path / "run", swap=True, **how)
    table = run.table("swapped_lens")
    before = table[table["distance"] == "before"]
    assert set(before["condition"]) == {"swap", "typos"}
    assert before["cosine"].to_numpy() == pytest.approx(1, abs=1e-6)
    assert before["change"].to_numpy() == pytest.approx(0, abs=1e-5)
    assert (table[table["distance"] == "0"]["cosine"] < 0.99).all()
    again = vitscope.rerun(run, out=tmp_path / "again", **QUIET)
    assert len({(r.path / "tables" / "swapped_lens.csv").read_bytes() for r in (run, again)}) == 1


def test_distances_are_counted_from_the_last_token_of_the_last_changed_word():
    ends = np.zeros(24, dtype=bool)
    ends[[2, 4]] = True
    groups = [GROUPS[g] for g in behind(ends)]
    assert groups == ["before"] * 2 + ["0", "1", "0", "1"] + ["2-4"] * 3 + ["5-16"] * 12 + ["further"] * 3


@real
def test_a_lens_without_changes_or_places_of_tokens_is_refused(model, folder, tmp_path, monkeypatch):
    with pytest.raises(vitscope.errors.VitscopeError, match="--swap"):
        vitscope.evaluate(model, folder, tmp_path / "a", lens=True, **QUIET)
    monkeypatch.setattr(type(model.preprocess), "offsets", lambda *_, **__: None)
    with pytest.raises(vitscope.errors.VitscopeError, match="side by side"):
        vitscope.evaluate(model, folder, tmp_path / "b", swap=True, lens=True, **QUIET)
