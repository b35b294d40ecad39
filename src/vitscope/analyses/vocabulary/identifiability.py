"""At which block of a language model is the next token known?

The class of a token is the token that comes next. What stands in the residual stream goes through the model's own final
norm and head, as if the network ended there; rank = how many words have a larger logit, r = 1 - rank / |V|, and a token
is *known* where the rank is 0. Kept are rank and log-probability, never a logit.

Read are the embedding, the residual between the branches and after each block and, with `branches`, what attention and
MLP write, each by itself. What they *add* is the change of log p: attention from `resid_pre` to `resid_mid`, the MLP on
to `resid_post` (where blocks are parallel and there is no `resid_mid`, it is resid_pre + attn_out). Tables:

* `vocabulary_identifiability`: r, the share that is known and log p, per block, point and kind of token;
* `vocabulary_change`: what the block, its attention and its MLP add to log p, and how often it rises;
* `vocabulary_known`: from which block on the next token stays the first guess, up to the last block; 'never' too;
* `maps_vocabulary`, `vocabulary_topk`: texts of the gallery, token by token.

Kinds of tokens (`layout.groups`) are those of the token that foresees. Intervals are over documents.

Cost: 1 + 4 L projections on the vocabulary (1 + 2 L without branches) of the T tokens that have a target, T C |V|
multiplications each; the forward pass has about 12 L T C^2 + T C |V|. With L = 5, |V| = 512, C = 64 that is
2.5 passes, with 30, 49,152 and 576 it is 23. Memory: 16 MB of logits, 60 L numbers per document (1,000 rows at most).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from vitscope.analyses.base import Headline, register_analysis, zeros
from vitscope.analyses.vocabulary.analysis import VocabularyAnalysis
from vitscope.analyses.vocabulary.guesses import guess_rows, map_rows
from vitscope.data.batch import Batch
from vitscope.models import Model
from vitscope.statistics.clusters import Kind, Mean, over_clusters

POINTS = ("resid_post", "attn_out", "mlp_out")
GROUPS = ("first", "text", "separator")
ALL = "all"
VALUES: dict[str, Kind] = {
    "identifiability": "fraction", "rate": "share", "log_probability": "number", "change": "number", "rose": "share"
}  # fmt: skip
EMBEDDING, NEVER = "embedding", "never"


@register_analysis("vocabulary.identifiability")
class Identifiability(VocabularyAnalysis):
    """Rank and log-probability of the next token after every block.

    branches: read also what attention and MLP write, by itself; twice the cost. guesses: words kept per token, for
    texts of the gallery.
    """

    optional = tuple(f"{value}_{end}" for value in VALUES for end in ("low", "high"))  # one document has none

    def __init__(self, branches: bool = True, guesses: int = 3) -> None:
        super().__init__()
        self.branches, self.guesses = branches, guesses

        self._log_p, self._since = torch.empty(0), torch.empty(0)  # (T,) of the batch under way, after its last block

    def needs(self, model: Model) -> list[str]:
        mid = ["resid_pre", "attn_out"] if self._no_mid(model) else ["resid_mid"]
        wanted = {"resid_post", *mid, *(POINTS if self.branches else ())}
        return ["blocks.0.hook_resid_pre", *(f"blocks.*.hook_{point}" for point in sorted(wanted))]

    @staticmethod
    def _no_mid(model: Model) -> bool:
        return "blocks.0.hook_resid_mid" in model.absent

    def start_sums(self, documents: int) -> None:
        blocks, d, g = self.layout.blocks, documents, len(GROUPS)
        self.sums = {
            "tokens": zeros(d, g, dtype=torch.int64),
            "values": zeros(blocks, d, g, len(POINTS), len(VALUES)),
            "embedding": zeros(d, g, len(VALUES)),
            "known": zeros(d, g, blocks + 2, dtype=torch.int64),  # the embedding, the blocks, never
        }

    def update(self, block: int, points: Mapping[str, Tensor], batch: Batch) -> None:
        asked = batch.targets >= 0  # (B, N)
        if not 0 <= block < self.layout.blocks or not asked.any():
            return
        x = {name.rpartition("hook_")[2]: value[asked.to(value.device)] for name, value in points.items()}  # (T, C)
        if block == 0:
            self._begin(x["resid_pre"], asked, batch)
        if "resid_mid" not in x:
            x["resid_mid"] = x["resid_pre"] + x["attn_out"]
        levels = {point: self._read(x[point]) for point in (POINTS if self.branches else POINTS[:1])}
        rank, after = levels["resid_post"]
        between = self._read(x["resid_mid"])[1]
        changes = {"resid_post": after - self._log_p, "attn_out": between - self._log_p, "mlp_out": after - between}
        absent = rank, after  # of a branch that is not read; its level is no row of any table
        values = [self._values(*levels.get(point, absent), changes[point]) for point in POINTS]
        self._add(self.sums["values"][block], torch.stack(values, 1))
        self._since = torch.where(rank == 0, self._since.clamp(max=block + 1), self.layout.blocks + 1)
        self._log_p = after
        self._show(block, points[f"blocks.{block}.hook_resid_post"], rank, after, batch)

    def _begin(self, embedding: Tensor, asked: Tensor, batch: Batch) -> None:
        """What is known of the batch's T tokens before its first block."""
        groups = self.layout.groups(batch)
        kind = torch.stack([groups[group] for group in GROUPS]).int().argmax(0)  # (B, N)
        document = self.rows_of(batch)[:, None].expand_as(kind)
        self._where = (document * len(GROUPS) + kind)[asked]  # (T,): row of the sums, documents and kinds in one
        self._targets = batch.targets[asked]
        rank, self._log_p = self._read(embedding)
        self._since = torch.where(rank == 0, 0, self.layout.blocks + 1)  # place in the sums of 'known'
        self._add(self.sums["tokens"], torch.ones_like(self._where))
        self._add(self.sums["embedding"], self._values(rank, self._log_p, torch.zeros_like(self._log_p)))

    def end_batch(self, batch: Batch) -> None:
        if (batch.targets >= 0).any():
            self._add(self.sums["known"], torch.nn.functional.one_hot(self._since, self.layout.blocks + 2))

    def _read(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens (T, C) -> rank of the next token and its log-probability, (T,) float64 on the CPU."""
        rank, log_p = self.model.rank_and_log_probability(x, self._targets.to(x.device))
        return rank.cpu().double(), log_p.cpu().double()

    def _values(self, rank: Tensor, log_p: Tensor, change: Tensor) -> Tensor:
        """(T,) each -> (T, values)"""
        return torch.stack([1 - rank / self.model.num_classes, rank == 0, log_p, change, change > 0], 1)

    def _add(self, sums: Tensor, values: Tensor) -> None:
        """Values of tokens (T, ...) to the sums of their documents and kinds (D, G, ...)."""
        flat = sums.view(self.documents * len(GROUPS), -1)  # the same memory
        flat.index_add_(0, self._where, values.flatten(1).to(sums.dtype) if values.ndim > 1 else values[:, None])

    def _show(self, block: int, x: Tensor, rank: Tensor, log_p: Tensor, batch: Batch) -> None:
        """Rows of the texts in the gallery."""
        shown = [i for i, number in enumerate(batch.indices.tolist()) if number in self.setting.gallery]
        if not shown or self.setting.control:
            return
        self.emit("maps_vocabulary", map_rows(block, rank, log_p, batch, shown))
        if self.guesses and callable(getattr(self.model.preprocess, "words", None)):
            self.emit("vocabulary_topk", guess_rows(block, x, batch, shown, self.model, self.guesses))

    def _means(self, sums: Tensor, values: Mapping[str, Kind]) -> Iterator[tuple[str, dict[str, Mean]]]:
        """Sums (D, G, values) -> (kind of tokens, {value: mean}) for all tokens and for each kind that there is."""
        tokens = self.sums["tokens"]
        for group in (ALL, *GROUPS):
            g = slice(None) if group == ALL else slice(GROUPS.index(group), GROUPS.index(group) + 1)
            n = tokens[:, g].sum(1)
            if int(n.sum()):
                found = {v: over_clusters(sums[:, g, i].sum(1), n, kind) for i, (v, kind) in enumerate(values.items())}
                yield group, {value: mean for value, mean in found.items() if mean is not None}

    def tables(self) -> dict[str, pd.DataFrame]:
        level, change = [], []
        for group, means in self._means(self.sums["embedding"], VALUES):
            level.append({"block": 0, "point": "resid_pre", "tokens": group} | _level(means))
        for block in range(self.layout.blocks):
            for p, point in enumerate(POINTS):
                for group, means in self._means(self.sums["values"][block][:, :, p], VALUES):
                    key: dict[str, Any] = {"block": block, "point": point, "tokens": group}
                    change.append(key | _columns(means, ("change", "rose")))
                    if self.branches or point == "resid_post":
                        level.append(key | _level(means))
        known = pd.DataFrame(self._known())
        if not len(known):
            return {}
        return {
            "vocabulary_identifiability": pd.DataFrame(level).assign(n_words=self.model.num_classes),
            "vocabulary_change": pd.DataFrame(change),
            "vocabulary_known": known,
        }

    def _known(self) -> list[dict[str, Any]]:
        """From which block on: the share of tokens, and of those that are known by then."""
        names = [EMBEDDING, *map(str, range(self.layout.blocks)), NEVER]
        rows = []
        for group, means in self._means(self.sums["known"], dict.fromkeys(names, "share")):
            so_far = 0.0
            for name, mean in means.items():
                so_far += mean.value if name != NEVER else 0.0
                key = {"known_from": name, "tokens": group, "known": 100 * so_far}
                rows.append(key | _columns({"rate": mean}, ("rate",)))
        return rows

    def summary(self) -> dict[str, Headline]:
        tables = self.tables()
        if not tables:
            return {}
        known = tables["vocabulary_known"]
        rows = known[known["tokens"] == ALL].to_dict("records")
        last, n = rows[-1]["known"], int(rows[-1]["n_documents"])
        found = {"known": Headline(last, "%", n, "tokens whose next one is the first guess after the last block")}
        if last > 0:
            half = next(row["known_from"] for row in rows if row["known"] >= last / 2)
            note = "median over the tokens that are known at the end; -1 is the embedding"
            found["known_from"] = Headline(-1.0 if half == EMBEDDING else float(half), "block", n, note)
        return found


def _level(means: Mapping[str, Mean]) -> dict[str, float]:
    return _columns(means, ("identifiability", "rate", "log_probability"))


def _columns(means: Mapping[str, Mean], values: tuple[str, ...]) -> dict[str, float]:
    """Each value with its interval, shares in per cent; then the number of tokens and documents."""
    row: dict[str, float] = {}
    for value in values:
        mean = means[value]
        row |= mean.columns(value, 100 if value in ("rate", "rose") else 1)
    return row | {"n_tokens": mean.tokens, "n_documents": mean.images}
