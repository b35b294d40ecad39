"""Label maps of a few images to look at: what is there, and what is answered, as numbers in PNG files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from PIL import Image

from vitscope.data.batch import Batch
from vitscope.data.segmentation.maps import SIXTEEN, nearest
from vitscope.runs.files import atomic_write

if TYPE_CHECKING:
    from torch import Tensor


TABLE = "segmentation_gallery"
LONGEST = 320  # pixels of a side that are kept


def map_names(image: int) -> tuple[str, str]:
    """Files of the truth and of the answer, beside the thumbnail."""
    return f"{image}-truth.png", f"{image}-answer.png"


def save_maps(
    folder: Path, batch: Batch, shown: Sequence[int], answers: Tensor, matrices: Tensor, conditions: Sequence[str] = ()
) -> pd.DataFrame:
    """Write both maps of some images -> one row for each: how much of it is right. conditions: of all in the batch."""
    rows: list[dict[str, Any]] = []
    for i in shown:
        image, matrix = int(batch.indices[i]), matrices[i]
        for name, labels in zip(map_names(image), (batch.targets[i], answers[i])):
            write_map(folder / name, labels.cpu().numpy())
        right, all_pixels = int(matrix.trace()), int(matrix.sum())
        rows.append(
            {
                "image": image,
                "path": batch.names[i],
                "condition": conditions[i] if conditions else "",
                "accuracy": 100 * right / max(1, all_pixels),
                "pixels": all_pixels,
            }
        )
    return pd.DataFrame(rows)


def write_map(path: Path, labels: np.ndarray) -> None:
    """(H, W) classes, -1 where there is none -> 16 bits of grey, at most LONGEST wide and high."""
    scale = min(1.0, LONGEST / max(labels.shape))
    height, width = (max(1, round(scale * side)) for side in labels.shape)
    numbers = nearest(labels, (height, width))
    png = io.BytesIO()
    Image.fromarray(np.where(numbers < 0, SIXTEEN, numbers).astype(np.uint16)).save(png, "PNG")
    atomic_write(path, png.getvalue())


def read_map(path: Path) -> np.ndarray:
    """The inverse, of what is kept."""
    numbers = np.asarray(Image.open(path)).astype(np.int64)
    return np.where(numbers == SIXTEEN, -1, numbers)
