"""The class-space lens on single images: what does each token say, block by block?

Tables: `class_space_topk`, the k top classes of every token of every block, and `maps_class_space`, which the report
draws over the image: identifiability and logit of the true class for every image token and block. With
`control="random"` both have further columns: what the same tokens of a model with random weights say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from vitscope.analyses.base import register_analysis
from vitscope.analyses.class_space.analysis import ClassSpaceAnalysis
from vitscope.analyses.class_space.positions import position_kind
from vitscope.analyses.class_space.projection import largest
from vitscope.analyses.class_space.ranks import check_labels, identifiability, ties_of, true_rank
from vitscope.analyses.control import SUFFIX
from vitscope.analyses.gallery import gallery_rows, save_thumbnails
from vitscope.data import Data
from vitscope.data.batch import Batch
from vitscope.errors import DataError, VitscopeError
from vitscope.models import Model

SAID = {"class_space_topk": ("class", "class_name", "logit"), "maps_class_space": ("value",)}  # what a model says


@register_analysis("class_space.lens")
class Lens(ClassSpaceAnalysis):
    """Top classes of every token and block, and maps over the image, for a few images.

    topk: classes per token. images: numbers of the images to look at, which the report's gallery then shows, too;
    otherwise those of the gallery.
    """

    def __init__(self, *, topk: int = 3, images: Sequence[int] | None = None, **common: Any) -> None:
        super().__init__(**common)
        if topk < 1:
            raise VitscopeError(f"topk={topk}: at least one class per token.")
        self.topk = topk
        self.images = list(images) if images is not None else None

    def needs(self, model: Model) -> list[str]:
        return ["blocks.*.hook_resid_post"]

    def check_data(self, data: Data) -> None:
        wrong = [image for image in self.images or () if not 0 <= image < len(data)]
        if wrong:
            raise DataError(
                f"class_space.lens.images: there is no image {wrong[0]}. {data.name} has {len(data):,} images, "
                f"numbered from 0 to {len(data) - 1}."
            )

    def start_sums(self, model: Model) -> None:
        self.model = model
        self.names = model.classes
        positions = range(model.layout.tokens)[self.selection.where]
        self.places = [position_kind(position, model.layout) for position in positions]  # (kind, row, column)
        self._found: dict[str, list[dict[str, Any]]] = {}

    @property
    def shown(self) -> frozenset[int]:
        return self.setting.gallery if self.images is None else frozenset(self.images)

    def update(self, block: int, points: Mapping[str, Tensor], batch: Batch) -> None:
        check_labels(batch.labels, self.projector.classes)
        shown = [i for i, image in enumerate(batch.indices.tolist()) if image in self.shown]
        if not shown:
            return
        (x,) = points.values()
        logits = self.projector.logits(x[shown][:, self.selection.where], self.selection.first)  # (B, n, K)
        self._note_topk(block, logits, batch.indices[shown].tolist())
        self._note_maps(block, logits, batch.indices[shown], batch.labels[shown])

    def concerns(self, batch: Batch) -> bool:
        return not self.shown.isdisjoint(batch.indices.tolist())

    def end_batch(self, batch: Batch) -> None:
        super().end_batch(batch)
        if self.setting.control:
            return  # what it found is taken by the lens of the model itself
        twin = dict(self.twin._tables()) if isinstance(self.twin, Lens) else {}
        for name, columns in self._tables():
            said = {column + SUFFIX: twin[name][column] for column in SAID[name]} if name in twin else {}
            self.emit(name, pd.DataFrame(columns | said))
        self._show(batch)

    def _tables(self) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        """The columns found in this batch, all blocks together: a frame takes longer to make than its numbers."""
        for table, blocks in self._found.items():
            yield table, {name: np.concatenate([b[name] for b in blocks]) for name in blocks[0]}
        self._found = {}

    def _show(self, batch: Batch) -> None:
        """Images that were chosen by number join the gallery of the run, which has a picture of its own ones only."""
        more = self.shown - self.setting.gallery
        rows = gallery_rows(batch, more, self.setting.classes, self.projector.classes)
        if rows is not None and self.setting.folder is not None:
            save_thumbnails(self.setting.folder / "images", batch, more, self.model.preprocess)
            self.emit("images", rows)

    def _note(self, table: str, images: np.ndarray, **columns: Any) -> None:
        """Columns of one block; those of all blocks are emitted together."""
        rows = {name: np.broadcast_to(np.asarray(value), images.shape) for name, value in columns.items()}
        self._found.setdefault(table, []).append({"image": images, **rows})

    def _note_topk(self, block: int, logits: Tensor, images: Sequence[int]) -> None:
        top = largest(logits, self.topk)
        b, n, k = top.shape
        image, token, place = np.meshgrid(np.arange(b), np.arange(n), np.arange(k), indexing="ij")
        classes = top.flatten().tolist()
        where = [self.places[t] for t in token.ravel()]
        columns = {
            "block": block,
            "token": token.ravel() + self.selection.first,
            "kind": [kind for kind, _, _ in where],
            "row": [row for _, row, _ in where],
            "col": [column for _, _, column in where],
            "place": place.ravel() + 1,
            "class": classes,
            "class_name": [self._name(c) for c in classes],
            "logit": logits.gather(-1, top).flatten().cpu().double().numpy(),
        }
        self._note("class_space_topk", np.asarray(images)[image.ravel()], **columns)

    def _name(self, number: int) -> str:
        names = self.names or (self.setting.classes if len(self.setting.classes) == self.projector.classes else ())
        return str(names[number]) if names else str(number)

    def _note_maps(self, block: int, logits: Tensor, images: Tensor, labels: Tensor) -> None:
        where = self.selection.kind_slices().get("image")
        known = (labels >= 0).nonzero().flatten()
        if where is None or not len(known):
            return
        values, truth = logits[known][:, where], labels[known].to(logits.device)  # (B, T, K)
        spread = truth[:, None].expand(values.shape[:2])
        rank = true_rank(values, spread, ties_of(self.variant), f"blocks.{block}.hook_resid_post")
        maps = {
            "identifiability of the class": identifiability(rank, logits.shape[-1]),
            "logit of the class": values.gather(-1, spread[..., None])[..., 0],
        }
        place, row, column = np.indices((len(known), *self.layout.grid)).reshape(3, -1)
        image, cells = images[known].numpy()[place], {"block": block, "row": row, "col": column}
        for name, value in maps.items():
            numbers = value.flatten().cpu().double().numpy()
            self._note("maps_class_space", image, map=name, **cells, value=numbers)

    def tables(self) -> dict[str, pd.DataFrame]:
        return {}  # all of it is per image
