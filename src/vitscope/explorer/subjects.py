"""What is looked at: an item of the data, a picture that was dropped, an attacked one, or a sentence.

The page names an item by its number and everything else by its hash, which means something while the server runs.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitscope.data.images import decode_image
from vitscope.data.transforms import build_transform, normalise
from vitscope.errors import DataError
from vitscope.models import Model
from vitscope.models.inputs import tokenizing
from vitscope.robustness.threat import channel_values

MOST_BYTES = 20_000_000  # of an uploaded file
MOST_PIXELS = 40_000_000  # of the picture in it: a few kilobytes can unpack to gigabytes
MOST_CHARACTERS = 20_000  # of a sentence
KEPT, KEPT_PIXELS = 64, 100_000_000  # pictures by hash, and pixels in all of them; the oldest are forgotten


@dataclass(frozen=True)
class Step:
    """One thing that was done to the pixels: a corruption or an attack."""

    name: str  # 'fog', 'pgd'
    severity: int = 0  # of a corruption
    eps: str = ""  # of an attack, in 255ths: '8/255'
    steps: int = 0  # of an attack; 0: it has none to choose
    label: int = -1  # what the attack leads away from
    index: int = 0  # the picture's number, from which random draws follow
    model: int = 0  # which model was attacked

    @property
    def is_attack(self) -> bool:
        return bool(self.eps)


@dataclass(frozen=True)
class Origin:
    """Where a picture or sentence comes from, as a script can repeat it."""

    item: int | None = None
    dropped: str | None = None  # hash of the uploaded file
    text: str | None = None
    steps: tuple[Step, ...] = ()

    @property
    def index(self) -> int:
        return self.item or 0


@dataclass(frozen=True)
class Kept:
    """A picture in the store: as it was dropped, or as pixels that a model sees."""

    origin: Origin
    image: Image.Image | None = None
    pixels: Tensor | None = None  # (C, H, W) in [0, 1], float32

    @property
    def size(self) -> int:
        """In pixels."""
        width, height = self.image.size if self.image is not None else self.pixels.shape[-2:]  # type: ignore[union-attr]
        return int(width * height)


@dataclass(frozen=True)
class Subject:
    """What one model is called with."""

    inputs: Tensor | Mapping[str, Tensor]  # a batch of one
    origin: Origin
    pixels: Tensor | None = None  # (C, H, W) in [0, 1]
    label: int = -1
    words: tuple[str, ...] = ()  # a sentence's tokens


class Store:
    """Pictures by hash, the last `KEPT` of them, or fewer if they are large."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._lock = threading.Lock()  # uploads come from the server's thread, attacked pictures from the worker

    def put(self, name: str, kept: Kept) -> str:
        with self._lock:
            self._kept[name] = kept
            self._kept.move_to_end(name)
            while len(self._kept) > KEPT or (
                len(self._kept) > 1 and sum(k.size for k in self._kept.values()) > KEPT_PIXELS
            ):
                self._kept.popitem(last=False)
        return name

    def get(self, name: str) -> Kept:
        with self._lock:
            if name not in self._kept:
                raise DataError(
                    "This picture is not here any more: a picture of your own is known while the server runs, and the "
                    f"last {KEPT} are kept. Drop it again."
                )
            return self._kept[name]

    def take_upload(self, content: bytes) -> str:
        """Decode a file as pictures of data sets are decoded; its hash. BadFileError says in words what is wrong."""
        name = hashlib.sha256(content).hexdigest()[:16]
        image = decode_image(content, "The file", MOST_PIXELS)
        return self.put(name, Kept(Origin(dropped=name), image))

    def take_pixels(self, pixels: Tensor, origin: Origin) -> str:
        """Attacked or corrupted pixels (C, H, W) in [0, 1]."""
        name = hashlib.sha256(pixels.contiguous().numpy().tobytes() + repr(origin).encode()).hexdigest()[:16]
        return self.put(name, Kept(origin, pixels=pixels))


def picture_subject(model: Model, picture: Image.Image | Tensor, origin: Origin, label: int = -1) -> Subject:
    """A picture, or pixels (C, H, W) in [0, 1], as `model` takes it."""
    if isinstance(picture, Tensor):
        if tuple(picture.shape) != tuple(model.preprocess.input_size):
            have, want = (" x ".join(map(str, s)) for s in (picture.shape, model.preprocess.input_size))
            raise DataError(f"{model.name} takes {want} pixels, and this attacked picture has {have}.")
        mean, std = channel_values(model.preprocess, picture)
        return Subject(model.place(picture.sub(mean).div(std)[None]), origin, picture, label)
    transform = build_transform(model.preprocess)
    cut, _ = transform.cut(picture)
    pixels = torch.from_numpy(np.array(cut))
    pixels = (pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1)).float().div_(255)
    return Subject(model.place(normalise(cut, transform.mean, transform.std)[None]), origin, pixels, label)


def text_subject(model: Model, text: str) -> Subject:
    """A sentence, as `model` takes it."""
    preprocess = tokenizing(model)
    ids = preprocess.encode(text)
    return Subject(model.place(preprocess.pad([ids])), Origin(text=text), words=tuple(preprocess.words(ids)))


def is_whole(value: Any, least: int, most: int) -> bool:
    """Is this a whole number as JSON has them? `true` is none."""
    return type(value) is int and least <= value <= most


def parse_subject(given: Any) -> dict[str, Any]:
    """What the page names: {"item": 3}, {"hash": "0f..."} or {"text": "..."}, and nothing else."""
    kinds: dict[str, Any] = {"item": int, "hash": str, "text": str}
    if isinstance(given, Mapping) and len(given) == 1:
        ((kind, value),) = given.items()
        if kind in kinds and isinstance(value, kinds[kind]) and not isinstance(value, bool):
            if kind == "text" and not (value.strip() and len(value) <= MOST_CHARACTERS):
                raise DataError(f"Type a sentence of 1 to {MOST_CHARACTERS:,} characters.")
            return {kind: value}
    raise DataError('What is to be looked at? Expected {"item": 3}, {"hash": "..."} or {"text": "..."}.')


def with_step(origin: Origin, step: Step) -> Origin:
    return replace(origin, steps=(*origin.steps, step))
