"""Which tokens are counted together: class, distillation, register, image; under a mask also object and context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from vitscope.data.batch import CONTEXT, OBJECT
from vitscope.errors import UnsupportedModelError, VitscopeError

if TYPE_CHECKING:
    from vitscope.architectures.layout import Layout
    from vitscope.data.batch import Batch

Tokens = Literal["all", "class", "image"]
KINDS = ("class", "distillation", "register", "image")
MASKED = ("object", "context")  # parts of `image`, where a mask says which


@dataclass(frozen=True)
class Selection:
    """The tokens that are looked at, a stretch of all tokens, and the kinds among them."""

    layout: Layout
    tokens: Tokens = "all"

    def __post_init__(self) -> None:
        if self.tokens not in ("all", "class", "image"):
            raise VitscopeError(f"tokens={self.tokens!r} is not known: expected 'all', 'class' or 'image'.")
        if self.tokens == "class" and self.layout.class_tokens == 0:
            raise UnsupportedModelError(
                "This model has no class token (it pools its image tokens): use tokens='image'."
            )

    @property
    def where(self) -> slice:
        c, p, n = self.layout.class_tokens, self.layout.prefix_tokens, self.layout.tokens
        return {"all": slice(0, n), "class": slice(0, c), "image": slice(p, n)}[self.tokens]

    @property
    def first(self) -> int:
        return int(self.where.start)

    def __len__(self) -> int:
        return int(self.where.stop - self.where.start)

    def kind_slices(self) -> dict[str, slice]:
        """Kinds that are there, in the coordinates of the selected tokens."""
        c, p, n = self.layout.class_tokens, self.layout.prefix_tokens, self.layout.tokens
        spans = {"class": (0, min(c, 1)), "distillation": (min(c, 1), c), "register": (c, p), "image": (p, n)}
        start, stop = self.where.start, self.where.stop
        inside = {kind: (max(a, start) - start, min(b, stop) - start) for kind, (a, b) in spans.items()}
        return {kind: slice(a, b) for kind, (a, b) in inside.items() if b > a}

    def groups(self) -> list[str]:
        """Names of the groups whose sums are kept; object and context are part of image, and empty without masks."""
        kinds = list(self.kind_slices())
        return [*kinds, *MASKED] if "image" in kinds else kinds

    def members(self, images: int, masks: Tensor | None) -> Tensor:
        """(B, G, n) float64 zeros and ones: which tokens belong to which group. `masks`: (B, T) values per token."""
        kinds, groups = self.kind_slices(), self.groups()
        members = torch.zeros(images, len(groups), len(self), dtype=torch.float64)
        for g, group in enumerate(groups):
            if group in kinds:
                members[:, g, kinds[group]] = 1
            elif masks is not None:
                members[:, g, kinds["image"]] = (masks == (OBJECT if group == "object" else CONTEXT)).double()
        return members


def token_masks(batch: Batch, grid: tuple[int, int]) -> Tensor | None:
    """Masks per pixel (B, H, W) -> per image token (B, T): the value at each patch's centre, or by the data's rule."""
    if batch.masks is None:
        return None
    from vitscope.data.masks import to_tokens_nearest

    return to_tokens_nearest(batch.masks, grid, batch.mask_rule)
