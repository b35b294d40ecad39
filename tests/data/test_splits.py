from __future__ import annotations

from collections import Counter

import pytest

from vitscope.data.splits import choose_split, normal_split, seeded_split
from vitscope.errors import DataError


@pytest.mark.parametrize(
    ("name", "normal"),
    [
        ("validation", "val"),
        ("VAL", "val"),
        ("valid", "val"),
        ("training", "train"),
        (" test ", "test"),
        ("ood", "ood"),
    ],
)
def test_names_of_splits_are_normalised(name: str, normal: str) -> None:
    assert normal_split(name) == normal


@pytest.mark.parametrize(
    ("asked", "available", "expected"),
    [
        (None, ["train", "val", "test"], "val"),
        (None, ["train", "test"], "test"),
        (None, ["train"], "train"),
        (None, ["ood"], "ood"),
        ("validation", ["train", "val"], "val"),
        ("val", ["train", "test"], "test"),  # the only held-out part has two names
        ("test", ["train", "val"], "val"),
        ("test", ["train", "val", "test"], "test"),
    ],
)
def test_the_split_that_is_meant(asked: str | None, available: list[str], expected: str) -> None:
    assert choose_split(asked, available, "data") == expected


@pytest.mark.parametrize("asked", ["train", "trian", "all"])
def test_a_missing_split_is_an_error_that_lists_those_there_are(asked: str) -> None:
    with pytest.raises(DataError, match=r"data has no split '.*It has: val, test"):
        choose_split(asked, ["val", "test"], "data")


def test_the_made_split_is_complete_disjoint_and_balanced() -> None:
    labels = [i % 10 for i in range(500)]
    names = [f"x[{i}]" for i in range(500)]
    (name, train), (other, test) = seeded_split("train", names, labels), seeded_split("val", names, labels)
    assert (name, other) == ("train", "test")
    assert sorted(train + test) == list(range(500))
    assert set(Counter(labels[i] for i in test).values()) == {10}
    assert set(Counter(labels[i] for i in train).values()) == {40}
    assert seeded_split("test", names, labels)[1] == test


def test_the_made_split_hardly_changes_when_pictures_are_added() -> None:
    names = [f"{i}.png" for i in range(200)]
    before = {names[i] for i in seeded_split("test", names, [0] * 200)[1]}
    more = [*names, "new.png"]
    after = {more[i] for i in seeded_split("test", more, [0] * 201)[1]}
    assert len(before ^ after) <= 2


def test_one_picture_cannot_be_split() -> None:
    with pytest.raises(DataError, match="cannot be split"):
        seeded_split("train", ["a"], [0])
