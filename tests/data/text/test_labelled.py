"""Texts with classes: the layouts of SST-2 and IMDB, tables, and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from vitscope.data import load_data
from vitscope.data.batching import steps_per_epoch
from vitscope.errors import DataError


class Letters:
    """A tokenizer of letters."""

    length, bos, pad_id = 50, None, 0

    def encode_all(self, texts, *, special=True):
        return [[ord(c) for c in text] for text in texts]

    def encode(self, text, *, special=True):
        return self.encode_all([text])[0]

    def pad(self, rows):
        longest = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        return {"input_ids": ids, "attention_mask": (ids != 0).long()}

    def to_dict(self):
        return {}


@pytest.fixture
def sst2(tmp_path: Path) -> Path:
    """As GLUE has it: quotation marks mean nothing, and the test part has no classes."""
    folder = tmp_path / "SST-2"
    folder.mkdir()
    (folder / "train.tsv").write_text('sentence\tlabel\n" a fine film \t1\nno \t0\ndull " and long\t0\n')
    (folder / "dev.tsv").write_text("sentence\tlabel\ngood\t1\nbad\t0\n")
    (folder / "test.tsv").write_text("index\tsentence\n0\tunknown\n")
    return folder


@pytest.fixture
def imdb(tmp_path: Path) -> Path:
    folder = tmp_path / "aclImdb"
    for split, classes in (("train", ("pos", "neg", "unsup")), ("test", ("pos", "neg"))):
        for name in classes:
            (folder / split / name).mkdir(parents=True)
            for i in range(3):
                (folder / split / name / f"{i}_7.txt").write_text(f"a {name} review, {i}\nof two lines")
        (folder / split / "urls_pos.txt").write_text("http://")
    (folder / "imdbEr.txt").write_text("1.0")
    return folder


def pairs(data) -> list[tuple[str, str]]:
    return [(item.text.strip(), data.classes[label]) for item, label in zip(data, data.labels)]


def test_the_layout_of_sst2(sst2: Path) -> None:
    train = load_data(sst2, "train", label_column="label")
    assert pairs(train) == [('" a fine film', "1"), ("no", "0"), ('dull " and long', "0")]
    assert train.classes == ["0", "1"]
    assert pairs(load_data(sst2, "dev", label_column="label")) == [("good", "1"), ("bad", "0")]
    with pytest.raises(DataError, match=r"no column 'label'.*index, sentence.*--label-column"):
        load_data(sst2, "test", label_column="label")


def test_the_layout_of_imdb(imdb: Path) -> None:
    train = load_data(imdb, "train", label_column="folders")
    assert pairs(train) == [(f"a {n} review, {i}\nof two lines", n) for n in ("neg", "pos") for i in range(3)]
    assert train.warnings == ["1 .txt files are in no class folder and left out, e.g. urls_pos.txt."]
    assert len(load_data(imdb, "test", label_column="folders")) == 6
    with pytest.raises(DataError, match="their classes are folders"):
        load_data(imdb, "train", label_column="sentiment")


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_any_table_with_two_columns_is_split_in_proportion_to_the_classes(tmp_path: Path, ending: str) -> None:
    rows = [{"review": f"text {i}", "stars": i % 3} for i in range(30)]
    file = tmp_path / f"table.{ending}"
    if ending == "csv":
        file.write_text("review,stars\n" + "".join(f'"{r["review"]}",{r["stars"]}\n' for r in rows))
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    train, test = (load_data(file, split, column="review", label_column="stars") for split in ("train", "test"))
    assert sorted(pairs(train) + pairs(test)) == sorted((f"text {i}", str(i % 3)) for i in range(30))
    assert [test.labels.count(i) for i in range(3)] == [2, 2, 2]
    few = load_data(file, "train", column="review", label_column="stars", texts=6)
    assert [few.labels.count(i) for i in range(3)] == [2, 2, 2]


def test_batches_have_classes_for_targets_and_an_epoch_is_a_permutation(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text("".join(json.dumps({"text": "x" * (i + 1), "label": "ab"[i % 2]}) + "\n" for i in range(11)))
    data = load_data(file, "all", label_column="label")
    batch = next(iter(data.batches(Letters(), 4)))
    assert batch.targets.tolist() == [0, 1, 0, 1]
    assert batch.valid.sum(1).tolist() == [1, 2, 3, 4]
    seen: list[int] = []
    for rank in (0, 1):
        batches = list(data.learn(Letters(), 2, seed=1, epoch=2, rank=rank, world=2))
        assert len(batches) == steps_per_epoch(11, 2, 2) == 2
        again = list(data.learn(Letters(), 2, seed=1, epoch=2, rank=rank, world=2, start=1))
        assert torch.equal(again[0].indices, batches[1].indices)
        for b in batches:
            assert b.targets.tolist() == [data.labels[i] for i in b.indices]
            assert b.valid.sum(1).tolist() == [i + 1 for i in b.indices]
            seen += b.indices.tolist()
    assert len(set(seen)) == len(seen) == 8
    other = [b.indices.tolist() for b in data.learn(Letters(), 2, seed=1, epoch=3)]
    assert other != [b.indices.tolist() for b in data.learn(Letters(), 2, seed=1, epoch=2)]


def test_another_order_of_classes_moves_labels_and_an_unknown_class_is_named(sst2: Path) -> None:
    data = load_data(sst2, "train", label_column="label")
    assert data.ordered_as(["1", "0"]).labels == [0, 1, 1]
    assert data.ordered_as(["0", "1", "2"]).num_classes == 3
    with pytest.raises(DataError, match=r"2 texts of class '0', which is none of 1, 2"):
        data.ordered_as(["1", "2"])


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        ("text,label\na,x\n,y\nb,\n", {}, "Row 3 .* has no class in column 'label': it is empty"),
        ("text,lable\na,x\n", {}, "no column 'label'. Did you mean lable"),
        ("txet,label\na,x\n", {}, "no column 'text'. Did you mean txet"),
        ("text,label\na,x\n", {"label_column": "text2"}, "Did you mean text"),
        ("text,label\na,x\nb,y\n", {"unit": "lines"}, "each as a whole: leave out unit='lines'"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(tmp_path: Path, content: str, options: dict, words: str) -> None:
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(DataError, match=words):
        load_data(tmp_path / "t.csv", "all", **{"label_column": "label", **options})


def test_a_row_without_text_is_left_out_and_another_encoding_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("text,label\na,x\n,y\n")
    assert pairs(load_data(file, "all", label_column="label")) == [("a", "x")]
    file.write_bytes("text,label\ncafé,x\n".encode("latin1"))
    with pytest.raises(DataError, match=r"not UTF-8.*iconv"):
        load_data(file, "all", label_column="label")


def test_sentences_of_pydoc_stand_in_one_part_and_one_class() -> None:
    train, test = load_data("pydoc-sentences", "train"), load_data("pydoc-sentences", "test")
    assert train.classes == test.classes
    assert train.num_classes == 8
    texts = [item.text for data in (train, test) for item in data]
    assert len(set(texts)) == len(texts) > 900
    assert min(test.labels.count(i) for i in range(8)) >= 5
    paragraphs = {name.split(".")[0] for name in train.names} & {name.split(".")[0] for name in test.names}
    assert not paragraphs
