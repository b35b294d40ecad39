"""Every batch belongs to one process, whole shards to one where that is fair."""

from __future__ import annotations

from itertools import product

import pytest

from vitscope.data.dealing import dealt_batches, dealt_images


@pytest.mark.parametrize("shards", [(), (0,), (0, 50, 100, 150), (0, 1, 2, 199), (0, 77)])
def test_every_picture_is_counted_once(shards: tuple[int, ...]) -> None:
    for world, size in product((1, 2, 3, 5), (1, 7, 64, 500)):
        mine = [dealt_batches(201, size, rank, world, shards) for rank in range(world)]
        assert sorted(b for batches in mine for b in batches) == list(range(-(-201 // size)))
        assert sum(dealt_images(201, size, rank, world, shards) for rank in range(world)) == 201


def test_without_shards_processes_take_turns() -> None:
    assert [list(dealt_batches(50, 10, rank, 2)) for rank in (0, 1)] == [[0, 2, 4], [1, 3]]


def test_shards_stay_whole_and_a_batch_belongs_to_the_shard_in_which_it_begins() -> None:
    shards = (0, 25, 50, 75)
    assert [dealt_batches(100, 10, rank, 2, shards) for rank in (0, 1)] == [range(5), range(5, 10)]
    assert [dealt_batches(100, 10, rank, 4, shards) for rank in range(4)] == [
        range(3),
        range(3, 5),
        range(5, 8),
        range(8, 10),
    ]


@pytest.mark.parametrize("shards", [(0,), (0, 90), (0, 2, 4, 6)])
def test_nobody_waits_for_the_owner_of_a_large_shard(shards: tuple[int, ...]) -> None:
    assert [dealt_batches(100, 10, rank, 2, shards) for rank in (0, 1)] == [range(0, 10, 2), range(1, 10, 2)]
