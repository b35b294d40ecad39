"""A 3-block real timm ViT with lively weights, labelled images with masks, and its float64 twin for oracles."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from vitscope.data.batch import Batch
from vitscope.models import Model, open_model

CLASSES = 10


def lively(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Weights large enough that blocks and classes differ."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            scale = 0.3 if p.ndim > 1 else 0.1
            p.add_(scale * torch.randn(p.shape, generator=generator) / max(p.shape[-1], 1) ** 0.25)
    return module.eval()


def build(name: str = "vit_tiny_patch16_224", **options: Any) -> Model:
    import timm

    size = {"img_size": 28, "patch_size": 7, "in_chans": 1, "embed_dim": 32, "depth": 3, "num_heads": 4}
    with torch.random.fork_rng():  # the same weights every time: near ties rank differently in float32 and float64
        torch.manual_seed(0)
        module = timm.create_model(name, **{**size, "num_classes": CLASSES, **options})
    return open_model(lively(module))


def make_batch(model: Model, n: int = 6, seed: int = 1, masks: bool = True, first: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(n, *model.preprocess.input_size, generator=generator)
    mask = torch.randint(0, 2, (n, *images.shape[-2:]), generator=generator, dtype=torch.uint8) if masks else None
    return Batch(
        inputs=images,
        targets=torch.randint(0, model.num_classes, (n,), generator=generator),
        indices=torch.arange(first, first + n),
        names=[f"{i}.png" for i in range(n)],
        masks=mask,
    )


def doubled(model: Model) -> Model:
    """The same model in float64: what an oracle computes with."""
    return Model(copy.deepcopy(model.module).double(), model.name, model.preprocess)


@pytest.fixture(scope="session")
def model() -> Model:
    return build()


@pytest.fixture
def batch(model: Model) -> Batch:
    return make_batch(model)


@pytest.fixture(scope="session")
def tools() -> dict[str, Any]:
    """The functions above, for tests that need other models or batches."""
    return {"build": build, "make_batch": make_batch, "doubled": doubled, "lively": lively}
