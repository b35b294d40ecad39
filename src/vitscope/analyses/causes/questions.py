"""Which logit is split, and for which items: the question of an attribution, and its random counterpart."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitscope.analyses.causes.question_words import BEST, NONE
from vitscope.analyses.class_space.targets import find_class
from vitscope.data.batch import Batch
from vitscope.errors import VitscopeError
from vitscope.models import Model


@dataclass(frozen=True)
class Question:
    """The logit of `target`, or its difference to that of `minus`; a number where it is one class for all."""

    target: int | str  # 'label', 'prediction' or a class
    minus: int | str  # 'none', 'best' or a class

    @classmethod
    def asked(cls, target: int | str, minus: int | str, model: Model, names: tuple[str, ...]) -> Question:
        """The classes that are meant by numbers or names."""
        known = (model.num_classes, model.classes, names)
        found = find_class(target, *known)
        other = None if minus in (NONE, BEST) else find_class(minus, *known, option="minus")
        if minus in ("label", "prediction"):
            raise VitscopeError(
                f"minus={minus!r}: expected none, best (the best other class), a class's number or name."
            )
        if found is not None and found == other:
            raise VitscopeError(f"target={target} minus={minus} is one class twice: their difference is 0.")
        return cls(target if found is None else found, minus if other is None else other)

    @property
    def foreseen(self) -> bool:
        """Are the classes known before the forward pass?"""
        return self.target != "prediction" and self.minus != BEST

    def classes(self, labels: Tensor, logits: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Of items with labels (n,) and logits (n, K), which may be None where all is foreseen: (n,), (n,) or None."""
        if self.target == "label":
            target = labels
        elif self.target == "prediction":
            assert logits is not None
            target = logits.argmax(-1)
        else:
            target = torch.full_like(labels, int(self.target))
        if self.minus == NONE:
            return target, None
        if self.minus == BEST:
            assert logits is not None
            return target, logits.scatter(-1, target[:, None], -torch.inf).argmax(-1)
        return target, torch.full_like(labels, int(self.minus))


def random_others(than: Tensor, places: Tensor, images: Tensor, classes: int, seed: int, draw: int = 0) -> Tensor:
    """A class for each item (n,), drawn evenly from all but that in `than` (n,).

    It is a function of (seed, draw, image, place of the item in it), whatever the company of an item is.
    """
    found = torch.empty_like(than)
    for image in images.unique().tolist():
        inside = images == image
        start = (seed * 1_000_003 + image * 2_654_435_761 + 7919 * draw) % 2**63
        generator = torch.Generator().manual_seed(start)
        numbers = torch.randint(0, classes - 1, (int(places[inside].max()) + 1,), generator=generator)[places[inside]]
        found[inside] = numbers + (numbers >= than[inside])
    return found


def items_of(batch: Batch, each: bool, last: bool) -> tuple[Tensor, Tensor, Tensor]:
    """What is asked about in a batch: places among its images (n,), places among their tokens (n,), labels (n,).

    each: every token of a text has a target of its own; `last`: only the last one that has counts.
    """
    if not each:
        inside = (batch.targets >= 0).nonzero()[:, 0]
        return inside, torch.zeros_like(inside), batch.targets[inside]
    asked = batch.targets >= 0  # (B, N)
    if last:
        behind = asked.flip(1).cumsum(1).flip(1)  # targets from here on
        asked = asked & (behind == 1)
    image, token = asked.nonzero().unbind(1)
    return image, token, batch.targets[image, token]
