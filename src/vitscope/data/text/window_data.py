"""Windows over the tokens of documents: what perplexity is measured on.

Where windows begin depends on the tokenizer, so they are cut when it is known. Kept are the boundaries; a document is
tokenized again when its windows are read, and stays in memory until another one is needed.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

from vitscope.data.batch import Batch
from vitscope.data.batching import Reader, iterate, plan_batches
from vitscope.data.dealing import Turn, check_numbers
from vitscope.data.text.dataset import OfTexts, TextData
from vitscope.data.text.tokenizer import Tokenizes, check_tokenizer, most_tokens
from vitscope.data.text.tokens import token_batch
from vitscope.data.text.windows import Window, disjoint_windows, sliding_windows
from vitscope.errors import DataError


class WindowData(OfTexts):
    """Windows in a fixed order; item `i` is window `i`. Targets are the tokens that no window before has scored."""

    unit = "windows"

    def __init__(self, texts: TextData, preprocess: Tokenizes, table: np.ndarray, warnings: Sequence[str] = ()) -> None:
        self.texts, self.preprocess = texts, preprocess
        self.table = table  # (N, 4) int64: document, start, stop, first target
        self.warnings = [*texts.warnings, *warnings]
        self.name, self.split, self.strict = texts.name, texts.split, texts.strict
        self.labels = [-1] * len(table)
        self._last: tuple[int, list[int]] = (-1, [])

    @property
    def documents(self) -> np.ndarray:
        """(N,) int64: the number of each window's document among the chosen ones; all 0 where they are joined."""
        return self.table[:, 0]

    @property
    def lead(self) -> int:
        """How many tokens stand before the text in each window."""
        return int(self.texts.options.bos)

    def __len__(self) -> int:
        return len(self.table)

    def window(self, i: int) -> Window:
        return Window(*self.table[i, 1:].tolist())

    def tokens(self, i: int) -> list[int]:
        """The tokens of window `i`, with what stands before them; with a stride of 1 the last is a target only."""
        document, start, stop, _ = self.table[i].tolist()
        if self._last[0] != document:
            self._last = document, self.preprocess.encode(self.texts.passage(document), special=False)
        bos = self.preprocess.bos
        return ([bos] if self.lead and bos is not None else []) + self._last[1][start:stop]

    def item_name(self, i: int) -> str:
        document, start, stop, _ = self.table[i].tolist()
        name = self.name if self.texts.options.joined else self.texts.names[document]
        return f"{name}[{start}:{stop}]"

    def subset(self, indices: Sequence[int]) -> WindowData:
        """Some of these windows, in the given order, numbered anew from 0."""
        check_numbers(indices, len(self), "window")
        chosen = copy.copy(self)
        chosen.table = self.table[np.asarray(indices, dtype=np.int64)]
        chosen.labels = [-1] * len(indices)
        return chosen

    def describe(self) -> dict[str, Any]:
        """Plain values for config.yaml; `documents` is how many texts the windows were cut from."""
        told = self.texts.describe()
        digest = hashlib.sha256(f"{told['fingerprint']}\n".encode() + self.table.astype("<i8").tobytes())
        return {**told, "documents": told["n"], "n": len(self), "fingerprint": digest.hexdigest()[:32]}

    def cut(self, preprocess: Tokenizes) -> Any:
        """Itself for the tokenizer that it was cut for, else windows of the other one."""
        check_tokenizer(preprocess, self.name)
        same = preprocess is self.preprocess or preprocess.to_dict() == self.preprocess.to_dict()
        return self if same else self.texts.cut(preprocess)

    def batches(self, preprocess: Tokenizes, batch_size: int = 64, **turn: Unpack[Turn]) -> Iterator[Batch]:
        """Batches of windows in a fixed order: batch `b` belongs to process `b % world`."""
        if self.cut(preprocess) is not self:
            raise DataError(f"The windows of {self.name} were cut for another tokenizer: cut(preprocess) them anew.")
        plans = plan_batches(len(self), batch_size, **turn)
        return iterate(_Windows(self, plans), self.strict, **turn)

    def __repr__(self) -> str:
        return f"WindowData({self.name} {self.split}: {len(self):,} windows of {len(self.texts):,} documents)"


def cut_windows(texts: TextData, preprocess: Tokenizes) -> WindowData:
    """Tokenize every document once, and note where its windows begin and end."""
    options = texts.options
    context = most_tokens(preprocess, options.context)
    if options.bos and preprocess.bos is None:
        raise DataError("This tokenizer has no token that begins a text: leave out bos (--bos).")
    rows: list[np.ndarray] = []
    found, short = 0, []
    for document in range(texts.passages):
        n = len(preprocess.encode(texts.passage(document), special=False))
        if options.stride is None:
            windows = disjoint_windows(n, context, int(options.bos))
        else:
            windows = sliding_windows(n, context, options.stride, int(options.bos))
        if not windows:
            short.append(document)
            continue
        rows.append(np.array([(document, *window) for window in windows], dtype=np.int64))
        found += len(windows)
        if options.windows is not None and found >= options.windows:
            break
    if not rows:
        raise DataError(f"{texts.name} ({texts.split}) has no text of two tokens or more: there is nothing to guess.")
    warnings = []
    if short:
        left = f"{len(short):,} of {len(texts):,} texts"
        warnings.append(f"{left} have no two tokens and are left out, e.g. {texts.names[short[0]]}.")
    if options.windows is not None and found < options.windows:
        warnings.append(f"Asked for {options.windows:,} windows, there are {found:,}: all of them are used.")
    if warnings and texts.strict:
        raise DataError(f"{' '.join(warnings)} Leave strict (--strict) out to go on with warnings.")
    return WindowData(texts, preprocess, np.concatenate(rows)[: options.windows], warnings)


@dataclass(frozen=True, eq=False)
class _Windows(Reader):
    def batch(self, number: int, indices: list[int]) -> Batch:
        windows = [self.data.window(index) for index in indices]
        return token_batch(
            self.data.preprocess,
            [self.data.tokens(index) for index in indices],
            indices,
            [self.data.item_name(index) for index in indices],
            number,
            firsts=[window.first - window.start + self.data.lead for window in windows],
            behind=self.data.texts.options.stride == 1,
        )
