"""Which parts of a model make its answer? The logit of a class, split over embedding, heads, MLPs and biases.

Behind its last block the residual stream is a sum: embedding, what each head and each MLP wrote, and biases. The head
is linear. The final norm is held at the scale that it had for this image (formula: `models/linear_readout.py`); then
each part has a share of the logit, and the shares add up to it, exactly but for rounding. What this leaves out: a part
that changes the *scale*, and what a part does by way of later ones. It is the *direct* effect.

The zero of a logit means nothing (add a constant to all logits: the answer is the same), so shares are compared with
those for another class, drawn at random for each image: the null. (Of a difference of two logits: the difference of
two classes drawn at random.) `specific` is the one minus the other: what a part says for this class rather than for
any; the parts' shares of all that is specific add up to 100 %.

Tables:

* `causes_attribution`: every part, for all images and for those that the model answers right and wrong: mean with its
  interval, mean size whatever the sign, null, specific, share;
* `causes_attribution_blocks`: the same for attention and MLP of a block, with the sum so far;
* `causes_attribution_top`: what the k best heads carry together. They are chosen on one half of the images and
  measured on the other, and the other way round, so that luck does not count; beside it k heads drawn at random.

Intervals are over images, or over documents of a text. Costs one forward pass and a few products with vectors: only
what reaches the head is taken apart, the class token or the mean over tokens; of a text each token that has a target.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import pandas as pd
import torch
from torch import Tensor

from vitscope.analyses.base import Headline, register_analysis, zeros
from vitscope.analyses.bundles import BundledAnalysis
from vitscope.analyses.causes.attribution_tables import INTERVALS, attribution_tables
from vitscope.analyses.causes.question_words import in_words
from vitscope.analyses.causes.questions import Question, items_of, random_others
from vitscope.data import Data
from vitscope.data.batch import Batch
from vitscope.errors import UnsuitableDataError, UnsupportedModelError, VitscopeError
from vitscope.models import Model
from vitscope.tasks import task_of

Positions = Literal["all", "last"]
SLACK = 1e-3  # of the sizes of all parts together: a larger gap between sum and logit is no rounding


@register_analysis("causes.attribution")
class Attribution(BundledAnalysis):
    """The logit of a class, split over the parts of the model that wrote it.

    target: label (the true class), prediction, or one class for all, by number or name. minus: none, best (the best
    other class) or a class: the difference to its logit is split. positions: of a text, all tokens that have a target
    or the last one.
    """

    default = False
    optional = INTERVALS  # one image has none

    def __init__(self, target: int | str = "label", minus: int | str = "none", positions: Positions = "all") -> None:
        super().__init__()
        if positions not in ("all", "last"):
            raise VitscopeError(f"positions={positions!r} is not known: expected all or last.")
        self.target, self.minus, self.positions = target, minus, positions

    def needs(self, model: Model) -> list[str]:
        return model.decomposition.needs()

    def start(self, model: Model) -> None:
        self.model, self.split = model, model.decomposition
        self.readout, self.layout = self.split.readout, model.layout  # raises where logits are no sum over parts
        self.split.needs()
        if self.readout.each and not getattr(self.layout, "causal", False):
            raise UnsupportedModelError(f"{model.name} does not foresee the next token, so there is no logit to split.")
        if model.num_classes < 2:
            raise UnsupportedModelError(f"{model.name} has one class: there is no other to compare its logit with.")
        self.question = Question.asked(self.target, self.minus, model, self.setting.classes)
        self.start_bundles()

    def start_sums(self, rows: int) -> None:
        self.sums = {
            "n": zeros(rows, 2),  # wrong, right
            "values": zeros(rows, 2, 3, len(self.split.parts)),  # shares, their sizes, and those of a random class
            "gap": zeros(1),  # |sum - logit|
        }

    def check_data(self, data: Data) -> None:
        task = task_of(data)
        if self.readout.each and getattr(data, "documents", None) is None:
            raise UnsuitableDataError(f"{self.name} needs texts for {self.model.name}: try --data pydoc.")
        if not self.readout.each and not task.one_class:
            raise UnsuitableDataError(
                f"{self.name} asks for one class of each {task.words.item}, and {data.name} is for {task.name}."
            )
        task.check(self.model, data)

    def update(self, block: int, points: Mapping[str, Tensor], batch: Batch) -> None:
        if not 0 <= block < self.layout.blocks:
            return
        if block == 0:
            self._begin(points["blocks.0.hook_resid_pre"], batch)
        kept = {name: self._items(x) for name, x in self.split.block_points(block, points).items()}
        self._kept.append(self._given(self.split.block_rows(block, kept)) if self.question.foreseen else kept)
        if block == self.layout.blocks - 1:
            last = self._items(self.split.rows(points[f"blocks.{block}.hook_resid_post"]))
            self._scale = self.readout.inverse_scale(last)  # (n, R)

    def _begin(self, embedding: Tensor, batch: Batch) -> None:
        """The items of a batch; where they are known, the directions of their classes."""
        self._image, self._token, self._labels = items_of(batch, self.readout.each, self.positions == "last")
        self._kept: list[Tensor | dict[str, Tensor]] = []
        self._embedding = self._items(self.split.rows(embedding)).unsqueeze(-2)  # (n, R, 1, C)
        if self.question.foreseen:
            self._direct(batch, None)

    def _items(self, x: Tensor) -> Tensor:
        """Rows of the batch (B, R, ...) -> of the items (n, R, ...); a copy, so that the point itself can go."""
        if self.readout.each:
            return x[self._image, self._token].unsqueeze(1)
        return x[self._image.to(x.device)]

    def _direct(self, batch: Batch, logits: Tensor | None) -> None:
        """What the logits take from the rows, (n, heads, C, 2): of the classes asked for, and of random ones."""
        target, minus = self.question.classes(self._labels, logits)
        drawn = (self._token, batch.indices[self._image], self.model.num_classes, self.setting.seed)
        null = random_others(target, *drawn)
        second = None if minus is None else random_others(null, *drawn, draw=1)
        chosen, biases = [], []
        for one, other in ((target, minus), (null, second)):
            taken, *offsets = self.readout.directions(one, other)
            chosen.append(taken)
            biases.append(torch.stack(offsets, -1))  # (n, 2)
        self._directions, self._biases = torch.stack(chosen, -1), torch.stack(biases, -1)
        self._target, self._minus = target, minus

    def _given(self, parts: Tensor) -> Tensor:
        """Parts of rows (n, R, P, C) -> what they give, but for the scale (n, R, P, 2)."""
        return parts @ self._directions

    def end_batch(self, batch: Batch) -> None:
        assert batch.outputs is not None
        if not len(self._labels):
            return
        where = (self._image, self._token) if self.readout.each else (self._image,)
        logits = batch.outputs[tuple(w.to(batch.outputs.device) for w in where)].cpu()  # (n, K)
        if not self.question.foreseen:
            self._direct(batch, logits)
        given = [self._given(self._embedding)]
        for block, kept in enumerate(self._kept):
            given.append(kept if isinstance(kept, Tensor) else self._given(self.split.block_rows(block, kept)))
        shares = (torch.cat(given, 2) * self._scale[..., None, None]).sum(1)  # (n, P, 2)
        shares = torch.cat([shares, self._biases], 1).double().cpu()
        self._check(shares[..., 0], logits)
        values = torch.stack([shares[..., 0], shares[..., 0].abs(), shares[..., 1]], 1)  # (n, 3, P)
        right = (logits.argmax(-1) == self._labels).long()
        rows = self.rows_of(batch)[self._image]
        self.sums["n"].index_put_((rows, right), torch.ones(len(rows), dtype=torch.float64), accumulate=True)
        self.sums["values"].index_put_((rows, right), values, accumulate=True)
        self._kept = []

    def _check(self, shares: Tensor, logits: Tensor) -> None:
        """Shares (n, P) add up to the logits: a model that does more than its rows say is found out here."""
        expected = logits.gather(1, self._target[:, None])[:, 0].double()
        if self._minus is not None:
            expected = expected - logits.gather(1, self._minus[:, None])[:, 0].double()
        gap = (shares.sum(1) - expected).abs()
        if bool((gap > SLACK * (1 + shares.abs().sum(1))).any()):
            raise VitscopeError(
                f"The parts of {self.model.name} do not add up to its logits (they are off by {float(gap.max()):.2g}). "
                "It does something that its row in vitscope.architectures.families does not say, or points are edited."
            )
        self.sums["gap"] += gap.sum()

    def tables(self) -> dict[str, pd.DataFrame]:
        return attribution_tables(self.sums["n"], self.sums["values"], self.split.parts, self.setting.seed)

    def summary(self) -> dict[str, Headline]:
        tables = self.tables()
        if not tables:
            return {}
        top = tables.get("causes_attribution_top")
        n = int(self.sums["n"].sum())
        note = "mean distance of the sum over all parts from the logit"
        found = {"attribution_gap": Headline(float(self.sums["gap"]) / n, "logits", n, note)}
        if top is not None and len(five := top[top["heads"] == min(5, int(top["heads"].max()))]):
            row = five.iloc[0]
            logit = in_words(self.question.target, self.question.minus)
            note = f"of {logit}, beyond a random class; heads are chosen on the other half of the images"
            found["attribution_best_heads"] = Headline(float(row["share"]), "%", int(row["n"]), note)
        return found
