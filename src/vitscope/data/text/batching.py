"""Batches of lines and documents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Unpack

from vitscope.data.batch import Batch, Skipped
from vitscope.data.batching import Reader, iterate, plan_batches
from vitscope.data.dealing import Turn
from vitscope.data.text.dataset import TextData, TextItem
from vitscope.data.text.tokenizer import Tokenizes, most_tokens
from vitscope.data.text.tokens import shortened, token_batch
from vitscope.errors import DataError


def text_batches(data: TextData, preprocess: Tokenizes, batch_size: int, **turn: Unpack[Turn]) -> Iterator[Batch]:
    """`TextData.batches`: see there."""
    plans = plan_batches(len(data), batch_size, **turn)
    length = most_tokens(preprocess, data.options.context)
    around = len(preprocess.encode(""))  # what the tokenizer puts around any text
    reader = _Texts(data, plans, preprocess, length, around)
    return _counted(data, length, iterate(reader, data.strict, **turn))


def _counted(data: TextData, length: int, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Batches as they come; texts that were cut are counted, and remarked at the end or refused."""
    cut = 0
    for batch in batches:
        cut += batch.shortened
        if cut and data.strict and data.options.context is None:
            raise DataError(
                f"A text of batch {batch.number} is longer than the {length:,} tokens that the model takes. Choose "
                "unit='windows', say context=N to use N tokens of each text, or leave strict (--strict) out."
            )
        yield batch
    if cut:
        data.remark(f"{cut:,} of {len(data):,} texts have more than {length:,} tokens: only their beginning is used.")


@dataclass(frozen=True, eq=False)
class _Texts(Reader):
    preprocess: Tokenizes
    length: int
    around: int

    def batch(self, number: int, indices: list[int]) -> Batch:
        items, skipped = self.readable(indices, self.data.read, self.data.names)
        rows = self.preprocess.encode_all([item.text for item in items]) if items else []
        full = [(item, row) for item, row in zip(items, rows) if len(row) > self.around]
        skipped += [
            Skipped(item.index, item.name, "the tokenizer finds no tokens in it")
            for item, row in zip(items, rows)
            if len(row) <= self.around
        ]
        batch = token_batch(
            self.preprocess,
            [self._fit(item, row) for item, row in full],
            [item.index for item, _ in full],
            [item.name for item, _ in full],
            number,
            skipped=sorted(skipped, key=lambda s: s.index),
        )
        batch.shortened = sum(len(row) > self.length for _, row in full)
        return batch

    def _fit(self, item: TextItem, row: list[int]) -> list[int]:
        if len(row) <= self.length:
            return row
        return shortened(row, self.preprocess.encode(item.text, special=False), self.length)
