"""What flows from the data to the model and the analyses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from vitscope.errors import UnsuitableDataError

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

CONTEXT = 0
"""What a mask says of a pixel beside the object."""
OBJECT = 1
"""What a mask says of a pixel of the object."""
IGNORED = 255
"""What a mask says of a pixel that counts for neither."""


@dataclass
class Item:
    """One picture as it lies on disk."""

    image: Image.Image
    label: int  # -1 where unknown
    index: int  # its number in the chosen data: stable, unique, 0-based
    path: str  # file, or 'mnist5k[17]'
    mask: Image.Image | None = None  # mode 'L', same size as the image: CONTEXT, OBJECT or IGNORED per pixel
    target: Any = None  # a label map, (H, W) int64, where every pixel has a class; -1: ignored


@dataclass(frozen=True)
class Skipped:
    """A picture that could not be read."""

    index: int
    path: str
    reason: str


def _also(name: str, doc: str) -> Any:
    """Another name for a field."""
    return property(attrgetter(name), lambda self, value: setattr(self, name, value), doc=doc)


@dataclass
class Batch:
    """What a model is called with, what its answers are compared with, and whose they are.

    `outputs` is filled by the engine after the forward pass. Pictures with one class each call things by their own
    names: `images`, `labels`, `logits`, `paths`.
    """

    # pictures (B, C, H, W), normalised float32; numbers of tokens; or several tensors by name
    inputs: Tensor | Mapping[str, Tensor]
    targets: Tensor  # what the task compares with: classes (B,) int64, -1 where unknown; label maps; next tokens
    indices: Tensor  # (B,) int64, Item.index
    names: list[str]
    masks: Tensor | None = None  # (B, H, W) uint8, follows resize and crop of the image
    mask_rule: str = "centre"  # which pixel of a mask speaks for a token: 'centre' or 'corner' of its patch
    outputs: Tensor | None = None  # (B, num_classes), or one row per token
    number: int = 0  # of this batch in the whole, split-independent order
    skipped: list[Skipped] = field(default_factory=list)
    shortened: int = 0  # how many of its items were cut because the model takes no longer ones
    valid: Tensor | None = None  # (B, N) bool: which tokens are real and not padding; None where all are
    shared: dict[Any, Any] = field(default_factory=dict, repr=False)  # what analyses share while it passes through

    @property
    def images(self) -> Tensor:
        """The inputs, where they are one tensor."""
        if not isinstance(self.inputs, Mapping):
            return self.inputs
        raise UnsuitableDataError(f"These are no pictures: the model takes {', '.join(self.inputs)}.")

    labels = _also("targets", "The targets, where they are classes.")
    paths = _also("names", "The names, where they are files.")
    logits = _also("outputs", "The outputs, where they are one number per class.")

    def token_masks(self, grid: tuple[int, int]) -> Tensor | None:
        """Masks per pixel (B, H, W) -> per image token (B, T): the value of the pixel that speaks for its patch."""
        if self.masks is None:
            return None
        from vitscope.data.masks import to_tokens_nearest

        return to_tokens_nearest(self.masks, grid, self.mask_rule)

    def parts(self, grid: tuple[int, int]) -> dict[str, Tensor]:
        """What masks say of the image tokens: object and context, (B, T) bool. Empty without masks."""
        masks = self.token_masks(grid)
        return {} if masks is None else {"object": masks == OBJECT, "context": masks == CONTEXT}

    def rows(self, where: Tensor) -> Batch:
        """Some of its items, by their places in it (K,) int64."""

        def some(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {name: some(part) for name, part in value.items()}
            return None if value is None else value[where]

        return replace(
            self,
            inputs=some(self.inputs),
            targets=self.targets[where],
            indices=self.indices[where],
            names=[self.names[i] for i in where.tolist()],
            **{name: some(getattr(self, name)) for name in ("masks", "outputs", "valid")},
        )

    def __len__(self) -> int:
        return len(self.names)
