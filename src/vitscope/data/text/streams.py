"""Contiguous streams: the tokens of a training text in as many equal pieces as a batch has rows.

With T tokens and B streams, stream b holds tokens b L to (b + 1) L - 1, L = T // B. Step s of an epoch shows window s
of every stream, `context` tokens and the ones that follow each of them; nothing is remembered from the window before.
So WikiText-103 is trained on. Nothing in it is random, so an epoch is the same with any seed, and for any number of
processes: each has some of the streams.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from vitscope.data.batch import Batch
from vitscope.data.text.dataset import OfTexts, TextData
from vitscope.errors import DataError

TEXTS_AT_ONCE = 64  # documents that are tokenized together


class StreamData(OfTexts):
    """What a language model learns from: item `s * streams + b` is window s of stream b."""

    unit = "streams"

    def __init__(self, texts: TextData, preprocess: Any, context: int, streams: int, vocabulary: str = "") -> None:
        self.texts, self.preprocess, self.context, self.vocabulary = texts, preprocess, context, vocabulary
        self.name, self.split, self.warnings = texts.name, texts.split, list(texts.warnings)
        found = all_tokens(texts, preprocess)
        self.total, length = len(found), len(found) // streams
        if length < 2:
            raise DataError(
                f"The training text of {self.name} has {self.total:,} tokens, too few for a batch of {streams:,} "
                f"streams: choose batch_size={max(1, self.total // 2)} or less, or a longer text."
            )
        self.tokens = found[: streams * length].reshape(streams, length)  # (B, L) int32

    @property
    def steps(self) -> int:
        """Windows of a stream; the last may be shorter."""
        return -(-(self.tokens.shape[1] - 1) // self.context)

    @property
    def labels(self) -> list[int]:
        return [-1] * len(self)

    def __len__(self) -> int:
        return self.steps * len(self.tokens)

    def describe(self) -> dict[str, Any]:
        """Plain values for config.yaml; the fingerprint is that of the tokens and of how they are cut."""
        told = self.texts.describe()
        digest = hashlib.sha256(f"{self.context} {self.tokens.shape}\n".encode() + self.tokens.tobytes())
        return {
            **told,
            "unit": self.unit,
            "context": self.context,
            "vocabulary": self.vocabulary,
            "tokens": self.total,
            "documents": told["n"],
            "n": len(self),
            "fingerprint": digest.hexdigest()[:32],
        }

    def learn(
        self, preprocess: Any, batch_size: int, *, rank: int = 0, world: int = 1, start: int = 0, **_: Any
    ) -> Iterator[Batch]:
        """The steps of an epoch from `start` on; process `rank` has `batch_size` of the streams."""
        if batch_size * world != len(self.tokens):
            raise DataError(f"{len(self.tokens):,} streams are no {world} x {batch_size:,}: open the text anew.")
        mine = slice(rank * batch_size, (rank + 1) * batch_size)
        for step in range(start, self.steps):
            first = step * self.context
            tokens = self.tokens[mine, first : first + self.context + 1]  # (b, N + 1)
            window = torch.from_numpy(tokens.astype(np.int64))
            numbers = step * len(self.tokens) + torch.arange(mine.start, mine.stop)
            yield Batch(
                inputs=window[:, :-1],
                targets=window[:, 1:],
                indices=numbers,
                names=[f"{self.name}[{i}]" for i in numbers.tolist()],
                number=step * world + rank,
            )

    def __repr__(self) -> str:
        streams, length = self.tokens.shape
        return f"StreamData({self.name} {self.split}: {streams:,} streams of {length:,} tokens)"


def all_tokens(texts: TextData, preprocess: Any) -> np.ndarray:
    """The tokens of all documents, one after the other, with what joins them: (T,) int32."""
    parts: list[np.ndarray] = []
    for first in range(0, len(texts), TEXTS_AT_ONCE):
        places = range(first, min(first + TEXTS_AT_ONCE, len(texts)))
        documents = [texts.read(i).text + (texts.joiner if i + 1 < len(texts) else "") for i in places]
        parts += [np.array(row, dtype=np.int32) for row in preprocess.encode_all(documents, special=False)]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)
