"""What an input is compared with: a version of it, or another input, for which the decision is another one.

A kind of pairs is a class with `@register_pairs("name")` that makes the partners of a batch. Attacks and corruptions
live with the attacks and corruptions (`robustness/pairs.py`), swapped words with the texts.

| pairs | the partner of an image |
|---|---|
| `pgd@1/255` | the image after an attack (any of them, at any budget) |
| `corrupt:fog@3` | the image under a corruption, with its severity |
| `class` | another image, of another class, drawn for each image |
| `mask` | the image with its object painted over in the mean colour; needs masks |
| `swap` | of a text: one word exchanged for another one of it, of as many tokens |
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from vitscope.analyses.base import Setting
from vitscope.analyses.causes.pair_words import PairWords, parse_pairs
from vitscope.data import Data
from vitscope.data.batch import OBJECT, Batch
from vitscope.data.randomness import derive_seed
from vitscope.errors import DataError, UnsuitableDataError, VitscopeError
from vitscope.models import Model
from vitscope.registry import PAIRS
from vitscope.tasks import task_of


@dataclass(frozen=True)
class Partners:
    """The other side of a batch: what the model is called with, of equal shape, and who has a partner at all."""

    inputs: Any
    made: Tensor  # (B,) bool
    groups: Mapping[str, Tensor] = field(default_factory=dict)  # tokens of interest by name, (B, N) bool


class Pairs:
    """Subclass, decorate with `@register_pairs("name")`, and implement `partners`."""

    name: ClassVar[str] = ""
    groups: ClassVar[Sequence[str]] = ()  # names of `Partners.groups`

    def __init__(self, words: PairWords) -> None:
        self.words = words
        if (words.what or words.level) and type(self).plain:
            raise VitscopeError(
                f"Pairs {words.text!r}: {self.name!r} is typed by itself, without {words.text[len(self.name) :]!r}."
            )

    plain: ClassVar[bool] = True  # is it typed by itself?

    def start(self, model: Model, setting: Setting) -> None:
        """Raise VitscopeError where this model cannot be asked."""
        self.model, self.setting = model, setting

    def check_data(self, data: Data) -> None:
        """Raise UnsuitableDataError where these data have no such partners."""

    def prepare(self, data: Data) -> None:
        """Look at the data before the first batch."""

    def partners(self, batch: Batch) -> Partners:
        raise NotImplementedError


P = TypeVar("P", bound=type[Pairs])


def register_pairs(name: str) -> Callable[[P], P]:
    """Class decorator: make a kind of pairs known under `name`."""
    return PAIRS.named(name)


def create_pairs(word: str) -> Pairs:
    """The pairs behind `pgd@1/255`, `class`, ..."""
    words = parse_pairs(word)
    known: type[Pairs] = PAIRS.get(words.kind)
    return known(words)


def check_sizes(batch: Batch, partners: Partners, pairs: str) -> None:
    """Tokens are exchanged place by place: both sides must have the same places."""
    mine, theirs = _shapes(batch.inputs), _shapes(partners.inputs)
    if mine != theirs:
        raise DataError(
            f"Pairs {pairs!r}: an input has the shape {mine} and its partner {theirs}. Tokens are exchanged place by "
            "place: both must have the same size."
        )


def _shapes(inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return {name: tuple(part.shape) for name, part in inputs.items()}
    return tuple(inputs.shape)


@register_pairs("mask")
class MaskedObject(Pairs):
    """The object in the mean colour: 0 in what the model is called with."""

    def check_data(self, data: Data) -> None:
        if not data.has_masks:
            raise UnsuitableDataError(f"Pairs 'mask' paint over what a mask marks, and {data.name} has no masks.")

    def partners(self, batch: Batch) -> Partners:
        if batch.masks is None:
            return Partners(batch.images, torch.zeros(len(batch), dtype=torch.bool))
        inside = batch.masks == OBJECT  # (B, H, W)
        images = batch.images.masked_fill(inside[:, None].to(batch.images.device), 0.0)
        return Partners(images, inside.flatten(1).any(1))


@register_pairs("class")
class AnotherClass(Pairs):
    """An image of another class, drawn by (seed, image)."""

    def check_data(self, data: Data) -> None:
        if not task_of(data).one_class or len({label for label in data.labels if label >= 0}) < 2:
            raise UnsuitableDataError(f"Pairs 'class' need images of two classes at least, and {data.name} has none.")

    def prepare(self, data: Data) -> None:
        self.data = data
        self.known = [i for i, label in enumerate(data.labels) if label >= 0]

    def partners(self, batch: Batch) -> Partners:
        numbers = [self._draw(i, int(label)) for i, label in zip(batch.indices.tolist(), batch.labels)]
        others = self.data.subset(numbers).batches(self.model.preprocess, len(numbers))
        found = next(iter(others))
        images, made = torch.zeros_like(batch.images), torch.zeros(len(batch), dtype=torch.bool)
        if found.images.shape[1:] != images.shape[1:]:
            check_sizes(batch, Partners(found.images, made), self.words.text)
        images[found.indices] = found.images.to(images)  # those that could be read
        made[found.indices] = True
        return Partners(images, made)

    def _draw(self, image: int, label: int) -> int:
        generator = random.Random(derive_seed("pair", self.setting.seed, image))
        while True:
            number = generator.choice(self.known)
            if self.data.labels[number] != label:
                return number
