"""Tiny models with lively weights: a ViT of three blocks, text models of two, and batches for them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from vitscope.data.batch import Batch
from vitscope.models import Model, open_model

sys.path.insert(0, str(Path(__file__).parents[2]))
from text_models import build, texts

SIZE = {"img_size": 28, "patch_size": 7, "embed_dim": 32, "depth": 3, "num_heads": 4, "num_classes": 10}


def make_vit(name: str = "vit_tiny_patch16_224", **options: Any) -> Model:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = timm.create_model(name, **{**SIZE, **options})
        with torch.no_grad():
            for p in module.parameters():
                p.add_((0.3 if p.ndim > 1 else 0.1) * torch.randn(p.shape) / max(p.shape[-1], 1) ** 0.25)
    return open_model(module.eval())


def make_pictures(model: Model, n: int = 6, first: int = 0) -> Batch:
    """Pictures of 8 bits, whose labels are the model's own answers: every one is right."""
    generator = torch.Generator().manual_seed(1 + first)
    pixels = torch.randint(0, 256, (n, 3, 28, 28), generator=generator) / 255
    images = (pixels - 0.5) / 0.5
    with torch.no_grad():
        labels = model(model.place(images)).argmax(1)
    masks = torch.zeros(n, 28, 28, dtype=torch.uint8)
    masks[:, 7:21, 7:21] = 1
    names = [f"{i}.png" for i in range(first, first + n)]
    return Batch(images, labels, torch.arange(first, first + n), names, masks=masks)


def make_texts(lengths: tuple[int, ...] = (9, 5)) -> Batch:
    inputs = texts(lengths)
    valid = inputs["attention_mask"].bool()
    targets = torch.full_like(inputs["input_ids"], -1)
    targets[:, :-1] = torch.where(valid[:, 1:], inputs["input_ids"][:, 1:], -1)
    names = [f"text {i}" for i in range(len(lengths))]
    return Batch(inputs, targets, torch.arange(len(lengths)), names, valid=valid)


@pytest.fixture(scope="session")
def vit() -> Model:
    model = make_vit()
    model.preprocess = _halved(model.preprocess)
    return model


def _halved(preprocess: Any) -> Any:
    from dataclasses import replace

    return replace(preprocess, mean=(0.5,) * 3, std=(0.5,) * 3)


@pytest.fixture(scope="session")
def tools() -> dict[str, Any]:
    return {
        "vit": make_vit,
        "pictures": make_pictures,
        "texts": make_texts,
        "text_model": lambda n: open_model(build(n)),
    }


@pytest.fixture
def pictures(vit: Model) -> Batch:
    return make_pictures(vit)
