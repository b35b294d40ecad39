"""A condition: one set of pictures and what is done to them, e.g. ImageNet-R, or the clean pictures under fog 3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitscope.data import ImageData

CLEAN, CORRUPTED = "clean", "corrupted"  # the names of the two sets that are no published ones


@dataclass(frozen=True, eq=False)
class Condition:
    """Pictures of one kind. Everything that is measured is measured per condition."""

    set: str  # 'clean', 'corrupted' (on the fly), or the letter of a published set
    data: ImageData
    corruption: str = ""  # '' where there is none
    severity: int = 0  # 1 to 5; 0 without a corruption
    classes: tuple[int, ...] = ()  # the set's own classes among the head's; empty: all of them
    cropped: bool = False  # distributed at the input size: resized where it does not fit, not cropped a second time
    labelled: bool = True  # False: pictures of classes that the head does not have

    @property
    def key(self) -> str:
        """'clean', 'R', 'C/fog/3'"""
        return f"{self.set}/{self.corruption}/{self.severity}" if self.corruption else self.set

    @property
    def on_the_fly(self) -> bool:
        return self.set == CORRUPTED

    def __repr__(self) -> str:
        return f"Condition({self.key}: {len(self.data):,} images)"
