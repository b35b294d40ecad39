"""Randomness as a pure function of (seed, epoch, index): the same in any process, in any order, after any resume."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed from any number of parts, e.g. `derive_seed(seed, epoch, index)`.

    A hash, not arithmetic: neighbouring seeds, epochs and indices give unrelated streams, and no two tuples collide
    because their sums happen to be equal.
    """
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1  # torch takes 64 bits signed


def sample_generator(seed: int, epoch: int, index: int) -> torch.Generator:
    """The generator that belongs to one sample of one epoch."""
    return torch.Generator().manual_seed(derive_seed("sample", seed, epoch, index))


def permutation(n: int, seed: int, epoch: int) -> list[int]:
    """The order in which an epoch visits `n` samples. Depends on nothing but its arguments."""
    generator = torch.Generator().manual_seed(derive_seed("permutation", seed, epoch))
    return torch.randperm(n, generator=generator).tolist()


@contextmanager
def seeded_globals(seed: int) -> Iterator[None]:
    """Seed the global generators of Python, NumPy and torch (CPU) inside the block, and put their states back after.

    timm's and torchvision's augmentations draw from the global generators and take no other. Inside this block they
    are a function of `seed`; outside nothing is noticed, even if an exception flies through.
    """
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.random.default_generator.manual_seed(seed)  # torch.manual_seed would also touch the GPUs' generators
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
