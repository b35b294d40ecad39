"""Texts with one word exchanged as partners of clean ones, for `causes.patching`.

Both sides must have tokens in the same places, so a word becomes another one of as many tokens, which stands elsewhere
in the same text. Words that hold a sentence together are left alone.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from vitscope.analyses.base import Setting
from vitscope.analyses.causes.pairs import Pairs, Partners, register_pairs
from vitscope.architectures.text_layout import token_ids
from vitscope.data.batch import Batch
from vitscope.data.randomness import derive_seed
from vitscope.errors import UnsupportedModelError
from vitscope.models import Model
from vitscope.models.inputs import tokenizing
from vitscope.robustness.text.stop_words import is_stop_word


@register_pairs("swap")
class SwappedWord(Pairs):
    """One word of the text, drawn by (seed, text), becomes another one of it."""

    groups: ClassVar = ("swapped", "before", "after")

    def start(self, model: Model, setting: Setting) -> None:
        super().start(model, setting)
        if not model.row.text:
            raise UnsupportedModelError(f"Pairs 'swap' exchange words, and {model.name} takes pictures.")
        self.tokenizer = tokenizing(model)

    def partners(self, batch: Batch) -> Partners:
        ids = token_ids(batch.inputs).cpu()
        text = self.model.layout.groups(batch)["text"].cpu()
        changed, first, last = ids.clone(), torch.full((len(ids),), -1), torch.zeros(len(ids), dtype=torch.int64)
        for row, (tokens, inside) in enumerate(zip(ids, text)):
            found = self.swap(tokens, inside, int(batch.indices[row]))
            if found is not None:
                first[row], last[row] = found[0], found[0] + len(found[1])
                changed[row, first[row] : last[row]] = found[1]
        inputs = {**batch.inputs, "input_ids": changed} if isinstance(batch.inputs, Mapping) else changed
        at = torch.arange(ids.shape[1])
        valid = torch.ones_like(text) if batch.valid is None else batch.valid.cpu()
        before, after = at < first[:, None], at >= last[:, None]
        marks = {"swapped": ~before & ~after, "before": before, "after": after}
        return Partners(inputs, first >= 0, {name: inside & valid for name, inside in marks.items()})

    def swap(self, tokens: Tensor, inside: Tensor, number: int) -> tuple[int, Tensor] | None:
        """(place, new tokens) in a text (N,) whose words are `inside` (N,) bool; None where no two words fit."""
        words = [(name, span) for name, span in self._words(tokens.tolist()) if bool(inside[slice(*span)].all())]
        generator = random.Random(derive_seed("swap", self.setting.seed, number))
        generator.shuffle(words)
        for name, (start, stop) in words:
            for other, (first, last) in words:
                if other.lower() != name.lower() and last - first == stop - start:
                    return start, tokens[first:last]
        return None

    def _words(self, tokens: list[int]) -> list[tuple[str, tuple[int, int]]]:
        """The words that may go, each with its first token and the one behind its last. Where spaces are written they
        begin a word; else every token does that is not marked as a part (##)."""
        names = self.tokenizer.words(tokens)
        spaced = any(name.startswith(" ") for name in names)
        begins = [not i or (name[:1] == " " if spaced else name[:2] != "##") for i, name in enumerate(names)]
        starts = [i for i, first in enumerate(begins) if first]
        spans = list(zip(starts, [*starts[1:], len(names)]))
        found = [("".join(name.removeprefix("##") for name in names[a:b]).strip(), (a, b)) for a, b in spans]
        return [(word, span) for word, span in found if len(word) > 2 and word.isalpha() and not is_stop_word(word)]
