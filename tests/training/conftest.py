"""A set of pictures that a tiny ViT learns in seconds, and the options to do so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from vitscope.training import TrainOptions

# Dark, bright, stripes across, stripes down. As a module of its own, because other processes import it by name.
TEXTURES = """
import numpy as np

def textures(split):
    rng = np.random.default_rng(0 if split == "train" else 1)
    n = 96 if split == "train" else 41
    labels = np.arange(n) % 4
    images = rng.integers(0, 60, (n, 16, 16)).astype(np.uint8)
    images[labels == 1] += 150
    images[labels == 2, 1::4] += 150
    images[labels == 3, :, 1::4] += 150
    return images, labels.tolist(), ["dark", "bright", "across", "down"]
"""


@pytest.fixture
def textures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that holds the module `texture_data`; this process can import it."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "texture_data.py").write_text(TEXTURES)
    monkeypatch.syspath_prepend(folder)
    return folder


@pytest.fixture
def tiny(textures: Path, tmp_path: Path) -> Callable[..., TrainOptions]:
    """`tiny(out name, **changes)`, with dropout, drop-path and augmentation: every kind of chance is there."""

    def options(out: str = "run", **changes: object) -> TrainOptions:
        values: dict = {
            "out": str(tmp_path / out),
            "data": "texture_data:textures",
            "model_options": {
                "img_size": 16, "patch_size": 4, "in_chans": 1, "embed_dim": 16, "depth": 2, "num_heads": 2,
                "mlp_ratio": 2.0, "drop_rate": 0.1, "drop_path_rate": 0.1,
            },
            "augment": "digits",
            "epochs": 3,
            "batch_size": 16,
            "optimizer": "nadamw",
            "lr": 5e-3,
            "progress": False,
        }  # fmt: skip
        return TrainOptions(**{**values, **changes})

    return options
