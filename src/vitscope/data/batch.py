"""What flows from the data to the model and the analyses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

CONTEXT, OBJECT, IGNORED = 0, 1, 255  # values of a mask


@dataclass
class Item:
    """One picture as it lies on disk."""

    image: Image.Image
    label: int  # -1 where unknown
    index: int  # its number in the chosen data: stable, unique, 0-based
    path: str  # file, or 'mnist5k[17]'
    mask: Image.Image | None = None  # mode 'L', same size as the image: CONTEXT, OBJECT or IGNORED per pixel


@dataclass(frozen=True)
class Skipped:
    """A picture that could not be read."""

    index: int
    path: str
    reason: str


@dataclass
class Batch:
    """A batch after preprocessing. `logits` is filled by the engine after the forward pass."""

    inputs: Tensor  # what the model is called with: pictures (B, C, H, W), normalised float32, or numbers of tokens
    labels: Tensor  # (B,) int64, -1 where unknown
    indices: Tensor  # (B,) int64, Item.index
    paths: list[str]
    masks: Tensor | None = None  # (B, H, W) uint8, follows resize and crop of the image
    mask_rule: str = "centre"  # which pixel of a mask speaks for a token: 'centre' or 'corner' of its patch
    logits: Tensor | None = None  # (B, num_classes)
    number: int = 0  # of this batch in the whole, split-independent order
    skipped: list[Skipped] = field(default_factory=list)
    shared: dict[Any, Any] = field(default_factory=dict, repr=False)  # what analyses share while it passes through

    @property
    def images(self) -> Tensor:
        """The inputs, where they are pictures."""
        return self.inputs

    def __len__(self) -> int:
        return len(self.paths)
