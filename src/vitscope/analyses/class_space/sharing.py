"""One projection for all: class-space analyses of the same batch share each block's readings.

Whoever comes first in a block projects a point; the others find the result in `batch.shared`. It belongs to the very
tensor it was computed from (so that an edited or a second model never finds another's), is replaced block by block
and let go at the end of the batch.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from vitscope.analyses.class_space.projection import Projector, Reading
from vitscope.analyses.class_space.ranks import Ties, check_labels
from vitscope.analyses.class_space.tokens import Selection
from vitscope.data.batch import Batch
from vitscope.statistics.permutation import image_signs


class Readings:
    """The readings of the block that is running and of the residual before it, for the labelled images of a batch."""

    def __init__(self, projector: Projector, selection: Selection, ties: Ties, batch: Batch) -> None:
        check_labels(batch.labels, projector.classes)
        self.projector, self.selection, self.ties = projector, selection, ties
        self.known = batch.labels >= 0  # (B,)
        self.whole = bool(self.known.all())
        self.labels = batch.labels[self.known]
        self.images = batch.indices[self.known]
        masks = batch.token_masks(selection.layout.grid)
        self.masks = masks if masks is None or self.whole else masks[self.known]  # (B, T)
        self.members = self.rows(selection.members(batch))  # (B, G, n)
        self._current: dict[str, tuple[Tensor, Reading]] = {}
        self._block = -1
        self._signs: dict[tuple[int, int], Tensor] = {}
        self._before: Reading | None = None

    def get(self, block: int, points: Mapping[str, Tensor], *names: str) -> list[Reading]:
        """The readings of `blocks.<block>.<name>`, e.g. `hook_attn_out`; those that are missing are made together."""
        self._enter(block)
        given = {name: points[f"blocks.{block}.{name}"] for name in names}
        missing = [name for name, x in given.items() if name not in self._current or self._current[name][0] is not x]
        if missing:
            made = self.projector.read_all(
                [self.rows(given[name])[:, self.selection.where] for name in missing],
                self.labels,
                first_token=self.selection.first,
                ties=self.ties,
                where=[f"blocks.{block}.{name}" for name in missing],
            )
            for name, reading in zip(missing, made):
                self._current[name] = (given[name], Reading(reading.rank.cpu(), reading.logit.cpu(), reading.top.cpu()))
        return [self._current[name][1] for name in names]

    def before(self, block: int, points: Mapping[str, Tensor]) -> Reading:
        """The residual that enters the block: the previous block's output, or the embedding."""
        if block == 0:
            return self.get(0, points, "hook_resid_pre")[0]
        self._enter(block)
        assert self._before is not None, "resid_post of the previous block was not read"
        return self._before

    def _enter(self, block: int) -> None:
        """Let go of the block before, except for what its output said."""
        if block != self._block:
            last = self._current.get("hook_resid_post")
            self._before = last[1] if last is not None and block == self._block + 1 else None
            self._current, self._block = {}, block

    def signs(self, permutations: int, seed: int) -> Tensor:
        """The random signs of this batch's images, drawn once for all blocks and points."""
        if (permutations, seed) not in self._signs:
            self._signs[permutations, seed] = image_signs(self.images.tolist(), permutations, seed)
        return self._signs[permutations, seed]

    def rows(self, x: Tensor) -> Tensor:
        """The labelled images of a batch-first tensor."""
        return x if self.whole else x[self.known.to(x.device)]


def shared_readings(projector: Projector, selection: Selection, ties: Ties, batch: Batch) -> Readings:
    """The batch's readings for these options, made on first use."""
    key = ("class space", projector.key, selection, ties)
    if key not in batch.shared:
        batch.shared[key] = Readings(projector, selection, ties, batch)
    return batch.shared[key]
