"""A ViT that answers for every pixel, small and quick, and coloured squares for it to tell apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from vitscope.data import Source

SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "mlp_ratio": 2.0}
COLOURS = np.array([[190, 40, 40], [40, 190, 40], [40, 40, 190]])


class PixelViT(VisionTransformer):
    """Pictures of any size (B, 3, H, W) -> logits (B, K, H, W)"""

    def __init__(self, num_classes: int = 3, **options: Any) -> None:
        super().__init__(num_classes=num_classes, dynamic_img_size=True, dynamic_img_pad=True, **{**SIZES, **options})
        self.pretrained_cfg = {"input_size": (3, 16, 16), "mean": (0.5,) * 3, "std": (0.5,) * 3, "crop_pct": 1.0}

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        height, width = x.shape[-2:]
        rows, columns = (-(-side // 4) for side in (height, width))
        patches = self.head(self.forward_features(x)[:, 1:]).transpose(1, 2).unflatten(2, (rows, columns))
        return F.interpolate(patches, (4 * rows, 4 * columns), mode="bilinear")[..., :height, :width]


def squares(split: str = "test", sizes: tuple[tuple[int, int], ...] = ((5, 6),)) -> Source:
    """Squares of 4 pixels in three colours, with noise; a corner without a class, and one map without any."""
    rng = np.random.default_rng(0 if split == "train" else 1)
    pictures, maps = [], []
    for i in range(12 if split == "train" else 10):
        classes = np.kron(rng.integers(0, 3, sizes[i % len(sizes)]), np.ones((4, 4), np.int64))
        noise = rng.integers(-30, 30, (*classes.shape, 3))
        pictures.append(np.clip(COLOURS[classes] + noise, 0, 255).astype(np.uint8))
        classes[:2, :2] = 255
        maps.append(np.full_like(classes, 255) if split == "train" and i == 5 else classes)
    return Source(pictures, classes=["red", "green", "blue"], maps=maps)


def uneven(split: str = "test") -> Source:
    """The same in two sizes."""
    return squares(split, ((5, 6), (7, 4)))
