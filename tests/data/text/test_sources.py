"""Where texts come from, against what Python itself reads."""

from __future__ import annotations

import csv
import json
import tracemalloc
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from vitscope.data import load_data, load_texts, register_dataset
from vitscope.errors import DataError


def texts(*args: object, **options: object) -> list[str]:
    return [item.text for item in load_texts(*args, **options)]  # type: ignore[arg-type]


def test_lines_of_wikitext_are_those_that_python_splits(wiki: Path) -> None:
    whole = (wiki / "wiki.test.tokens").read_text(encoding="utf-8").splitlines()
    assert texts("wikitext-2", "test", root=wiki) == [line.strip() for line in whole if line.strip()]
    data = load_texts("wikitext-2", "test", root=wiki)
    numbers = [i for i, line in enumerate(whole, 1) if line.strip()]
    assert list(data.names) == [f"wiki.test.tokens:{i}" for i in numbers]


def test_forty_lines_as_the_study_chooses_them(wiki: Path) -> None:
    lines = [line.strip() for line in (wiki / "wiki.test.tokens").read_text(encoding="utf-8").split("\n")]
    long = [line for line in lines if len(line) > 400]
    every = len(long) // 40
    data = load_data("wikitext-2", "test", root=wiki, min_chars=401)
    assert len(data) == len(long) == 1365
    chosen = load_data("wikitext-2", "test", root=wiki, min_chars=401, every=len(data) // 40, first=40)
    assert [item.text for item in chosen] == long[::every][:40]
    assert not chosen.warnings


@pytest.mark.parametrize("split", ["valid", "test"])
def test_wikitext_has_sixty_articles_that_make_up_the_file(wiki: Path, split: str) -> None:
    data = load_texts("wikitext-2", split, root=wiki, unit="documents")
    assert len(data) == 60
    assert "".join(item.text for item in data) == (wiki / f"wiki.{split}.tokens").read_text(encoding="utf-8")
    lines = load_texts("wikitext-2", split, root=wiki, unit="lines")
    articles = [item.text for item in data]
    assert all(item.text in articles[item.document] for item in lines)


def test_the_raw_layout_and_the_folder_by_its_path(tmp_path: Path) -> None:
    folder = tmp_path / "wikitext-103-raw"
    folder.mkdir()
    (folder / "wiki.valid.raw").write_text(" \n = A = \n \n one \n two = 2 \n = 3 = \n \n = B = \n \n three \n")
    data = load_texts("wikitext-103", "valid", root=tmp_path, unit="documents")
    assert [item.name for item in data] == ["wiki.valid.raw:2 A", "wiki.valid.raw:8 B"]  # '= 3 =' is no heading
    assert texts(folder, "val") == ["= A =", "one", "two = 2", "= 3 =", "= B =", "three"]
    assert load_data(folder).split == "val"


def test_a_missing_file_says_where_it_was_expected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"looked for wiki\.test\.tokens and wiki\.test\.raw in {tmp_path}"):
        load_data("wikitext-2", "test", root=tmp_path)
    with pytest.raises(DataError, match=r"has no split 'tset'. Did you mean test"):
        load_data("wikitext-2", "tset", root=tmp_path)


def test_pydoc_is_split_by_topic() -> None:
    parts = {split: load_texts("pydoc", split) for split in ("train", "val", "test")}
    names = {split: set(data.names) for split, data in parts.items()}
    assert set.union(*names.values()) == set(topics)
    assert sum(map(len, names.values())) == len(topics)
    assert len(names["val"]) == len(names["test"]) == round(0.1 * len(topics))
    assert all(item.text == topics[item.name] for data in parts.values() for item in data)
    assert {name.rsplit(":", 1)[0] for name in load_texts("pydoc", "test", unit="lines").names} == names["test"]


def test_text_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "a10.txt").write_bytes(b"\xef\xbb\xbfone\r\n\r\n  two \n")
    (tmp_path / "a9.txt").write_text("three\u2028still three\n\n\nfour")
    (tmp_path / "b" / "c.txt").write_text("five\n")
    (tmp_path / "b" / "empty.txt").write_text("")
    assert texts(tmp_path / "a10.txt") == ["one", "two"]
    folder = load_data(tmp_path)
    assert list(folder.names) == ["a9.txt", "a10.txt", "b/c.txt"]
    assert folder[1].text == "one\r\n\r\n  two \n"
    assert folder.warnings == ["1 .txt files are empty and left out, e.g. empty.txt."]
    with pytest.raises(DataError, match=r"left out, e.g. empty.txt"):
        load_data(tmp_path, strict=True)
    lines = load_data(tmp_path, unit="lines")
    assert [item.text for item in lines] == ["three\u2028still three", "four", "one", "two", "five"]
    assert lines.documents.tolist() == [0, 0, 1, 1, 2]


def test_files_and_folders_of_splits(tmp_path: Path) -> None:
    for name in ("train", "test"):
        (tmp_path / "files").mkdir(exist_ok=True)
        (tmp_path / "files" / f"{name}.jsonl").write_text(json.dumps({"text": name}) + "\n")
        (tmp_path / "folders" / name).mkdir(parents=True)
        (tmp_path / "folders" / name / "x.txt").write_text(name)
    for kind in ("files", "folders"):
        assert texts(tmp_path / kind, "train") == ["train"]
        assert load_data(tmp_path / kind).split == "test"
        with pytest.raises(DataError, match=r"no split 'trian'. Did you mean train"):
            load_data(tmp_path / kind, "trian")


def test_a_folder_without_splits_is_split_by_document(tmp_path: Path) -> None:
    for i in range(10):
        (tmp_path / f"{i}.txt").write_text(f"{i} a\n{i} b\n")
    train, test = (load_texts(tmp_path, split, unit="lines") for split in ("train", "test"))
    assert (len(train), len(test)) == (16, 4)
    assert not set(train.documents) & set(test.documents)
    (tmp_path / "one.txt").write_text("x")
    with pytest.raises(DataError, match="1 document cannot be split"):
        load_data(tmp_path / "one.txt", "train")


ROWS = ['plain, "quoted"', "two\nlines", "  ", "tab\there", "\u2028 ü", "x" * 200_000]


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_rows_of_tables_are_those_that_python_reads(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"rows.{ending}"
    with open(path, "w", encoding="utf-8", newline="") as file:
        if ending == "jsonl":
            file.writelines(json.dumps({"n": i, "body": text}) + "\n" for i, text in enumerate(ROWS))
        else:
            writer = csv.writer(file, delimiter="," if ending == "csv" else "\t")
            writer.writerows([["n", "body"], *enumerate(ROWS)])
    data = load_data(path, column="body")
    assert [item.text for item in data] == [row for row in ROWS if row.strip()]
    assert [item.name for item in data] == [f"rows.{ending}:{i}" for i in (1, 2, 4, 5, 6)]
    assert texts(path, column="body", unit="lines")[1:3] == ["two", "lines"]
    assert csv.field_size_limit() == 131_072
    with pytest.raises(DataError, match=r"no column 'boby'. Did you mean body. Its columns are n, body"):
        load_data(path, column="boby")


def test_rows_without_text_are_left_out_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "a"}\n\n{"text": null}\n{"other": 1}\n{"text": "b"}\n')
    data = load_data(path)
    assert [item.text for item in data] == ["a", "b"]
    assert data.warnings == ["2 rows of x.jsonl have no text in column 'text', e.g. row 3: left out."]
    path.write_text('{"text": "a"}\n{"text": \n')
    with pytest.raises(DataError, match=r"Line 2 of .* is not JSON"):
        load_data(path)
    path.write_text("[1]\n")
    with pytest.raises(DataError, match=r"Line 1 of .* is no JSON object"):
        load_data(path)


def test_functions_of_ones_own() -> None:
    @register_dataset("haiku")
    def haiku() -> list[str]:
        return ["old pond", "a frog leaps in", "water's sound"]

    @register_dataset("named")
    def named(split: str = "test"):  # type: ignore[no-untyped-def]
        yield split, "a text"
        yield "other", "another"

    assert next((i.name, i.text) for i in load_data("haiku")) == ("haiku[0]", "old pond")
    assert [(i.name, i.text) for i in load_data("named", "train")] == [("train", "a text"), ("other", "another")]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([], "expected"),
        (iter([]), "no texts"),
        (["a", 3], "Text 1 of dataset 'bad' is int"),
        ([("a", "x"), "y"], "Text 1 of dataset 'bad' is no pair"),
        ([("a", "x"), ("a", "y")], "same name"),
        ([3, 4], "expected"),
        (iter([3, 4]), "strings, or pairs"),
        ("one string", "expected"),
    ],
)
def test_what_functions_must_not_return(returned: object, message: str) -> None:
    register_dataset("bad")(lambda: returned)
    with pytest.raises(DataError, match=message):
        load_data("bad")


def test_a_function_that_fails_while_it_goes_is_named() -> None:
    @register_dataset("failing")
    def failing():  # type: ignore[no-untyped-def]
        yield "a"
        raise ValueError("no more")

    with pytest.raises(DataError, match="Dataset 'failing' failed: ValueError: no more"):
        load_data("failing")


def test_what_is_no_text_is_refused_with_the_place(tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(b"fine\nK\xfcche\n")
    with pytest.raises(DataError, match=r"latin.txt is not UTF-8: byte 6 is 0xfc"):
        load_data(path)
    (tmp_path / "latin.csv").write_bytes(b"text\nfine\nK\xfcche\n")
    with pytest.raises(DataError, match=r"latin.csv is not UTF-8: byte 11 is 0xfc"):
        load_data(tmp_path / "latin.csv")


@pytest.mark.parametrize(("name", "content"), [("a.txt", ""), ("a.txt", " \n\n"), ("a.csv", ""), ("a.jsonl", "\n")])
def test_empty_files_are_refused(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match="is empty"):
        load_data(tmp_path / name)


def test_empty_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no text: expected .txt files"):
        load_texts(tmp_path)
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(DataError, match=r"All 1 \.txt files of .* are empty"):
        load_data(tmp_path)
    with pytest.raises(DataError, match="no dataset and no folder"):
        load_texts(tmp_path / "missing.txt")


def test_a_file_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "large.txt"
    line = "word " * 4000 + "\n"
    with open(path, "w") as file:
        file.writelines([line] * 4000)  # 80 MB
    tracemalloc.start()
    data = load_data(path, first=4000)
    assert data[3999].text == line.strip()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 45e6  # a block of lines, whatever the size of the file
