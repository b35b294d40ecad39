"""Batches of made-up scenes for a tiny segmenter: the same however they are cut into batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vitscope.data.batch import Batch
from vitscope.models import Model, open_model

CLASSES, SIZE, PATCH = 4, 24, 4


def tiny(decoder: str = "linear", **options: Any) -> Model:
    sizes: dict[str, Any] = {"image_size": SIZE, "patch_size": PATCH, "embed_dim": 16, "depth": 3, "num_heads": 2}
    model = open_model("segmenter", "random", num_classes=CLASSES, decoder=decoder, **sizes, **options)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.module.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


def scene_batches(images: int = 6, sizes: Sequence[int] | None = None) -> list[Batch]:
    """Scenes of rectangles whose pixels tell their class, some of them ignored, in batches of these sizes."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.zeros(images, SIZE, SIZE, dtype=torch.int64)
    for image in labels:
        for number in (1, 2, 3):
            y, x, h, w = torch.randint(4, 14, (4,), generator=generator).tolist()
            image[y : y + h, x : x + w] = number
        image[:3, :7] = -1
    labels[1, :, 12:] = -1
    pictures = torch.randn(images, 3, SIZE, SIZE, generator=generator) + labels[:, None]
    found, first = [], 0
    for number, size in enumerate(sizes or [images]):
        part = slice(first, first + size)
        names = [f"scene{i}" for i in range(first, first + size)]
        found.append(Batch(pictures[part], labels[part], torch.arange(first, first + size), names, number=number))
        first += size
    return found
