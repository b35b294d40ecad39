"""The class-space lens on single images: what does each token say, block by block?

Tables: `class_space_topk`, the k top classes of every token of every block, and `maps_class_space`, which the report
draws over the image: identifiability and logit of the true class for every image token and block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from vitscope.analyses.base import register_analysis
from vitscope.analyses.class_space.analysis import ClassSpaceAnalysis
from vitscope.analyses.class_space.projection import Heads
from vitscope.analyses.class_space.ranks import identifiability, ties_of, true_rank
from vitscope.analyses.class_space.sharing import Readings
from vitscope.analyses.class_space.tokens import Tokens
from vitscope.errors import VitscopeError

if TYPE_CHECKING:
    import pandas as pd

    from vitscope.data.batch import Batch
    from vitscope.models import Model
    from vitscope.models.layout import Layout


def token_places(layout: Layout) -> list[tuple[str, int, int]]:
    """(kind, row, column) of every token; tokens without a place in the picture have -1."""
    kinds = ["class", "distillation"][: layout.class_tokens] + ["register"] * layout.register_tokens
    prefix = [(kind, -1, -1) for kind in kinds]
    return [*prefix, *(("image", row, column) for row in range(layout.grid[0]) for column in range(layout.grid[1]))]


@register_analysis("class_space.lens")
class Lens(ClassSpaceAnalysis):
    """Top classes of every token and block, and maps over the image, for a few images.

    topk: classes per token. images: numbers of the images to look at; otherwise those of the report's gallery.
    """

    def __init__(
        self,
        tokens: Tokens = "all",
        head: Heads = "own",
        variant: str = "exact",
        control: str | None = None,
        topk: int = 3,
        images: Sequence[int] | None = None,
    ) -> None:
        super().__init__(tokens, head, variant, control)
        if topk < 1:
            raise VitscopeError(f"topk={topk}: at least one class per token.")
        self.topk = topk
        self.images = list(images) if images is not None else None

    def needs(self, model: Model) -> list[str]:
        return ["blocks.*.hook_resid_post"]

    def start_sums(self, model: Model) -> None:
        self.names = model.classes
        self.places = token_places(model.layout)[self.selection.where]

    def update(self, block: int, points: Mapping[str, Tensor], batch: Batch) -> None:
        chosen = self.setting.gallery if self.images is None else frozenset(self.images)
        shown = [i for i, image in enumerate(batch.indices.tolist()) if image in chosen]
        if not shown:
            return
        (x,) = points.values()
        logits = self.projector.logits(x[shown][:, self.selection.where], self.selection.first)  # (B, n, K)
        self._emit_topk(block, logits, batch.indices[shown].tolist())
        self._emit_maps(block, logits, batch.indices[shown], batch.labels[shown])

    def read(self, block: int, points: Mapping[str, Tensor], readings: Readings, batch: Batch) -> None:
        pass  # single images need no sums

    def _emit_topk(self, block: int, logits: Tensor, images: Sequence[int]) -> None:
        import pandas as pd

        top = logits.topk(min(self.topk, logits.shape[-1]), dim=-1)
        b, n, k = top.indices.shape
        image, token, place = np.meshgrid(np.arange(b), np.arange(n), np.arange(k), indexing="ij")
        classes = top.indices.flatten().tolist()
        where = [self.places[t] for t in token.ravel()]
        columns = {
            "image": np.asarray(images)[image.ravel()],
            "block": block,
            "token": token.ravel() + self.selection.first,
            "kind": [kind for kind, _, _ in where],
            "row": [row for _, row, _ in where],
            "col": [column for _, _, column in where],
            "place": place.ravel() + 1,
            "class": classes,
            "class_name": [self._name(c) for c in classes],
            "logit": top.values.flatten().cpu().double().numpy(),
        }
        self.emit("class_space_topk", pd.DataFrame(columns))

    def _name(self, number: int) -> str:
        names = self.names or (self.setting.classes if len(self.setting.classes) == self.projector.classes else ())
        return str(names[number]) if names else str(number)

    def _emit_maps(self, block: int, logits: Tensor, images: Tensor, labels: Tensor) -> None:
        import pandas as pd

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
        rows, columns = self.layout.grid
        image, row, column = torch.meshgrid(
            images[known], torch.arange(rows), torch.arange(columns), indexing="ij"
        )  # (B, h, w)
        place = {"image": image.flatten().numpy()}
        for name, value in maps.items():
            cells = {"block": block, "row": row.flatten().numpy(), "col": column.flatten().numpy()}
            numbers = value.flatten().cpu().double().numpy()
            self.emit("maps_class_space", pd.DataFrame({**place, "map": name, **cells, "value": numbers}))

    def own_tables(self) -> dict[str, pd.DataFrame]:
        return {}  # all of it is per image
