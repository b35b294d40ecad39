"""Label maps that follow a corruption which moves pixels: `elastic_transform`.

Its displacements are drawn from the seed and from the size of the picture alone. A picture whose colours are its own
coordinates, put through the published function with the same seed, says for every pixel where it came from.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from vitscope.data.randomness import preserved_globals, seed_globals
from vitscope.robustness.corruptions.registry import LEAST

MOVES = ("elastic_transform",)  # the others blur, veil and recolour: what is where stays there


def elastic_origins(height: int, width: int, severity: int, seed: int) -> np.ndarray:
    """Where each pixel of a corrupted picture comes from: (2, H, W) float32, row and column."""
    from imagecorruptions.corruptions import elastic_transform

    rows, columns = np.meshgrid(np.linspace(0, 255, height), np.linspace(0, 255, width), indexing="ij")
    coordinates = np.stack([rows, columns, np.zeros_like(rows)], -1).astype(np.float32)  # (H, W, 3): a picture
    with preserved_globals():
        seed_globals(seed)
        moved = np.asarray(elastic_transform(coordinates, severity)) / 255
    return np.stack([moved[..., 0] * (height - 1), moved[..., 1] * (width - 1)]).astype(np.float32)


def moved_labels(labels: np.ndarray, size: tuple[int, int], severity: int, seed: int) -> np.ndarray:
    """A map (H, W) of a picture that was corrupted at `size` (height, width), moved as its pixels were.

    Maps may be larger than the picture that goes into the model: displacements are resized to them.
    """
    height, width = (max(LEAST, side) for side in size)  # smaller pictures are enlarged before they are corrupted
    origins = torch.from_numpy(elastic_origins(height, width, severity, seed))[None]  # (1, 2, height, width)
    there = F.interpolate(origins, labels.shape, mode="bilinear", align_corners=False)[0].double().numpy()
    shape = zip(there, (height, width), labels.shape)
    rows, columns = (((at + 0.5) / side * n).astype(np.int64).clip(0, n - 1) for at, side, n in shape)
    return labels[rows, columns]
