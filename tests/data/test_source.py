from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vitscope.data.source import Source, as_source
from vitscope.errors import DataError

ARRAYS = np.zeros((3, 4, 4), np.uint8)


def test_a_pair_is_enough() -> None:
    source = as_source((ARRAYS, [0, 2, -1]), "mine")
    assert source.labels == [0, 2, -1]
    assert source.classes == ["0", "1", "2"]
    assert source.names == ["mine[0]", "mine[1]", "mine[2]"]


def test_files_are_named_relative_to_the_root() -> None:
    files = [Path("/data/a/1.png"), "/data/b/2.png", "/elsewhere/3.png"]
    assert as_source(Source(files, root=Path("/data")), "mine").names == ["a/1.png", "b/2.png", "/elsewhere/3.png"]


@pytest.mark.parametrize("labels", [np.array([0, 1, 1]), np.array([0, 1, 1], np.uint8), (0, 1, 1)])
def test_labels_may_be_any_sequence_of_whole_numbers(labels: object) -> None:
    found = as_source((ARRAYS, labels), "mine").labels
    assert found == [0, 1, 1]
    assert found is not None
    assert all(type(label) is int for label in found)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "returned NoneType: expected"),
        (ARRAYS, "returned ndarray: expected"),
        ((ARRAYS, [0, 1]), "3 images, but labels of shape"),
        ((ARRAYS, [0.5, 1.0, 2.0]), "whole number"),
        ((ARRAYS, ["a", "b", "c"]), "whole number"),
        ((ARRAYS, [0, 1, 2], ["a", "b"]), r"labels 0\.\.2, but 2 class names"),
        ((ARRAYS, [0, 1, -2], ["a", "b"]), r"labels -2\.\.1"),
        (Source(ARRAYS, [0, 0, 0], masks=[None]), "3 images, but 1 masks"),
        (Source(ARRAYS, [0, 0, 0], names=["a"]), "3 images, but 1 names"),
    ],
)
def test_what_does_not_fit_together_is_refused(returned: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        as_source(returned, "mine")
