"""The chosen texts of a dataset: what `load_texts` returns."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from vitscope.data.batch import Batch
from vitscope.data.dealing import Turn, check_numbers, place_of
from vitscope.data.text.options import TextOptions
from vitscope.data.text.source import LINES, WINDOWS, TextSource
from vitscope.data.text.texts import Names
from vitscope.data.text.tokenizer import Tokenizes, check_tokenizer

if TYPE_CHECKING:
    from vitscope.data.text.window_data import WindowData

_VERSION = "vitscope texts 1"  # changes whenever the recipe of the fingerprint does


@dataclass(frozen=True)
class TextItem:
    """One text as it was found: a line without the white space at its ends, or a whole document."""

    text: str
    index: int  # its number in the chosen data: stable, unique, 0-based
    name: str
    document: int  # the number of its document in the source


class OfTexts:
    """What all data made of texts answer to those who ask for classes: they have none."""

    task: Any = "language"
    classes: Sequence[str] = ()
    class_ids: Sequence[str] = ()
    num_classes = 0
    has_masks = False
    shards: Sequence[int] = ()

    def ordered_as(self, classes: Sequence[str]) -> Any:
        """There are no classes to be put in order."""
        return self

    def check_head(self, num_classes: int, model: str = "the model") -> None:
        """There are no classes that a head could be at odds with: whether a vocabulary fits is the tokenizer's."""


class TextData(OfTexts):
    """Texts in a fixed order. Nothing is read before it is asked for, and nothing is tokenized before there is a model.

    Where windows were asked for, these are the documents; `cut(preprocess)` gives the windows themselves.
    """

    def __init__(
        self,
        source: TextSource,
        order: Sequence[int] | np.ndarray,
        *,
        name: str,
        split: str,
        options: TextOptions | None = None,
        selection: dict[str, Any] | None = None,
        strict: bool = False,
        warnings: Sequence[str] = (),
    ) -> None:
        self.name, self.split, self.strict = name, split, strict
        self.options = options or TextOptions()
        self.unit = self.options.unit or source.unit
        self.selection = dict(selection or {})
        self.warnings = list(warnings)
        self._source, self._texts = source, source.texts(self.unit)
        self._place(np.asarray(order, dtype=np.int64))

    def _place(self, order: np.ndarray) -> None:
        self._order = order
        self.names = Names(self._texts, order)
        self.labels = [-1] * len(order)
        self.documents = self._texts.document[order]  # (N,): which document each text belongs to

    @property
    def root(self) -> Path | None:
        """The folder that names are relative to, or None for texts in memory."""
        return self._source.root

    @property
    def joiner(self) -> str:
        """What stands between two of its documents where they are joined."""
        return self._source.joiner

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, i: int) -> TextItem:
        return self.read(i)

    def read(self, i: int) -> TextItem:
        """Text `i`. Raises DataError that names the file."""
        index = place_of(i, len(self), "text")
        place = int(self._order[index])
        return TextItem(self._texts[place], index, self._texts.name(place), int(self.documents[index]))

    @property
    def passages(self) -> int:
        """How many texts windows are cut from: one where documents are joined."""
        return 1 if self.options.joined else len(self)

    def passage(self, i: int) -> str:
        """The text that windows are cut from: a document, or all of them as one."""
        if not self.options.joined:
            return self.read(i).text
        return self.joiner.join(self.read(j).text for j in range(len(self)))

    def subset(self, indices: Sequence[int]) -> TextData:
        """Some of these texts, in the given order, numbered anew from 0."""
        check_numbers(indices, len(self), "text")
        chosen = copy.copy(self)
        chosen.selection = {**self.selection, "subset": len(indices)}
        chosen.warnings = list(self.warnings)
        chosen._place(self._order[np.asarray(indices, dtype=np.int64)])
        return chosen

    def fingerprint(self) -> str:
        """A hash of what the files say, of how they are cut, and of which texts were chosen. The same everywhere."""
        how = {**self.options.changed(), "unit": self.unit}
        digest = hashlib.sha256("\n".join([_VERSION, self._source.content, repr(sorted(how.items())), ""]).encode())
        digest.update(self._order.astype("<i8").tobytes())
        return digest.hexdigest()[:32]

    def describe(self) -> dict[str, Any]:
        """Plain values for config.yaml."""
        return {
            "name": self.name,
            "split": self.split,
            **self.selection,
            **self.options.changed(),
            "unit": self.unit,
            "masks": False,
            "n": len(self),
            "num_classes": 0,
            "fingerprint": self.fingerprint(),
        }

    def cut(self, preprocess: Tokenizes) -> TextData | WindowData:
        """What goes into the model: the windows of a tokenizer where windows were asked for, else these texts."""
        check_tokenizer(preprocess, self.name)
        if self.unit != WINDOWS:
            return self
        from vitscope.data.text.window_data import cut_windows

        return cut_windows(self, preprocess)

    def batches(self, preprocess: Tokenizes, batch_size: int = 64, **turn: Unpack[Turn]) -> Iterator[Batch]:
        """Batches of tokens in a fixed order, padded on the right to the longest text of the batch.

        Batch `b` always holds texts `b * batch_size` and following, and belongs to process `b % world`. Texts that are
        too long for the model are cut and counted (`batch.shortened`; at the end of the pass a remark in `warnings`);
        with `strict` they raise DataError, unless the options say how many tokens are wanted. A text without tokens is
        in `batch.skipped`. `workers` processes tokenize ahead, started by `context` ('fork', 'spawn', ...).
        """
        from vitscope.data.text.batching import text_batches

        found = self.cut(preprocess)
        if found is not self:
            return found.batches(preprocess, batch_size, **turn)
        return text_batches(self, preprocess, batch_size, **turn)

    def remark(self, text: str) -> None:
        """Note something that came up while batches were made, once."""
        if text not in self.warnings:
            self.warnings.append(text)

    def __repr__(self) -> str:
        what = LINES if self.unit == LINES else "documents"
        return f"TextData({self.name} {self.split}: {len(self):,} {what})"
