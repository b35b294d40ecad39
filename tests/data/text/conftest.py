"""Tokenizers to test with: what `Model.preprocess` of a language model offers, and no more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor


class StandIn:
    """A token per character, between two special ones; or the tokenizer of a file, without any."""

    def __init__(self, length: int = 50, around: bool = True, file: Path | None = None) -> None:
        self.length, self.bos, self.eos, self.pad_id, self.around = length, 1, 2, 0, around
        self.tokenizer: Any = None
        if file is not None:
            from tokenizers import Tokenizer

            self.tokenizer = Tokenizer.from_file(str(file))

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        if self.tokenizer is not None:
            return self.tokenizer.encode(text, add_special_tokens=False).ids
        inner = [3 + ord(character) for character in text if not character.isspace()]
        return [1, *inner, 2] if special and self.around else inner

    def encode_all(self, texts: Sequence[str], *, special: bool = True) -> list[list[int]]:
        return [self.encode(text, special=special) for text in texts]

    def pad(self, rows: list[list[int]]) -> dict[str, Tensor]:
        width = max(map(len, rows))
        ids = [row + [0] * (width - len(row)) for row in rows]
        mask = [[1] * len(row) + [0] * (width - len(row)) for row in rows]
        return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}

    def to_dict(self) -> dict[str, Any]:
        return {"length": self.length, "around": self.around}


@pytest.fixture
def stand_in() -> Callable[..., StandIn]:
    return StandIn


@pytest.fixture
def wiki(shared: Path) -> Path:
    return shared / "data" / "wikitext-2"
