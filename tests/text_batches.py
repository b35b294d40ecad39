"""Batches of made-up texts for tiny text models: the same texts however they are cut into batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vitscope.data.batch import Batch

SEPARATOR = 2


def token_rows(lengths: Sequence[int]) -> list[list[int]]:
    """A text of each length: its tokens depend on its place alone. It ends with a separator, and has one inside."""
    rows = []
    for number, length in enumerate(lengths):
        row = torch.randint(5, 60, (length,), generator=torch.Generator().manual_seed(number)).tolist()
        if length > 4:
            row[length // 2] = row[-1] = SEPARATOR
        rows.append(row)
    return rows


def text_batches(lengths: Sequence[int], sizes: Sequence[int] | None = None) -> list[Batch]:
    """The texts in batches of these sizes (all in one), padded at the right with token 1."""
    rows, found, first = token_rows(lengths), [], 0
    for number, size in enumerate(sizes or [len(lengths)]):
        part = rows[first : first + size]
        ids = torch.ones(size, max(map(len, part)), dtype=torch.int64)
        valid = torch.zeros_like(ids, dtype=torch.bool)
        for i, row in enumerate(part):
            ids[i, : len(row)], valid[i, : len(row)] = torch.tensor(row), True
        where = torch.arange(first, first + size)
        names = [f"text{i}" for i in where.tolist()]
        inputs = {"input_ids": ids, "attention_mask": valid.long()}
        found.append(Batch(inputs, torch.full_like(ids, -1), where, names, number=number, valid=valid))
        first += size
    return found
