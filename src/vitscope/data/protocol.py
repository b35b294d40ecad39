"""What the engine asks of data, whatever they are: pictures behind `load_data`, or a class of one's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from vitscope.data.batch import Batch


class Data(Protocol):
    """Items with labels in a fixed order, handed out in numbered batches. `ImageData` is one; `analyze` takes any.

    `preprocess` is the model's; whoever brings no pictures leaves it alone. Batch b holds the same items in every
    process and after every resume, and process `rank` of `world` gets those with b % world == rank from `start` on.
    """

    task: Any  # what its targets are for: a name, or a `vitscope.tasks.Task`

    @property
    def name(self) -> str: ...
    @property
    def split(self) -> str: ...
    @property
    def classes(self) -> Sequence[str]: ...  # by label
    @property
    def class_ids(self) -> Sequence[str]: ...  # by label, for machines: WordNet ids, or the same
    @property
    def num_classes(self) -> int: ...
    @property
    def labels(self) -> Sequence[int]: ...  # one per item, -1 where unknown
    @property
    def warnings(self) -> Sequence[str]: ...  # remarks for the run
    @property
    def has_masks(self) -> bool: ...
    @property
    def shards(self) -> Sequence[int]: ...  # items in each file that one process reads best; empty: batches in turn

    def __len__(self) -> int: ...

    def describe(self) -> dict[str, Any]:
        """Plain values for config.yaml, with a fingerprint: a run goes on only with the same."""
        ...

    def check_head(self, num_classes: int, model: str = "the model") -> None:
        """Raise DataError if a head of so many classes cannot be judged by these labels."""
        ...

    def subset(self, indices: Sequence[int]) -> Data:
        """The items with these numbers, in this order, numbered anew: an epoch's order is one."""
        ...

    def ordered_as(self, classes: Sequence[str]) -> Data:
        """The same items with labels that count `classes`, which are the same names in another order."""
        ...

    def batches(
        self, preprocess: Any, batch_size: int = 64, *, rank: int = 0, world: int = 1, start: int = 0, workers: int = 0
    ) -> Iterator[Batch]: ...
