"""From texts to the numbers that a language model is called with."""

from __future__ import annotations

import torch

from vitscope.data.batch import Batch, Skipped
from vitscope.data.text.tokenizer import Tokenizes


def shortened(row: list[int], inner: list[int], length: int) -> list[int]:
    """A row of more than `length` tokens cut to it. What the tokenizer puts around a text stays around it.

    `inner`: the same text without those.
    """
    around = len(row) - len(inner)
    before = next((i for i in range(around + 1) if row[i : i + len(inner)] == inner), None)
    if before is None or around >= length:
        return row[:length]
    return row[:before] + inner[: length - around] + row[before + len(inner) :]


def token_batch(
    preprocess: Tokenizes,
    rows: list[list[int]],
    indices: list[int],
    names: list[str],
    number: int,
    firsts: list[int] | None = None,
    skipped: list[Skipped] | None = None,
    behind: bool = False,
) -> Batch:
    """Rows of tokens as a batch, padded on the right to the longest. Targets are the next tokens, -1 for none.

    `firsts`: for each row, the place in it from which on tokens are targets (1: all but the first).
    `behind`: the last token of a row is a target only.
    """
    if rows:
        padded = preprocess.pad([row[:-1] for row in rows] if behind else rows)
    else:
        padded = {key: torch.zeros(0, 0, dtype=torch.int64) for key in ("input_ids", "attention_mask")}
    ids, valid = padded["input_ids"], padded["attention_mask"].bool()  # (B, N)
    targets = torch.full_like(ids, -1)
    targets[:, :-1] = torch.where(valid[:, 1:], ids[:, 1:], -1)
    for i, tokens in enumerate(rows if behind else ()):
        targets[i, len(tokens) - 2] = tokens[-1]
    for row, first in enumerate(firsts or ()):
        targets[row, : first - 1] = -1
    return Batch(
        inputs=dict(padded),
        targets=targets,
        indices=torch.tensor(indices, dtype=torch.int64),
        names=names,
        number=number,
        skipped=skipped or [],
        valid=valid,
    )
