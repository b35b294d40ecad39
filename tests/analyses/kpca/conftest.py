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
