"""From texts to the numbers that a language model is called with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from vitscope.data.batch import Batch, Skipped
from vitscope.errors import DataError


class Tokenizes(Protocol):
    """What is asked of the preprocessing of a language model."""

    length: int  # the most tokens that the model takes
    bos: int | None  # the token that begins a text
    pad_id: int

    def encode(self, text: str, *, special: bool = True) -> list[int]: ...
    def encode_all(self, texts: Sequence[str], *, special: bool = True) -> list[list[int]]: ...
    def pad(self, rows: list[list[int]]) -> dict[str, Tensor]: ...
    def to_dict(self) -> dict[str, Any]: ...


def is_tokenizer(preprocess: Any) -> bool:
    """Is this the preprocessing of a language model?"""
    return hasattr(preprocess, "encode")


def check_tokenizer(preprocess: Any, name: str) -> None:
    """Raise where a model of pictures is given texts."""
    if not is_tokenizer(preprocess):
        raise DataError(
            f"{name} are texts, and the model takes pictures: choose pictures, such as --data mnist5k or a folder of "
            "images, or a language model (a folder with config.json, weights and tokenizer.json)."
        )


def most_tokens(preprocess: Tokenizes, context: int | None) -> int:
    """How many tokens of a text are used: as many as the model takes, or fewer where somebody says so."""
    if context is not None and context > preprocess.length:
        raise DataError(f"context={context:,} is more than the {preprocess.length:,} tokens that the model takes.")
    return preprocess.length if context is None else context


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
) -> Batch:
    """Rows of tokens as a batch, padded on the right to the longest. Targets are the next tokens, -1 for none.

    `firsts`: for each row, the place in it from which on tokens are targets (1: all but the first).
    """
    if rows:
        padded = preprocess.pad(rows)
    else:
        padded = {key: torch.zeros(0, 0, dtype=torch.int64) for key in ("input_ids", "attention_mask")}
    ids, valid = padded["input_ids"], padded["attention_mask"].bool()  # (B, N)
    targets = torch.full_like(ids, -1)
    targets[:, :-1] = torch.where(valid[:, 1:], ids[:, 1:], -1)
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
