"""The published sets in the layouts in which they are distributed, tiny: digits instead of photographs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from vitscope.data import synsets

OWN = {"A": (3, 7, 500), "R": (7, 20), "O": (3, 999)}  # class numbers of the folders
V2 = (2, 10, 100)  # in the order of their spelling: 10, 100, 2
SKETCH = (0, 500, 999)
CLEAN = (0, 2, 3, 7, 10, 20, 100, 500, 999)


def picture(seed: int, size: int = 40) -> Image.Image:
    """Soft blobs: a few random colours, enlarged."""
    colours = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(colours).resize((size, size), Image.Resampling.BICUBIC)


def fill(folder: Path, classes: tuple[int, ...], names: tuple[str, ...], *, seed: int, size: int = 40) -> Path:
    """A folder of class folders. `names` of the pictures, e.g. ('0_x.jpg', '1_x.jpg')."""
    ids = synsets.wordnet_ids()
    for number in classes:
        place = folder / (str(number) if folder.name.startswith("imagenetv2") else ids[number])
        place.mkdir(parents=True)
        for i, name in enumerate(names):
            picture(seed + 100 * number + i, size).save(place / name)
    return folder


def make_sets(root: Path) -> dict[str, Path]:
    """{letter: folder}, and 'clean'."""
    sketch = root / "ImageNet-Sketch"
    fill(sketch / "sketch", SKETCH, ("sketch_0.JPEG",), seed=5)
    two = tuple(f"{i}.png" for i in range(2))
    return {
        "clean": fill(root / "imagenet" / "val", CLEAN, ("a.png", "b.png", "c.png"), seed=0).parent,
        "A": fill(root / "imagenet-a", OWN["A"], two, seed=1),
        "R": fill(root / "imagenet-r", OWN["R"], ("art_0.jpg", "cartoon_1.jpg", "deviantart_2.jpg"), seed=2),
        "O": fill(root / "imagenet-o", OWN["O"], two, seed=3),
        "V2": fill(root / "imagenetv2-matched-frequency-format-val", V2, ("x.jpeg",), seed=4),
        "SKETCH": sketch,
    }


def make_c(root: Path, corruptions: dict[str, str], severities: tuple[int, ...] = (1, 2, 3, 4, 5)) -> Path:
    """ImageNet-C: {corruption: archive}; an empty archive puts the corruption at the top."""
    for c, (name, archive) in enumerate(corruptions.items()):
        for severity in severities:
            fill(root / archive / name / str(severity), (7, 20), ("val_1.JPEG",), seed=1000 * c + severity, size=32)
    return root
