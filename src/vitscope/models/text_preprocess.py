"""How a text becomes a model's input: by its tokenizer, padded at the right."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from vitscope.errors import DataError, UnsupportedModelError


class TextPreprocess:
    """A tokenizer of transformers, and how many tokens the model takes."""

    def __init__(self, tokenizer: Any, length: int, source: str = "") -> None:
        self.tokenizer, self.length, self.source = tokenizer, length, source
        self.bos: int | None = _first_of(tokenizer, "bos_token_id", "cls_token_id")
        self.eos: int | None = _first_of(tokenizer, "eos_token_id", "sep_token_id")
        self.pad_id: int | None = tokenizer.pad_token_id
        ends = (tokenizer.sep_token_id, tokenizer.eos_token_id)
        self.separators: tuple[int, ...] = tuple(sorted({end for end in ends if end is not None}))
        backend = getattr(tokenizer, "backend_tokenizer", None)
        decoder = json.loads(backend.to_str()).get("decoder") if backend is not None else None
        self._bytes = "ByteLevel" in json.dumps(decoder)  # tokens are written in stand-ins for bytes (GPT-2)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The numbers of a text's tokens, however many they are; `special`: with those that the model expects around
        them."""
        return self.encode_all([text], special=special)[0]

    def encode_all(self, texts: Sequence[str], *, special: bool = True) -> list[list[int]]:
        if not texts:
            return []
        found = self.tokenizer(list(texts), add_special_tokens=special, truncation=False, padding=False, verbose=False)
        return [list(row) for row in found["input_ids"]]

    def offsets(self, text: str, *, special: bool = True) -> list[tuple[int, int]] | None:
        """Where each token of `encode(text)` stands: its first character, and the one after its last; equal for a
        token that is not in the text. None where the tokenizer does not know."""
        if not self.tokenizer.is_fast:
            return None
        how = {"add_special_tokens": special, "truncation": False, "padding": False, "verbose": False}
        return [(a, b) for a, b in self.tokenizer(text, return_offsets_mapping=True, **how)["offset_mapping"]]

    def pad(self, rows: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        """Texts of different lengths as one batch: {"input_ids": (B, N) int64, "attention_mask": (B, N) int64}.

        The mask is 1 where a token is real.
        """
        if not rows or not all(rows):
            raise DataError("A text has no tokens: there is nothing for a model to read.")
        longest = max(map(len, rows))
        if longest > self.length:
            raise DataError(
                f"A text has {longest:,} tokens, and the model takes {self.length:,}: give a shorter one, or its first "
                f"tokens, `model.preprocess.encode(text)[:{self.length}]`."
            )
        filling = next(i for i in (self.pad_id, self.eos, 0) if i is not None)  # never seen: the mask is 0 there
        ids = torch.full((len(rows), longest), filling)
        mask = torch.zeros_like(ids)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
            mask[i, : len(row)] = 1
        return {"input_ids": ids, "attention_mask": mask}

    def words(self, ids: Sequence[int]) -> list[str]:
        """Tokens as a person reads them: ' the' begins a word, 'ing' or '##ing' goes on with one."""
        tokens = self.tokenizer.convert_ids_to_tokens(list(map(int, ids)))
        if self._bytes:
            special = set(self.tokenizer.all_special_tokens)
            return [t if t in special else self.tokenizer.convert_tokens_to_string([t]) for t in tokens]
        return [token.replace("\u2581", " ") for token in tokens]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some tokens; where a vocabulary has a token for line ends, they are line ends again."""
        text = self.tokenizer.decode(list(map(int, ids)), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if not self._ends_lines:
            return text
        return re.sub(f" ?{re.escape(self.tokenizer.eos_token)} ?", "\n", text)

    @cached_property
    def _ends_lines(self) -> bool:
        return self.eos is not None and self.encode("\n", special=False) == [self.eos]

    @property
    def rows(self) -> int:
        """How many embeddings its tokens need."""
        return 1 + max(self.tokenizer.get_vocab().values())

    def check_vocabulary(self, rows: int, name: str) -> None:
        """Refuse a tokenizer with numbers for which the model has no embedding."""
        vocabulary = self.tokenizer.get_vocab()
        token = max(vocabulary, key=vocabulary.__getitem__)
        if vocabulary[token] >= rows:
            raise UnsupportedModelError(
                f"The tokenizer does not fit {name}: it gives {token!r} the number {vocabulary[token]:,}, and the "
                f"model has embeddings for 0 to {rows - 1:,}. Give the tokenizer that the model was trained with."
            )

    def to_dict(self) -> dict[str, Any]:
        """What a run records."""
        return {
            "tokenizer": type(self.tokenizer).__name__,
            "vocabulary": len(self.tokenizer),
            "length": self.length,
            "source": self.source,
        }

    def __repr__(self) -> str:
        return f"TextPreprocess({type(self.tokenizer).__name__}, {len(self.tokenizer):,} words, {self.length:,} tokens)"


def _first_of(tokenizer: Any, *names: str) -> int | None:
    return next((found for name in names if (found := getattr(tokenizer, name, None)) is not None), None)
