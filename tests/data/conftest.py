"""Pictures and folders to test on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitscope.models.preprocessing import Preprocess


@pytest.fixture
def noise() -> Callable[..., Image.Image]:
    """A colourful picture of the given (height, width), the same for the same seed."""

    def make(height: int = 40, width: int = 48, seed: int = 0, mode: str = "RGB") -> Image.Image:
        shape = (height, width) if mode == "L" else (height, width, len(mode))
        return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))

    return make


@pytest.fixture
def class_folders(tmp_path: Path, noise: Callable[..., Image.Image]) -> Callable[..., Path]:
    """Write `{folder: number of pictures}` below tmp_path/name, a different picture in every file."""

    def make(contents: dict[str, int], name: str = "pictures") -> Path:
        root = tmp_path / name
        for c, (folder, count) in enumerate(contents.items()):
            (root / folder).mkdir(parents=True)
            for i in range(count):
                noise(seed=1000 * c + i).save(root / folder / f"{i:03d}.png")
        return root

    return make


@pytest.fixture
def small() -> Preprocess:
    return Preprocess((3, 32, 32), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), "bilinear", 0.9)
