"""Perplexity of changed texts against a loop over targets, one forward pass each."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
import torch

import vitscope
from vitscope.analyses.one_pass import OnePass
from vitscope.analyses.perplexity import ratio_change
from vitscope.data import load_data
from vitscope.errors import VitscopeError
from vitscope.robustness.text import keyboard_typos, swap_words
from vitscope.robustness.text.changes import Typos, WordSwap
from vitscope.robustness.text.conditions import TextConditions, overlap, spaced
from vitscope.robustness.text.perplexity import SwappedPerplexity

SHARED = Path(os.environ.get("VITSCOPE_SHARED", Path(__file__).parents[4] / "shared"))
STORIES = SHARED / "weights" / "stories260K"
real = pytest.mark.skipif(not STORIES.exists(), reason="stories260K is not here")
QUIET = {"progress": False, "report": False}
TEXTS = {
    "one.txt": "Once upon a time there was a little girl.\n\nShe lived in a house near the woods.",
    "two.txt": "Tom had a red ball. He liked to play with it all day long,\nand his dog did too.",
    "three.txt": "The sun was high. Lily ran.",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("texts")
    for name, text in TEXTS.items():
        (place / name).write_text(text)
    return place


@pytest.fixture(scope="module")
def model():
    return vitscope.open_model(STORIES)


def one_by_one(model, tokens: list[int], context: int, stride: int) -> dict[int, float]:
    """-ln p of every token but the first, each from the window that scores it: no batch, no padding, no mask."""
    found, done, start = {}, 0, 0
    while done < len(tokens) - 1:
        stop = min(start + context + (stride == 1), len(tokens))
        with torch.no_grad():
            log_p = model(torch.tensor([tokens[start : stop - 1]]))[0].double().log_softmax(-1)
        for place in range(max(done + 1, start + 1), stop):
            found[place] = float(-log_p[place - 1 - start, tokens[place]])
            done = place
        start += stride
    return found


def outside(model, text: str, spans) -> tuple[list[int], set[int]]:
    """Tokens of a text, and the places of those that hold no character of a changed word or of a space before it."""
    bad = {c for a, b in spans for c in range(a - 1 if text[a - 1 : a] == " " else a, b)}
    coded = model.preprocess.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
    return coded.ids, {i for i, (a, b) in enumerate(coded.offsets) if not bad & set(range(a, b))}


def mean(values) -> float:
    return sum(values) / len(values)


@real
@pytest.mark.parametrize(("context", "stride"), [(12, 1), (16, 5), (64, 32)])
def test_every_condition_equals_a_loop_over_targets(model, folder, tmp_path, context, stride):
    how = {"context": context, "stride": stride, "batch_size": 7, "seed": 4, **QUIET}
    run = vitscope.evaluate(model, folder, tmp_path / "run", swap=True, swap_share=0.2, noise=0.05, **how)
    table = run.table("perplexity").set_index(["condition", "over", "metric"])
    changes = {
        "swap": lambda text, name: swap_words(text, 0.2, seed=4, name=name),
        "typos": lambda text, name: keyboard_typos(text, 0.05, seed=4, name=name),
    }
    plain = {n: one_by_one(model, outside(model, t, ())[0], context, stride) for n, t in TEXTS.items()}
    clean = [x for losses in plain.values() for x in losses.values()]
    assert table.loc[("clean", "all", "loss"), "value"] == pytest.approx(mean(clean), rel=1e-6)
    for condition, change in changes.items():
        every, left, before = [], [], []
        for name, text in TEXTS.items():
            new = change(text, name)
            ids, kept = outside(model, new.text, new.spans)
            losses = one_by_one(model, ids, context, stride)
            every += losses.values()
            left += [loss for place, loss in losses.items() if place in kept]
            kept = outside(model, text, new.before)[1]
            before += [loss for place, loss in plain[name].items() if place in kept]
        assert len(left) < len(every)
        for over, values, others in (("all", every, clean), ("unswapped", left, before)):
            row = table.loc[(condition, over, "loss")]
            assert row["targets"] == len(values)
            assert row["value"] == pytest.approx(mean(values), rel=1e-6)
            assert row["clean"] == pytest.approx(mean(others), rel=1e-6)
            assert row["change_low"] < row["change"] < row["change_high"]
            ratio = table.loc[(condition, over, "perplexity")]
            assert ratio["change"] == pytest.approx(math.exp(mean(values) - mean(others)), rel=1e-5)


@real
def test_a_share_of_0_is_clean_to_the_last_digit(model, folder, tmp_path):
    run = vitscope.evaluate(model, folder, tmp_path / "run", swap=True, swap_share=0.0, noise=0.05, context=16, **QUIET)
    table = run.table("perplexity")
    clean = table[table["condition"] == "clean"].set_index("metric")["value"]
    for over in ("all", "unswapped"):
        same = table[(table["condition"] == "swap") & (table["over"] == over)].set_index("metric")
        assert same["value"].tolist() == clean.tolist()
        assert same["clean"].tolist() == clean.tolist()
        assert same["change"].tolist() == [1, 0, 0]


@real
@pytest.mark.parametrize(
    "how", [{"unit": "lines"}, {"unit": "documents", "context": 12}, {"joined": True, "bos": True}]
)
def test_tokens_of_changed_words_are_known_in_every_unit(model, folder, how):
    unit = {"unit": "windows", "context": 16} if "joined" in how else {}
    data = load_data(folder, **unit, **how)
    items = TextConditions(data, [WordSwap(0.2, "ZQ"), Typos(0.3)]).cut(model.preprocess)
    marked = {0: 0, 1: 0, 2: 0}
    for batch in items.batches(model.preprocess, 4):
        for row, item in enumerate(batch.indices.tolist()):
            n = int(batch.valid[row].sum())
            words = model.preprocess.words(batch.inputs["input_ids"][row, :n].tolist())
            condition = int(items.condition[item])
            flags = items.changed_tokens(item, condition or 1, model.preprocess)
            assert len(flags) == n
            marked[condition] += sum(flags)
            if condition == 1:
                assert set("".join(w for w, flag in zip(words, flags) if flag)) <= set(" ZQ")
                assert not any({"Z", "Q"} & set(w) for w, flag in zip(words, flags) if not flag)
    assert min(marked.values()) > 3


@real
def test_killed_runs_go_on_and_reruns_give_the_same_tables(folder, tmp_path, monkeypatch):
    how = {"swap": True, "noise": 0.1, "swap_word": "BBB", "context": 20, "batch_size": 4, "save_every": 0.0, **QUIET}
    run = vitscope.evaluate(STORIES, folder, tmp_path / "run", **how)
    count = SwappedPerplexity.end_batch

    def dies(self, batch):
        if batch.number == 2:
            raise RuntimeError("killed")
        count(self, batch)

    monkeypatch.setattr(SwappedPerplexity, "end_batch", dies)
    with pytest.raises(RuntimeError, match="killed"):
        vitscope.evaluate(STORIES, folder, tmp_path / "killed", **how)
    monkeypatch.setattr(SwappedPerplexity, "end_batch", count)
    killed = vitscope.evaluate(STORIES, folder, tmp_path / "killed", **how)
    again = vitscope.rerun(run, out=tmp_path / "again", **QUIET)
    for name in ("perplexity.csv", "perplexity_documents.csv"):
        tables = [(r.path / "tables" / name).read_bytes() for r in (run, killed, again)]
        assert tables[0] == tables[1] == tables[2]
    assert again.config["data"]["swap_word"] == "BBB"
    assert "times the" in run.summary["swapped.perplexity.swap_unswapped"]["note"]


@real
def test_two_processes_add_up_to_one(model, folder):
    data = TextConditions(load_data(folder, unit="windows", context=16), [WordSwap(0.1), Typos(0.1)])
    items = data.cut(model.preprocess)

    def counted(**turn):
        analysis = SwappedPerplexity()
        analysis.start(model)
        analysis.prepare(items, model)
        one_pass = OnePass(model, [analysis])
        for batch in items.batches(model.preprocess, 4, **turn):
            one_pass(batch)
        return analysis

    alone, first, second = counted(), counted(rank=0, world=2), counted(rank=1, world=2)
    first.merge(second)
    for key, value in alone.sums.items():
        torch.testing.assert_close(first.sums[key], value, rtol=1e-12, atol=0)


@real
def test_without_places_of_tokens_there_is_the_published_number_and_a_remark(model, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(type(model.preprocess), "offsets", lambda *_, **__: None)
    run = vitscope.evaluate(model, folder, tmp_path / "run", swap=True, context=16, **QUIET)
    assert set(run.table("perplexity")["over"]) == {"all"}
    assert any("which characters" in text for text in run.warnings)


@real
def test_what_cannot_be_changed_is_refused_with_what_to_type(model, folder, tmp_path):
    for wrong, reason in (
        ({"swap_share": 0.5}, "--swap --swap-share"),
        ({"swap": True, "swap_share": 1.5}, "from 0 to 1"),
        ({"noise": -1.0}, "from 0 to 1"),
        ({"swap": True, "swap_unknown": "kep"}, "keep"),
    ):
        with pytest.raises(VitscopeError, match=reason):
            vitscope.evaluate(model, folder, tmp_path / "a", **wrong, **QUIET)
    with pytest.raises(VitscopeError, match="change texts"):
        vitscope.evaluate("small", "mnist5k", tmp_path / "b", swap=True, images=2, **QUIET)
    with pytest.raises(VitscopeError, match="evaluate --swap"):
        vitscope.analyze(model, folder, ["swapped.perplexity"], tmp_path / "c", **QUIET)


def test_overlap_is_that_of_characters():
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        cuts = torch.randperm(40, generator=generator)[:12].sort().values.tolist()
        spans = [(cuts[i], cuts[i + 1]) for i in range(0, 12, 2)]
        tokens = [(a, a + n) for a, n in torch.randint(0, 9, (30, 2), generator=generator).tolist()]
        hit = {c for a, b in spans for c in range(a, b)}
        assert overlap(tokens, spans).tolist() == [bool(hit & set(range(a, b))) for a, b in tokens]
    assert overlap([(0, 3), (3, 3)], []).tolist() == [False, False]
    assert spaced("a bc d", [(0, 1), (2, 4)]) == [(0, 1), (1, 4)]


def test_paired_intervals_are_narrower_and_cover_the_truth_about_19_times_in_20():
    generator = torch.Generator().manual_seed(2)
    covered = 0
    for _ in range(400):
        n, m = torch.randint(5, 60, (2, 40), generator=generator)
        level = 3 + torch.randn(40, generator=generator, dtype=torch.float64)
        more = level + 0.3 + 0.1 * torch.randn(40, generator=generator, dtype=torch.float64)
        _, low, high = ratio_change(more * n, n, level * n, n)
        covered += low < 0.3 < high
        wide = ratio_change(more * m, m, level * n, n)
        assert wide[2] - wide[1] > high - low  # other targets in the same documents
    assert 0.9 < covered / 400 < 0.98
    assert math.isnan(ratio_change(*map(torch.tensor, ([6.0], [3], [3.0], [3])))[1])
