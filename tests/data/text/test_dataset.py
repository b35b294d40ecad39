"""Choices, fingerprints and batches of texts."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from vitscope.data import Data, load_data, load_texts
from vitscope.data.text.tokens import shortened
from vitscope.errors import DataError
from vitscope.models.preprocessing import Preprocess

Make = Callable[..., Any]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """30 lines of 1 to 30 characters."""
    path = tmp_path / "lines.txt"
    path.write_text("".join("abcdefghijklmnopqrstuvwxyzäöüß"[: i + 1] + "\n\n" for i in range(30)), encoding="utf-8")
    return path


def test_choices_are_applied_one_after_the_other(lines: Path) -> None:
    assert [len(item.text) for item in load_data(lines, min_chars=28)] == [28, 29, 30]
    assert [len(item.text) for item in load_data(lines, min_chars=10, every=10)] == [10, 20, 30]
    assert [len(item.text) for item in load_data(lines, every=10, first=2)] == [1, 11]
    half, some = load_data(lines, share=0.5), load_data(lines, share=0.5, images=5)
    assert len(half) == 15
    assert len(some) == 5
    assert set(some.names) < set(half.names)
    assert list(load_texts(lines, texts=5).names) == list(load_data(lines, images=5).names)
    assert set(load_data(lines, images=5, seed=1).names) != set(load_data(lines, images=5).names)


def test_fewer_texts_than_asked_for(lines: Path) -> None:
    assert load_data(lines, images=31).warnings == ["Asked for 31 texts, there are 30: all of them are used."]
    with pytest.raises(DataError, match="Asked for the first 31 texts"):
        load_data(lines, first=31, strict=True)
    with pytest.raises(DataError, match="no text of 31 characters: the longest of its 30 lines has 30"):
        load_data(lines, min_chars=31)


def test_fingerprints_tell_content_cut_and_choice_apart_and_nothing_else(lines: Path, tmp_path: Path) -> None:
    def told(**options: Any) -> str:
        return load_data(lines, **options).describe()["fingerprint"]

    ways = [{}, {"unit": "documents"}, {"first": 3}, {"images": 3}, {"context": 9}, {"unit": "windows", "stride": 4}]
    before = [told(**way) for way in ways]
    assert len(set(before)) == len(ways)
    (tmp_path / "elsewhere").mkdir()
    copy = tmp_path / "elsewhere" / "lines.txt"
    copy.write_bytes(lines.read_bytes())
    assert load_data(copy).describe()["fingerprint"] == before[0]
    lines.write_text(lines.read_text(encoding="utf-8").replace("abc", "abd", 1), encoding="utf-8")
    assert not set(before) & {told(**way) for way in ways}


def test_a_subset_is_numbered_anew(lines: Path) -> None:
    data = load_data(lines)
    some = data.subset([7, 3])
    assert [(i.index, len(i.text), i.name) for i in some] == [(0, 8, "lines.txt:15"), (1, 4, "lines.txt:7")]
    assert some.describe()["fingerprint"] != data.describe()["fingerprint"]
    with pytest.raises(DataError, match="There is no text 30"):
        data.subset([30])


def test_batches_hold_tokens_next_tokens_and_what_is_real(lines: Path, stand_in: Make) -> None:
    preprocess, data = stand_in(), load_data(lines)
    for batch in data.batches(preprocess, 8):
        rows = [preprocess.encode(data[int(i)].text) for i in batch.indices]
        width = max(map(len, rows))
        assert batch.inputs["input_ids"].shape == batch.targets.shape == batch.valid.shape == (len(batch), width)
        for row, ids, targets, valid in zip(rows, batch.inputs["input_ids"], batch.targets, batch.valid):
            assert ids[: len(row)].tolist() == row
            assert valid.tolist() == [True] * len(row) + [False] * (width - len(row))
            assert targets.tolist() == row[1:] + [-1] * (width - len(row) + 1)
        assert batch.names == [data.names[i] for i in batch.indices]
        assert torch.equal(batch.inputs["attention_mask"].bool(), batch.valid)


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_the_same_for_every_number_of_processes(lines: Path, stand_in: Make, workers: int) -> None:
    preprocess, data = stand_in(), load_data(lines)
    alone = {batch.number: batch for batch in data.batches(preprocess, 4)}
    assert list(alone) == list(range(8))
    for rank in range(3):
        for batch in data.batches(preprocess, 4, rank=rank, world=3, start=2, workers=workers, context="fork"):
            same = alone.pop(batch.number)
            assert batch.number % 3 == rank
            assert batch.number >= 2
            assert torch.equal(batch.inputs["input_ids"], same.inputs["input_ids"])
            assert torch.equal(batch.targets, same.targets)
            assert batch.names == same.names
    assert list(alone) == [0, 1]


def test_long_texts_are_cut_and_counted(lines: Path, stand_in: Make) -> None:
    preprocess, data = stand_in(length=12), load_data(lines)
    batches = list(data.batches(preprocess, 8))
    assert [batch.shortened for batch in batches] == [0, 6, 8, 6]
    assert max(batch.targets.shape[1] for batch in batches) == 12
    last = batches[-1].inputs["input_ids"][-1]
    assert last.tolist() == [1, *[3 + ord(c) for c in "abcdefghij"], 2]  # what stands around a text stays
    assert data.warnings == ["20 of 30 texts have more than 12 tokens: only their beginning is used."]
    list(data.batches(preprocess, 8))
    assert len(data.warnings) == 1
    with pytest.raises(DataError, match="longer than the 12 tokens that the model takes"):
        list(load_data(lines, strict=True).batches(preprocess, 8))
    chosen = load_data(lines, strict=True, context=6)
    assert max(batch.targets.shape[1] for batch in chosen.batches(preprocess, 8)) == 6
    with pytest.raises(DataError, match="context=13 is more than the 12 tokens"):
        load_data(lines, context=13).batches(preprocess, 8)


def test_rows_are_shortened_inside_of_what_stands_around_them() -> None:
    assert shortened([1, 5, 6, 7, 2], [5, 6, 7], 4) == [1, 5, 6, 2]
    assert shortened([5, 6, 7], [5, 6, 7], 2) == [5, 6]
    assert shortened([1, 5, 6, 7, 2], [9, 9, 9], 4) == [1, 5, 6, 7]  # a tokenizer whose pieces change
    assert shortened([1, 1, 5, 2, 2], [5], 3) == [1, 1, 5]


def test_a_text_without_tokens_is_skipped_with_the_reason(tmp_path: Path, stand_in: Make) -> None:
    class Deaf(stand_in):  # type: ignore[misc, valid-type]
        def encode(self, text: str, *, special: bool = True) -> list[int]:
            return super().encode(text.replace("?", ""), special=special)

    path = tmp_path / "x.txt"
    path.write_text("a\n??\nb\n?\n")
    (first, second) = load_data(path).batches(Deaf(), 3)
    assert first.names == ["x.txt:1", "x.txt:3"]
    assert first.indices.tolist() == [0, 2]
    assert [(s.index, s.path) for s in first.skipped] == [(1, "x.txt:2")]
    assert "no tokens" in first.skipped[0].reason
    assert len(second) == 0
    assert second.targets.shape == (0, 0)
    assert len(second.skipped) == 1
    with pytest.raises(DataError, match="no tokens"):
        list(load_data(path, strict=True).batches(Deaf(), 3))


@pytest.mark.parametrize("unit", ["lines", "documents", "windows"])
def test_texts_travel_to_worker_processes_that_start_afresh(lines: Path, stand_in: Make, unit: str) -> None:
    data = load_data(lines, unit=unit)
    again = pickle.loads(pickle.dumps(data))
    assert [item.text for item in again] == [item.text for item in data]
    assert again.describe() == data.describe()
    as_data: Data = data
    assert as_data.labels == [-1] * len(data)


def test_a_real_tokenizer_gives_back_the_lines(wiki: Path, shared: Path, stand_in: Make) -> None:
    preprocess = stand_in(512, file=shared / "weights" / "stories260K" / "tokenizer.json")
    data = load_data("wikitext-2", "test", root=wiki, min_chars=60, first=20)
    batch = next(data.batches(preprocess, 20))
    rows = [preprocess.tokenizer.encode(item.text, add_special_tokens=False).ids[:512] for item in data]
    assert [ids[valid].tolist() for ids, valid in zip(batch.inputs["input_ids"], batch.valid)] == rows


def test_windows_are_cut_for_the_tokenizer(tmp_path: Path, stand_in: Make) -> None:
    for i, n in enumerate((25, 1, 7)):
        (tmp_path / f"{i}.txt").write_text("x" * n)
    data = load_data(tmp_path, unit="windows", context=8, stride=3)
    cut = data.cut(stand_in())
    assert len(data) == 3
    assert set(cut.documents) == {0, 2}
    assert cut.warnings == ["1 of 3 texts have no two tokens and are left out, e.g. 1.txt."]
    batches = list(data.batches(stand_in(), 4))
    assert sum(map(len, batches)) == len(cut) == cut.describe()["n"]
    assert sum(int((batch.targets >= 0).sum()) for batch in batches) == 24 + 6
    assert [i for batch in batches for i in batch.indices.tolist()] == list(range(len(cut)))
    assert batches[0].names[:2] == ["0.txt[0:8]", "0.txt[3:11]"]
    assert batches[0].targets[1].tolist() == [-1] * 4 + [3 + ord("x")] * 3 + [-1]
    assert all(a < b for a, b in pairwise(batch.number for batch in batches))


def test_windows_with_a_first_token_of_their_own(tmp_path: Path, stand_in: Make) -> None:
    (tmp_path / "a.txt").write_text("abcdefghij")
    data = load_data(tmp_path / "a.txt", unit="windows", context=4, bos=True)
    (batch,) = data.batches(stand_in(), 9)
    ids = [3 + ord(c) for c in "abcdefghij"]
    assert batch.inputs["input_ids"].tolist() == [[1, *ids[:3]], [1, *ids[3:6]], [1, *ids[6:9]], [1, ids[9], 0, 0]]
    assert batch.targets.tolist() == [[*ids[:3], -1], [*ids[3:6], -1], [*ids[6:9], -1], [ids[9], -1, -1, -1]]


def test_joined_windows_of_wikitext_are_those_of_the_whole_file(wiki: Path, shared: Path, stand_in: Make) -> None:
    preprocess = stand_in(512, file=shared / "weights" / "stories260K" / "tokenizer.json")
    text = (wiki / "wiki.test.tokens").read_text(encoding="utf-8")[:60_000]
    ids = preprocess.encode(text, special=False)
    data = load_data("wikitext-2", "test", root=wiki, unit="windows", joined=True, windows=8, first=4)
    cut = data.cut(preprocess)
    assert len(cut) == 8
    assert [cut.tokens(i) for i in range(8)] == [ids[512 * i : 512 * (i + 1)] for i in range(8)]
    (batch,) = cut.batches(preprocess, 8)
    assert (batch.targets >= 0).sum(1).tolist() == [511] * 8
    assert cut.subset([3]).tokens(0) == cut.tokens(3)
    with pytest.raises(DataError, match="another tokenizer"):
        cut.batches(stand_in(40), 8)


def test_pictures_and_texts_do_not_mix(lines: Path, class_folders: Make, small: Preprocess, stand_in: Make) -> None:
    pictures = class_folders({"a": 2, "b": 2})
    with pytest.raises(DataError, match="are texts, and the model takes pictures: choose pictures"):
        load_data(lines).batches(small, 4)
    with pytest.raises(DataError, match="are pictures, and the model takes texts: choose texts"):
        load_data(pictures).batches(stand_in(), 4)
    with pytest.raises(DataError, match="are pictures: unit, min_chars cannot be said of them"):
        load_data(pictures, unit="lines", min_chars=3)
    with pytest.raises(DataError, match="are texts: per_class, masks cannot be said of them"):
        load_data(lines, per_class=3, masks=True)
    with pytest.raises(DataError, match="are pictures, and texts are wanted"):
        load_texts("mnist5k")
    assert load_data(pictures, first=3).paths == load_data(pictures).paths[:3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unit": "line"}, "no unit 'line'. Did you mean lines"),
        ({"min_char": 3}, "no option 'min_char' for data. Did you mean min_chars"),
        ({"stride": 3}, "stride is for windows"),
        ({"images": 3, "texts": 4}, "both say how many"),
        ({"min_chars": 0}, "min_chars must be at least 1"),
        ({"first": 0}, "first must be at least 1"),
        ({"column": "text"}, "has no columns"),
    ],
)
def test_options_that_make_no_sense_are_refused(lines: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_data(lines, **options)
