"""Which tokens are counted together: class, distillation, register, image; under a mask also object and context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vitscope.architectures.layout import Layout
from vitscope.data.batch import Batch
from vitscope.errors import UnsupportedModelError, VitscopeError

Tokens = Literal["all", "class", "image"]
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
        layout = self.layout
        return {"all": slice(0, layout.tokens), "class": slice(0, layout.class_tokens), "image": layout.image}[
            self.tokens
        ]

    @property
    def first(self) -> int:
        return int(self.where.start)

    def __len__(self) -> int:
        return int(self.where.stop - self.where.start)

    def kind_slices(self) -> dict[str, slice]:
        """Kinds that are there, in the coordinates of the selected tokens."""
        start, stop = self.where.start, self.where.stop
        inside = {k: (max(s.start, start) - start, min(s.stop, stop) - start) for k, s in self.layout.spans.items()}
        return {kind: slice(a, b) for kind, (a, b) in inside.items() if b > a}

    def groups(self) -> list[str]:
        """Names of the groups whose sums are kept; object and context are part of image, and empty without masks."""
        kinds = list(self.kind_slices())
        return [*kinds, *MASKED] if "image" in kinds else kinds

    def members(self, batch: Batch) -> Tensor:
        """(B, G, n) float64 zeros and ones: which tokens belong to which group."""
        groups = self.layout.groups(batch)
        none = torch.zeros(len(batch), self.layout.tokens, dtype=torch.bool)
        return torch.stack([groups.get(name, none)[:, self.where] for name in self.groups()], 1).double()
