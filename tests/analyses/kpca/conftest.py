"""Keys, queries and values to test with, and brute-force versions of what is tested."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor


@pytest.fixture(scope="session")
def golden(shared) -> dict[str, Tensor]:
    """Inputs and outputs of the published programs in float64."""
    path = shared / "golden" / "kpca.npz"
    if not path.exists():
        pytest.skip("no golden/kpca.npz in the test material")
    with np.load(path) as file:
        return {key: torch.from_numpy(file[key]) for key in file.files}


@pytest.fixture
def heads():
    """heads(seed, B, H, N, D, scale) -> q, k, v, normal and float64."""

    def make(seed: int = 0, b: int = 2, h: int = 3, n: int = 12, d: int = 4, scale: float = 1.0) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        q, k, v = (torch.randn(b, h, n, d, generator=generator, dtype=torch.float64) for _ in range(3))
        return [scale * q, scale * k, v]

    return make


SMALL = {"img_size": 28, "patch_size": 7, "in_chans": 1, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 10}


@pytest.fixture(scope="session")
def small_model():
    """small_model(seed, **timm options): 17 tokens, two blocks, two heads of 16, random weights of a lively size."""
    import timm

    from vitscope.models import open_model

    def make(seed: int = 0, **options):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = timm.create_model("vit_tiny_patch16_224", **(SMALL | options))
            for name, parameter in module.named_parameters():
                if "qkv.weight" in name:
                    parameter.data.normal_(std=0.3)
        return open_model(module)

    return make


@pytest.fixture(scope="session")
def batches():
    """batches([3, 2]) -> batches of 3 and 2 random images, numbered through; the same images however they are cut."""
    from vitscope.data.batch import Batch

    def make(sizes: list[int], size: int = 28, channels: int = 1) -> list[Batch]:
        n = sum(sizes)
        images = torch.randn(n, channels, size, size, generator=torch.Generator().manual_seed(7))
        found, first = [], 0
        for number, count in enumerate(sizes):
            where = torch.arange(first, first + count)
            paths = [f"image{i}" for i in where.tolist()]
            found.append(Batch(images[where], torch.zeros(count, dtype=torch.int64), where, paths, number=number))
            first += count
        return found

    return make
