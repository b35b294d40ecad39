"""What changes in which block when a word is swapped, and how far behind it?

Every stretch of a changed text goes through the model beside the same stretch of the clean one. For tokens that are the
same in both (`pairing.py`), per block and by how many tokens they stand behind a changed word:

* cosine: between the two residual streams after the block; 1 is a token that does not notice;
* change: log p of the next token, read from that residual by the model's own final norm and head, less the same of the
  clean text. Only next tokens that are the same in both count.

'before' are tokens in front of the first changed word: a causal model cannot know yet, and both are exactly alike.
Distance 0 is the last token of the changed word itself, beside the last one that the word had. Intervals are over
documents. Cost: two more passes of the changed texts, and 2 L projections on the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from vitscope.analyses.base import Headline, register_analysis, zeros
from vitscope.analyses.vocabulary.analysis import VocabularyAnalysis
from vitscope.data import Data
from vitscope.data.batch import Batch
from vitscope.errors import UnsuitableDataError, UnsupportedModelError
from vitscope.models import Model
from vitscope.robustness.text.names import GROUPS
from vitscope.robustness.text.pairing import Pairing, Rows, pair_tokens
from vitscope.statistics.clusters import over_clusters

TOGETHER = 16  # stretches per pass, each with its clean one
VALUES = ("cosine", "change")
POINT = "blocks.*.hook_resid_post"


@register_analysis("swapped.lens")
class SwappedLens(VocabularyAnalysis):
    """Residual streams and log p of clean and changed texts, block by block: `vitscope.evaluate(..., lens=True)`."""

    default = False
    optional = tuple(f"{value}{end}" for value in VALUES for end in ("", "_low", "_high"))

    def start(self, model: Model) -> None:
        self.conditions: Sequence[str] = ()
        super().start(model)
        offsets = getattr(model.preprocess, "offsets", None)
        if offsets is None or offsets("a") is None:
            raise UnsupportedModelError(
                f"The tokenizer of {model.name} does not say which characters a token stands for, so that clean and "
                "changed texts cannot be laid side by side: leave out lens (--lens)."
            )

    def start_sums(self, documents: int) -> None:
        shape = (len(self.conditions), self.layout.blocks, len(GROUPS), documents)
        self.sums = {value: zeros(*shape) for value in VALUES}
        counts = (len(self.conditions), len(GROUPS), documents)
        self.sums |= {f"n_{value}": zeros(*counts, dtype=torch.int64) for value in VALUES}

    def check_data(self, data: Data) -> None:
        super().check_data(data)
        if not getattr(data, "changes", ()):
            raise UnsuitableDataError(f"{data.name} has no changed texts: `evaluate --swap --lens` makes them.")

    def prepare(self, data: Any, model: Model) -> None:
        self.data, self.conditions = data, data.conditions
        self._last: tuple[tuple[int, int], Pairing | None] = ((-1, -1), None)
        super().prepare(data, model)

    def end_batch(self, batch: Batch) -> None:
        documents = self.rows_of(batch).tolist()
        found = [(self._rows(item), document) for item, document in zip(batch.indices.tolist(), documents)]
        pairs = [(condition, rows, d) for (condition, rows), d in found if rows is not None]
        for first in range(0, len(pairs), TOGETHER):
            self._compare(pairs[first : first + TOGETHER])

    def _rows(self, item: int) -> tuple[int, Rows | None]:
        """Condition of an item, and its stretch of both texts; None for a clean one."""
        condition, passage, start, stop = self.data.piece(item)
        if condition == 0:
            return condition, None
        if self._last[0] != (condition, passage):
            clean, altered = self.data.passage_pair(condition, passage)
            self._last = (condition, passage), pair_tokens(clean, altered, self.model.preprocess)
        assert self._last[1] is not None
        longest = self.data.longest(self.model.preprocess) - len(self.data.leading(self.model.preprocess))
        return condition, self._last[1].rows(start, stop, longest)

    def _compare(self, pairs: Sequence[tuple[int, Rows, int]]) -> None:
        """Changed and clean stretches in one pass, the clean ones last."""
        preprocess = self.model.preprocess
        lead = self.data.leading(preprocess)
        rows = [[*lead, *pair.new] for _, pair, _ in pairs] + [[*lead, *pair.old] for _, pair, _ in pairs]
        inputs = self.model.place(preprocess.pad(rows))
        new, old, group, condition, document, follows, following = _places(pairs, len(lead))

        def on_block(block: int, points: Mapping[str, Tensor]) -> None:
            if not 0 <= block < self.layout.blocks:
                return
            x = points[POINT.replace("*", str(block))]
            a, b = x[new[0], new[1]], x[old[0], old[1]]  # (P, C)
            self._add("cosine", block, F.cosine_similarity(a.double(), b.double(), dim=-1), condition, group, document)
            wanted = following.to(x.device)
            logs = [self.model.rank_and_log_probability(side[follows], wanted)[1].double() for side in (a, b)]
            which = (condition[follows], group[follows], document[follows])
            self._add("change", block, logs[0] - logs[1], *which)

        self.model.stream(inputs, [POINT], on_block)
        for value, chosen in (("cosine", torch.ones_like(follows)), ("change", follows)):
            counts = self.sums[f"n_{value}"]
            where = (condition[chosen], group[chosen], document[chosen])
            counts.index_put_(where, torch.ones_like(where[0]), accumulate=True)

    def _add(self, value: str, block: int, values: Tensor, condition: Tensor, group: Tensor, document: Tensor) -> None:
        self.sums[value][:, block].index_put_((condition, group, document), values.cpu(), accumulate=True)

    def tables(self) -> dict[str, pd.DataFrame]:
        rows = [
            {"condition": condition, "block": block, "distance": distance, **self._means(c, block, g)}
            for c, condition in enumerate(self.conditions)
            for block in range(self.layout.blocks)
            for g, distance in enumerate(GROUPS)
            if int(self.sums["n_cosine"][c, g].sum())
        ]
        return {"swapped_lens": pd.DataFrame(rows)} if rows else {}

    def _means(self, condition: int, block: int, group: int) -> dict[str, float]:
        """Each value with its interval and the number of tokens; NaN where no token is followed by the same one."""
        row: dict[str, float] = {}
        for value in VALUES:
            counts = self.sums[f"n_{value}"][condition, group]
            found = over_clusters(self.sums[value][condition, block, group], counts)
            mean = (math.nan,) * 3 if found is None else (found.value, found.low, found.high)
            row |= dict(zip((value, f"{value}_low", f"{value}_high", f"n_{value}"), (*mean, int(counts.sum()))))
        return {**row, "n_documents": int((self.sums["n_cosine"][condition, group] > 0).sum())}

    def summary(self) -> dict[str, Headline]:
        found = {}
        for table in self.tables().values():
            last = table[(table["block"] == self.layout.blocks - 1) & (table["distance"] == "1")]
            for row in last.to_dict("records"):
                note = "residual one token behind a changed word beside the clean one, after the last block"
                found[f"{row['condition']}_cosine"] = Headline(float(row["cosine"]), "", int(row["n_documents"]), note)
        return found


def _places(pairs: Sequence[tuple[int, Rows, int]], lead: int) -> tuple[Any, ...]:
    """All pairs of tokens of some stretches: places of the new and the old ones as (row, token), group, condition,
    document (P,), does the same token follow? (P,), and which, of those where it does."""

    def joined(parts: Sequence[Any]) -> Tensor:
        return torch.cat([torch.as_tensor(part) for part in parts])

    sizes = [len(rows.new_at) for _, rows, _ in pairs]
    row = joined([torch.full((n,), i) for i, n in enumerate(sizes)])
    new = row, joined([rows.new_at for _, rows, _ in pairs]) + lead
    old = row + len(pairs), joined([rows.old_at for _, rows, _ in pairs]) + lead
    group = joined([rows.group for _, rows, _ in pairs])
    condition = joined([torch.full((n,), c) for n, (c, _, _) in zip(sizes, pairs)])
    document = joined([torch.full((n,), d) for n, (_, _, d) in zip(sizes, pairs)])
    follows = joined([rows.follows for _, rows, _ in pairs])
    following = [rows.new[i + 1] for _, rows, _ in pairs for i in rows.new_at[rows.follows].tolist()]
    return new, old, group, condition, document, follows, torch.tensor(following, dtype=torch.int64)
