"""What does foreseeing the next token rest on? Hide tokens, silence heads, and compare the same tokens.

| knock-out | what is done, in every block | compared |
|---|---|---|
| first | no later token sees the first one, the attention sink | all tokens but the first |
| distance d | no token sees the one d before it | tokens that have one d before them |
| head | one head of one block writes nothing (its `hook_z` is 0) | all tokens |

Hidden keys get the score -inf, so that a row of attention still sums to 1; a token always sees itself. Both sides are
the same tokens of the same texts; intervals are those of the paired difference, over documents.

Cost: a forward pass of each batch per knock-out, 1 + distances + blocks x heads of them. Memory: that of a forward pass
with logits, and 5 numbers per knock-out and document (1,000 rows at most).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from vitscope.analyses.base import Headline, register_analysis, zeros
from vitscope.analyses.vocabulary.analysis import VocabularyAnalysis
from vitscope.capture import Edit
from vitscope.capture.points import Point
from vitscope.data.batch import Batch
from vitscope.errors import VitscopeError
from vitscope.models import Model
from vitscope.statistics.clusters import over_clusters
from vitscope.tasks.language import token_losses

DISTANCES = (1, 2, 4, 8, 16, 32)
SCORES = "blocks.*.attn.hook_attn_scores"


@dataclass(frozen=True)
class Knockout:
    """One head, or what tokens may not see: the one `distance` before them, at 0 the first of the text."""

    distance: int = 0
    block: int | None = None
    head: int | None = None

    @property
    def name(self) -> str:
        return "first token" if self.distance == 0 else f"{self.distance} before"

    def edits(self, valid: Tensor) -> dict[str, Edit]:
        """What `model.edits` is given for texts whose tokens are `valid` (B, N)."""
        if self.head is not None:
            return {f"blocks.{self.block}.attn.hook_z": self._silence}
        hidden = hidden_keys(valid, self.distance)[:, None]  # (B, 1, N, N)
        return {SCORES: lambda scores, point: scores.masked_fill(hidden.to(scores.device), float("-inf"))}

    def _silence(self, z: Tensor, point: Point) -> Tensor:
        assert self.head is not None
        z = z.clone()  # (B, H, N, D)
        z[:, self.head] = 0
        return z

    def reaches(self, tokens: int) -> Tensor:
        """(N,) bool: the places that it can change at all."""
        first = 0 if self.head is not None else max(1, self.distance)
        return torch.arange(tokens) >= first


def hidden_keys(valid: Tensor, distance: int) -> Tensor:
    """(B, N) -> (B, N, N) bool: which query may not see which key. At 0 it is the first token that is hidden.

    Queries that are padding keep what they see: a row of -inf has no softmax.
    """
    place = torch.arange(valid.shape[1])
    back = place[:, None] - place
    hidden = (back > 0) & (place == 0) if distance == 0 else back == distance
    return hidden & valid[:, :, None].cpu()


@register_analysis("vocabulary.knockout")
class KnockoutStudy(VocabularyAnalysis):
    """Log-probability of the next token with tokens hidden from attention, and with heads silenced.

    distances: how far before a token the hidden one stands. heads: silence each head, too: most of the time.
    """

    default = False  # asked for by name: a forward pass per head
    optional = ("change_low", "change_high", "accuracy_change_low", "accuracy_change_high")

    def __init__(self, distances: Sequence[int] = DISTANCES, heads: bool = True) -> None:
        super().__init__()
        if wrong := [d for d in distances if isinstance(d, bool) or not isinstance(d, int) or d < 1]:
            raise VitscopeError(
                f"distances: {wrong[0]!r} is none; expected whole numbers from 1 on, such as [1, 2, 4]."
            )
        self.distances, self.heads = [*dict.fromkeys(distances)], heads

    def start(self, model: Model) -> None:
        layout = model.layout
        heads = [(block, head) for block in range(layout.blocks) for head in range(layout.heads)] if self.heads else []
        self.tried = [Knockout(distance) for distance in (0, *self.distances)]
        self.tried += [Knockout(block=block, head=head) for block, head in heads]
        super().start(model)

    def start_sums(self, documents: int) -> None:
        shape = documents, len(self.tried)
        self.sums = {key: zeros(*shape) for key in ("clean", "after")}
        self.sums |= {key: zeros(*shape, dtype=torch.int64) for key in ("tokens", "clean_right", "after_right")}

    def end_batch(self, batch: Batch) -> None:
        assert batch.outputs is not None
        if not (batch.targets >= 0).any():
            return
        clean = token_losses(batch.outputs, batch.targets)
        valid = torch.ones_like(batch.targets, dtype=torch.bool) if batch.valid is None else batch.valid
        inputs = self.model.place(batch.inputs)
        for number, knockout in enumerate(self.tried):
            counted = (batch.targets >= 0) & knockout.reaches(batch.targets.shape[1])
            if counted.any():
                with self.model.edits(knockout.edits(valid)):
                    after = token_losses(self.model(inputs), batch.targets)
                self._add(number, counted, clean, after, self.rows_of(batch))

    def _add(
        self, number: int, counted: Tensor, clean: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor], rows: Tensor
    ) -> None:
        found = {"tokens": counted, "clean": -clean[0], "after": -after[0]}
        found |= {"clean_right": clean[1], "after_right": after[1]}
        for key, values in found.items():
            sums = self.sums[key]
            sums[:, number].index_add_(0, rows, (values * counted).sum(1).to(sums.dtype))

    def tables(self) -> dict[str, pd.DataFrame]:
        tokens, heads = [], []
        for number, knockout in enumerate(self.tried):
            found = self._row(number)
            if found is not None and knockout.head is None:
                tokens.append({"hidden": knockout.name, "distance": knockout.distance} | found)
            elif found is not None:
                heads.append({"block": knockout.block, "head": knockout.head} | found)
        tables = {"vocabulary_knockout_tokens": tokens, "vocabulary_knockout_heads": heads}
        return {name: pd.DataFrame(rows) for name, rows in tables.items() if rows}

    def _row(self, number: int) -> dict[str, Any] | None:
        """Before, after and change of log p (nats) and of the share of right first guesses (%); None without tokens."""
        tokens, clean, after, clean_right, after_right = (
            self.sums[key][:, number] for key in ("tokens", "clean", "after", "clean_right", "after_right")
        )
        change = over_clusters(after - clean, tokens)
        guessed = over_clusters(after_right - clean_right, tokens, "change")
        if change is None or guessed is None:
            return None
        n = int(tokens.sum())
        return {
            "log_probability": float(clean.sum()) / n, "log_probability_after": float(after.sum()) / n,
            **change.columns("change"),
            "accuracy": 100 * int(clean_right.sum()) / n, "accuracy_after": 100 * int(after_right.sum()) / n,
            **guessed.columns("accuracy_change", 100),
            "n_tokens": n, "n_documents": change.images,
        }  # fmt: skip

    def summary(self) -> dict[str, Headline]:
        tables, found = self.tables(), {}
        for row in tables.get("vocabulary_knockout_tokens", pd.DataFrame()).to_dict("records")[:1]:
            note = f"{row['hidden']} hidden: change of log p of the next token"
            found["first_token"] = Headline(float(row["change"]), "nats", int(row["n_documents"]), note)
        heads = tables.get("vocabulary_knockout_heads", pd.DataFrame())
        for row in heads.sort_values("change").to_dict("records")[:1] if len(heads) else ():
            note = f"block {row['block']}, head {row['head']} silenced, the most needed: change of log p"
            found["head"] = Headline(float(row["change"]), "nats", int(row["n_documents"]), note)
        return found
