"""Models and weights as people name them, looked up before PyTorch is imported."""

from __future__ import annotations

import os
from pathlib import Path

from vitscope.errors import WeightsError


def is_trained(folder: str | Path) -> bool:
    """Is it the run folder of a training? False, not an error, for a name too long for a file."""
    return os.path.isfile(Path(folder) / "model.json")


def check_model_name(name: str) -> None:
    """Raise at a model that does not exist. A name that the table does not have is refused only after asking timm."""
    from vitscope.models.catalog import read_table

    if is_trained(name) or any(row.name == name for row in read_table() or ()):
        return
    from vitscope.models.open import check_name

    check_name(name)


def check_weights_file(path: str | Path) -> None:
    if not os.path.isfile(path):
        raise WeightsError(f"No weights at {path}: expected a .safetensors or .pth file.")
