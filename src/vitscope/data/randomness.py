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
def preserved_globals() -> Iterator[None]:
    """Put the states of Python's, NumPy's and torch's global (CPU) generators back afterwards, come what may."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def seed_globals(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch (CPU). Only inside `preserved_globals`.

    timm's and torchvision's augmentations draw from the global generators and take no other. Between these two
    functions they are a function of `seed`, and outside nothing is noticed.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.random.default_generator.manual_seed(seed)  # torch.manual_seed would also touch the GPUs' generators
