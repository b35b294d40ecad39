"""Data in memory that are no pictures."""

from __future__ import annotations

import pytest
import torch

from vitscope.data import Tensors
from vitscope.data.own import check_whole, choose
from vitscope.data.selection import Choice
from vitscope.errors import DataError


def walks(n: int = 10) -> Tensors:
    return Tensors("walks", "test", torch.arange(2 * n).view(n, 2), torch.arange(n) % 2, classes=["down", "up"])


def test_batches_have_the_same_boundaries_in_every_process_and_after_every_start():
    data = walks()
    whole = {b.number: b for b in data.batches(None, 4)}
    assert [len(b) for b in whole.values()] == [4, 4, 2]
    parts = [*data.batches(None, 4, rank=0, world=2), *data.batches(None, 4, rank=1, world=2)]
    assert sorted(b.number for b in parts) == [0, 1, 2]
    assert all(torch.equal(b.inputs, whole[b.number].inputs) for b in parts)
    assert [b.number for b in data.batches(None, 4, start=1)] == [1, 2]
    assert whole[2].names == ["walks[8]", "walks[9]"]


def test_several_tensors_go_by_name_and_are_cut_together():
    data = Tensors("pairs", "test", {"a": torch.arange(4), "b": -torch.arange(4)}, torch.zeros(4))
    (batch,) = data.subset([3, 1]).batches(None)
    assert {name: part.tolist() for name, part in batch.inputs.items()} == {"a": [3, 1], "b": [-3, -1]}
    assert (data.labels, data.classes) == ([-1] * 4, [])  # numbers are no classes


def test_the_fingerprint_is_that_of_the_values():
    first, again, other = walks(), walks(), walks()
    other.targets = 1 - other.targets
    assert first.describe() == again.describe()
    assert first.describe()["fingerprint"] != other.describe()["fingerprint"]


def test_labels_follow_the_names_of_classes_and_the_unknown_stays_so():
    data = Tensors("walks", "test", torch.zeros(3, 2), torch.tensor([0, 1, -1]), classes=["down", "up"])
    assert data.ordered_as(["up", "down"]).labels == [1, 0, -1]


def test_tensors_of_other_lengths_are_refused():
    with pytest.raises(DataError, match=r"\[3, 4\] items"):
        Tensors("walks", "test", torch.zeros(3, 2), torch.zeros(4))


def test_data_that_lack_something_are_told_all_of_it():
    class Half:
        name, labels = "half", [0, 1]

        def batches(self):
            yield

        def describe(self):
            return {}

    check_whole(walks())
    with pytest.raises(DataError, match="Half have no split, classes, class_ids, num_classes, warnings") as error:
        choose(Half(), Choice(), source="", root=None)
    assert "__len__, check_head, subset:" in str(error.value)
