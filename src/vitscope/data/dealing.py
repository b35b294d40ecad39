"""Which process looks at which batch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypedDict

from vitscope.errors import DataError


class Turn(TypedDict, total=False):
    """Which batches are wanted, and who reads them: what every `batches` takes."""

    rank: int  # of this process, 0 if it is alone
    world: int  # processes that share the batches, 1 unless more are named
    start: int  # the first batch; 0: all of them
    workers: int  # processes that read ahead; 0: this one reads
    context: str | None  # how these are started: 'fork', 'spawn', ...; None: the platform's habit


_UNEVEN = 1.5  # a process with so many times its even share is a reason to cut shards apart


def place_of(i: int, n: int, what: str) -> int:
    """The number of item `i` among `n`, of which negative ones are counted from the end."""
    if not -n <= i < n:
        raise IndexError(f"{what} {i} of {n}")
    return i % n


def check_numbers(indices: Sequence[int], n: int, what: str) -> None:
    """Raise at the number of an item that is not there, among `n` of them."""
    wrong = [i for i in indices if not 0 <= i < n]
    if wrong:
        raise DataError(f"There is no {what} {wrong[0]}: this data has {n:,} (0..{n - 1}).")


def batch_size_of(data: Any, asked: int) -> int:
    """How many items of these data go together: fewer than asked for where they differ in size."""
    return min(asked, getattr(data, "most_together", asked))


def dealt_batches(n: int, batch_size: int, rank: int, world: int, shards: Sequence[int] = ()) -> range:
    """The numbers of the batches of process `rank`; batch b holds pictures `b * batch_size` and following.

    The processes take turns: batch b belongs to rank b % world. Where pictures lie in shards (`shards`: the number of
    the first picture of each), each process gets whole shards instead, one after the other, so that it reads its
    own files from their beginning to their end; a batch belongs to the shard in which it begins. Boundaries
    of batches are the same in both cases, and every picture is in one batch of one process. Where there are too few
    shards, or too uneven ones, for a fair share of the work, the processes take turns after all.
    """
    total = -(-n // batch_size)
    turns = range(rank, total, world)
    if world == 1 or len(shards) < world:
        return turns
    begins = [-(-first // batch_size) for first in shards]  # the first batch that begins in each shard
    cuts = [min(begins, key=lambda b: abs(b - r * total / world)) for r in range(world)] + [total]
    largest = max(after - before for before, after in pairwise(cuts))
    return range(cuts[rank], cuts[rank + 1]) if largest < _UNEVEN * total / world else turns


def dealt_images(n: int, batch_size: int, rank: int, world: int, shards: Sequence[int] = ()) -> int:
    """How many pictures fall to process `rank`."""
    return sum(min(batch_size, n - b * batch_size) for b in dealt_batches(n, batch_size, rank, world, shards))
