"""How well does a language model foresee a text?

Perplexity is exp of the mean over all targets of -ln p(token | what stands before it in its window). What stands before
it decides the number, so each row says how the text was cut: tokens per window (`context`), tokens between the
beginnings of two windows (`stride`; a window scores only what no window before has scored), and whether each window
begins with the token that begins a text (`bos`). Windows that do not overlap never score their first token. A stride
of 1 is what is published for WikiText-103: all tokens of a window stand before what they foresee, the first window
scores all, every further one the token behind it.

The interval is over documents, which are independent where tokens are not: with l_d nats over n_d targets of document
d and m = sum l / sum n, the variance of m is D / (D - 1) sum (l_d - m n_d)^2 / (sum n)^2. One document has none.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pandas as pd
import torch
from torch import Tensor

from vitscope.analyses.base import Analysis, Headline, register_analysis, zeros
from vitscope.data.batch import Batch
from vitscope.errors import UnsuitableDataError, UnsupportedModelError
from vitscope.models import Model
from vitscope.statistics.intervals import Z95
from vitscope.tasks.language import LONGEST, token_losses


def ratio_interval(sums: Tensor, counts: Tensor) -> tuple[float, float, float]:
    """sum l / sum n with its 95 % interval over documents: (D,), (D,) -> (mean, low, high); NaN for one document."""
    there = counts > 0
    sums, counts = sums[there].double(), counts[there].double()
    documents, mean = len(counts), float(sums.sum() / counts.sum())
    if documents < 2:
        return mean, math.nan, math.nan
    spread = float((sums - mean * counts).square().sum()) * documents / (documents - 1)
    half = Z95 * math.sqrt(spread) / float(counts.sum())
    return mean, mean - half, mean + half


def ratio_change(sums: Tensor, counts: Tensor, clean: Tensor, clean_counts: Tensor) -> tuple[float, float, float]:
    """sum l / sum n less the same of the clean texts, with its 95 % interval over documents: four times (D,).

    Document d moves the difference by (l_d - m n_d) / sum n less the same of its clean text; the variance is
    D / (D - 1) times the sum of their squares. NaN for one document, and where none of them moves.
    """
    there = (counts > 0) | (clean_counts > 0)
    means, moved = [], []
    for nats, targets in ((sums[there].double(), counts[there]), (clean[there].double(), clean_counts[there])):
        means.append(float(nats.sum() / targets.sum()))
        moved.append((nats - means[-1] * targets) / targets.sum())
    change, documents = means[0] - means[1], int(there.sum())
    spread = float((moved[0] - moved[1]).square().sum())
    if documents < 2 or not spread:
        return change, math.nan, math.nan
    half = Z95 * math.sqrt(spread * documents / (documents - 1))
    return change, change - half, change + half


def how_cut(data: Any, length: int) -> dict[str, Any]:
    """What decides a perplexity beside the model: columns of every row."""
    texts = getattr(data, "texts", data)  # of windows: what they were cut from
    return {
        "unit": str(data.unit),
        "context": min(texts.options.context or length, length),
        "stride": texts.options.stride or 0,
        "bos": bool(texts.options.bos),
    }


@register_analysis("perplexity")
class Perplexity(Analysis):
    """Perplexity and the share of tokens that are the model's first guess, over all targets and per document."""

    tasks = ("language",)
    optional: ClassVar[tuple[str, ...]] = ("low", "high")

    def start(self, model: Model) -> None:
        if not getattr(model.layout, "causal", False):
            raise UnsupportedModelError(
                f"{model.name} is no causal language model: its tokens see what comes after them, so that there is "
                "nothing to foresee. `vitscope analyze --only attention` looks inside of it."
            )
        if model.num_classes == 0:
            raise UnsupportedModelError(f"{model.name} has no head that names words: there is no probability of any.")
        self.length = int(model.preprocess.length)
        self.sums = {"documents": zeros(0)}

    def prepare(self, data: Any, model: Model) -> None:
        self.document = torch.as_tensor(data.documents).long()  # (items,)
        self.cut = how_cut(data, self.length)
        numbers, self.document = self.document.unique(return_inverse=True)
        counts = {key: zeros(len(numbers), dtype=torch.int64) for key in ("targets", "right")}
        self.sums = {"nats": zeros(len(numbers))} | counts
        self.numbers = numbers.tolist()

    def end_batch(self, batch: Batch) -> None:
        assert batch.outputs is not None
        nats, right = token_losses(batch.outputs, batch.targets)
        where = self.document[batch.indices]
        for key, value in (("nats", nats), ("targets", batch.targets >= 0), ("right", right)):
            self.sums[key].index_add_(0, where, value.sum(1).to(self.sums[key].dtype))

    def tables(self) -> dict[str, pd.DataFrame]:
        nats, targets, right = (self.sums[key] for key in ("nats", "targets", "right"))
        if not int(targets.sum()):
            raise UnsuitableDataError("No text has two tokens: there is nothing to foresee.")
        mean, low, high = ratio_interval(nats, targets)
        share, share_low, share_high = ratio_interval(right, targets)
        last = {**self.cut, "targets": int(targets.sum()), "n": int((targets > 0).sum())}
        rows = [
            ("perplexity", *(perplexity_of(x) for x in (mean, low, high)), ""),
            ("loss", mean, low, high, "nats per token"),
            ("accuracy", *(100 * x for x in (share, share_low, share_high)), "%"),
        ]
        table = pd.DataFrame(rows, columns=["metric", "value", "low", "high", "unit_of_value"]).assign(**last)
        there = (targets > 0).nonzero().flatten()
        documents = pd.DataFrame(
            {
                "document": [self.numbers[i] for i in there.tolist()],
                "perplexity": [perplexity_of(x) for x in (nats[there] / targets[there]).tolist()],
                "loss": (nats[there] / targets[there]).numpy(),
                "accuracy": (100 * right[there] / targets[there]).numpy(),
                "targets": targets[there].numpy(),
            }
        )
        return {"perplexity": table, "perplexity_documents": documents}

    def summary(self) -> dict[str, Headline]:
        rows = {row["metric"]: row for row in self.tables()["perplexity"].to_dict("records")}
        row = rows["perplexity"]
        found = (
            "" if math.isnan(row["low"]) else f"95 % interval {row['low']:.4g} to {row['high']:.4g} over documents; "
        )
        note = f"{found}{row['targets']:,} targets; {said(row)}"
        n = int(row["n"])
        return {
            "perplexity": Headline(float(row["value"]), "", n, note),
            "accuracy": Headline(float(rows["accuracy"]["value"]), "%", n, "tokens that are the first guess"),
        }


def said(row: Any) -> str:
    """How the text was cut: 'windows of 512 tokens, stride 128, each with BOS'."""
    what = f"{row['unit']} of at most {row['context']:,} tokens"
    if row["unit"] == "windows":
        what = f"windows of {row['context']:,} tokens, "
        what += f"stride {row['stride']}" if row["stride"] else "which do not overlap"
        what += ", each with BOS" if row["bos"] else ", no BOS"
    return what


def perplexity_of(nats: float) -> float:
    """exp, of as many nats as have a number; NaN stays NaN."""
    return math.exp(min(nats, LONGEST)) if nats == nats else math.nan
