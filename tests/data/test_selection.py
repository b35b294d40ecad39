from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitscope.data.selection import (
    balanced_order,
    pick_every,
    pick_images,
    pick_listed,
    pick_per_class,
    pick_share,
    proportional_order,
)
from vitscope.errors import DataError

LABELS = [0] * 50 + [1] * 30 + [2] * 20
NAMES = [f"{label}/{i}.png" for i, label in enumerate(LABELS)]


def counts(order: list[int]) -> dict[int, int]:
    return dict(Counter(LABELS[i] for i in order))


@given(st.lists(st.integers(-1, 5), min_size=1, max_size=60), st.integers(0, 3))
@settings(max_examples=50, deadline=None)
def test_every_beginning_of_the_balanced_order_is_as_even_as_the_classes_allow(labels: list[int], seed: int) -> None:
    order = balanced_order([str(i) for i in range(len(labels))], labels, seed)
    assert sorted(order) == list(range(len(labels)))
    total = Counter(labels)
    for n in range(1, len(labels) + 1):
        taken = Counter(labels[i] for i in order[:n])
        top = max(taken.values())
        assert all(taken[c] == total[c] or taken[c] >= top - 1 for c in total)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60))
@settings(max_examples=50, deadline=None)
def test_every_beginning_of_the_proportional_order_has_the_proportions_of_the_whole(labels: list[int]) -> None:
    order = proportional_order([str(i) for i in range(len(labels))], labels, "x")
    assert sorted(order) == list(range(len(labels)))
    total = Counter(labels)
    for n in range(1, len(labels) + 1):
        taken = Counter(labels[i] for i in order[:n])
        assert all(abs(taken[c] - total[c] * n / len(labels)) <= len(total) for c in total)


def test_images_are_spread_over_the_classes() -> None:
    order, remark = pick_images(NAMES, LABELS, 30, seed=0)
    assert counts(order) == {0: 10, 1: 10, 2: 10}
    assert remark is None
    assert sorted(counts(pick_images(NAMES, LABELS, 75, seed=0)[0]).values()) == [20, 27, 28]


def test_a_smaller_choice_begins_a_larger_one_and_seeds_differ() -> None:
    large, small = pick_images(NAMES, LABELS, 60, 0)[0], pick_images(NAMES, LABELS, 20, 0)[0]
    assert large[:20] == small
    assert set(pick_images(NAMES, LABELS, 20, 1)[0]) != set(small)


def test_the_choice_depends_on_names_not_on_their_order() -> None:
    chosen = {NAMES[i] for i in pick_images(NAMES, LABELS, 20, 0)[0]}
    names, labels = NAMES[::-1], LABELS[::-1]
    assert {names[i] for i in pick_images(names, labels, 20, 0)[0]} == chosen


def test_fewer_images_than_asked_for_are_remarked_on() -> None:
    order, remark = pick_images(NAMES, LABELS, 101, 0)
    assert sorted(order) == list(range(100))
    assert remark is not None
    assert "101" in remark
    assert "100" in remark


def test_per_class_takes_so_many_of_each_and_remarks_on_classes_that_have_fewer() -> None:
    order, remark = pick_per_class(NAMES, LABELS, 20, 0)
    assert counts(order) == {0: 20, 1: 20, 2: 20}
    assert remark is None
    order, remark = pick_per_class(NAMES, LABELS, 25, 0)
    assert counts(order) == {0: 25, 1: 25, 2: 20}
    assert remark is not None
    assert "1 of 3 classes have fewer" in remark
    assert "70 images are used instead of 75" in remark


def test_every_counts_from_the_first() -> None:
    assert pick_every(NAMES, 40) == [0, 40, 80]
    assert pick_every(NAMES, 1) == list(range(100))
    assert pick_every(NAMES, 1000) == [0]
    with pytest.raises(DataError, match="at least 1"):
        pick_every(NAMES, 0)


def test_per_class_needs_classes() -> None:
    with pytest.raises(DataError, match="unknown"):
        pick_per_class(["a", "b"], [-1, -1], 1, 0)


def test_a_share_keeps_the_proportions_and_grows_by_adding() -> None:
    tenth, fifth = pick_share(NAMES, LABELS, 0.1, 0), pick_share(NAMES, LABELS, 0.2, 0)
    assert counts(tenth) == {0: 5, 1: 3, 2: 2}
    assert counts(fifth) == {0: 10, 1: 6, 2: 4}
    assert set(tenth) < set(fifth)
    assert pick_share(NAMES, LABELS, 1.0, 0) == list(range(100))
    assert len(pick_share(NAMES, LABELS, 1e-9, 0)) == 1


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, float("nan")])
def test_an_impossible_share_is_refused(share: float) -> None:
    with pytest.raises(DataError, match="between 0"):
        pick_share(NAMES, LABELS, share, 0)


@pytest.mark.parametrize("number", [0, -3])
def test_impossible_numbers_are_refused(number: int) -> None:
    with pytest.raises(DataError, match="at least 1"):
        pick_images(NAMES, LABELS, number, 0)
    with pytest.raises(DataError, match="at least 1"):
        pick_per_class(NAMES, LABELS, number, 0)


FILES = ["val/cat/1.png", "val/cat/2.png", "val/dog/2.png", "val/dog/3.png"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("path\nval/dog/3.png\nval/cat/1.png\n", [3, 0]),  # in the order of the list
        ("label,Path\n5,val/dog/3.png\n", [3]),
        ("val/cat/2.png\nval/dog/2.png\n", [1, 2]),  # no heading
        ("file,label\nval/cat/2.png,0\n", [1]),  # another heading: the first column
        ("\ufeffpath\r\ncat/2.png\r\n\r\n", [1]),  # from a spreadsheet; relative to the split
        ("path\n3.png\n", [3]),  # a file name that occurs once
        ("path\nval\\cat\\1.png\n", [0]),
        ("/data/set/val/cat/1.png\n./val/cat/2.png\n", [0, 1]),
        ("imagenet_id,index,cat,img_name,img_index\ndog,7,a dog,3.png,0\ncat,4,a cat,1.png,0\n", [3, 0]),
        ("imagenet_id,index,cat,img_name,img_index\ndog,7,a dog,2.png,0\ncat,4,a cat,2.png,0\n", [2, 1]),
        ("label,im_name\n1,3.png\n", [3]),
        ("label,im_name\n1,3.png\n1,\n1,1.png\n", [3, 0]),  # a row without a name
        ("5,val/dog/3.png\n5,val/cat/1.png\n", [3, 0]),  # no heading, not the first column
    ],
)
def test_a_list_chooses_in_many_spellings(tmp_path: Path, text: str, expected: list[int]) -> None:
    (tmp_path / "list.csv").write_text(text, encoding="utf-8", newline="")
    assert pick_listed(FILES, tmp_path / "list.csv", Path("/data/set")) == (expected, None)


def test_a_list_with_unknown_and_repeated_paths_is_remarked_on(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("path\nval/cat/9.png\nval/cat/1.png\nval/cat/1.png\nval/cow/1.png\n")
    order, remark = pick_listed(FILES, tmp_path / "list.csv", None)
    assert order == [0]
    assert remark is not None
    assert "2 of the images listed in list.csv are not there: val/cat/9.png, val/cow/1.png" in remark
    assert "1 repeated" in remark


def test_an_ambiguous_file_name_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("path\n2.png\n")
    with pytest.raises(DataError, match="None of the 1 paths"):
        pick_listed(FILES, tmp_path / "list.csv", None)


def test_a_list_that_names_no_picture_names_its_columns(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("wnid,stim\nn01440764,a.JPEG\nn01440764,b.JPEG\n")
    with pytest.raises(DataError, match=r"None of the 2 paths in .*columns are wnid, stim.*like 'val/cat/1.png'"):
        pick_listed(FILES, tmp_path / "list.csv", None)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"path\n", b"\xff\xfe\x00\x01"])
def test_lists_without_paths_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "list.csv").write_bytes(content)
    with pytest.raises(DataError, match=r"list\.csv"):
        pick_listed(FILES, tmp_path / "list.csv", None)
    with pytest.raises(DataError, match="cannot be read"):
        pick_listed(FILES, tmp_path / "missing.csv", None)
