"""Folders of pictures with label maps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def pair(tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """Write pictures and maps of these names below `images/` and `labels/`; sizes in turn."""

    def make(*names: str, sizes: tuple[tuple[int, int], ...] = ((20, 30),), classes: int = 4) -> tuple[Path, Path]:
        rng = np.random.default_rng(0)
        for i, name in enumerate(names):
            size = sizes[i % len(sizes)]
            for kind, shape, top in (("images", (*size, 3), 256), ("labels", size, classes)):
                file = tmp_path / kind / f"{name}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                pixels = rng.integers(0, top, shape, dtype=np.uint8)
                if kind == "labels":
                    pixels[0, 0] = classes - 1
                Image.fromarray(pixels).save(file)
        return tmp_path / "images", tmp_path / "labels"

    return make
