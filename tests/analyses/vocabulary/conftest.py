"""Tiny causal models with random weights, in float64, and batches of token numbers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vitscope.data.batch import Batch
from vitscope.models import open_model

sys.path.insert(0, str(Path(__file__).parents[2]))
from text_models import build


def make_model(name: str) -> Any:
    return open_model(build(name).double())


def make_batch(lengths: tuple[int, ...], first: int = 0, number: int = 0) -> Batch:
    """Texts numbered from `first`; the same number is the same text, however long the others are."""
    rows = []
    for i, n in enumerate(lengths):
        generator = torch.Generator().manual_seed(first + i)
        rows.append(torch.randint(5, 60, (n,), generator=generator))
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=1)
    valid = torch.nn.utils.rnn.pad_sequence([torch.ones(n) for n in lengths], batch_first=True).bool()
    targets = torch.full_like(ids, -1)
    targets[:, :-1] = torch.where(valid[:, 1:], ids[:, 1:], -1)
    indices = torch.arange(first, first + len(lengths))
    return Batch(
        inputs={"input_ids": ids, "attention_mask": valid.long()},
        targets=targets,
        indices=indices,
        names=[f"text {i}" for i in indices.tolist()],
        number=number,
        valid=valid,
    )


@pytest.fixture(params=["llama", "gpt2"])
def model(request: pytest.FixtureRequest) -> Any:
    return make_model(request.param)


@pytest.fixture(scope="session")
def open_tiny() -> Callable[[str], Any]:
    return make_model


@pytest.fixture(scope="session")
def batch_of() -> Callable[..., Batch]:
    return make_batch
