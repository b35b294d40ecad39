"""How much worse does a language model foresee a text with swapped words or typos?

Every condition is measured over *all* targets, as published: a swapped word is context and target. Nobody could foresee
that it comes, and the rest of it is easy once it has begun. Over *unswapped* targets, those of words that were left as
they were, is what robustness means: what does the damage do to the rest? Beside it stand the clean texts over the same
words. A token belongs to a changed word if it shares a character with it or with the space before it.

Differences to clean are paired by document (`ratio_change`); a ratio of perplexities is exp of one of losses.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pandas as pd
import torch
from torch import Tensor

from vitscope.analyses.base import Headline, register_analysis, zeros
from vitscope.analyses.perplexity import Perplexity, how_cut, perplexity_of, ratio_change, ratio_interval, said
from vitscope.data import Data
from vitscope.data.batch import Batch
from vitscope.errors import UnsuitableDataError
from vitscope.models import Model
from vitscope.robustness.text.names import ALL, CLEAN, OVER, UNSWAPPED
from vitscope.tasks.language import token_losses

SETS = (*OVER, "clean")  # of targets, per condition; 'clean': those of the clean texts that the condition leaves alone


@register_analysis("swapped.perplexity")
class SwappedPerplexity(Perplexity):
    """Perplexity of every condition of a `TextConditions`, which `vitscope.evaluate(..., swap=True)` makes."""

    default = False
    optional: ClassVar[tuple[str, ...]] = ("low", "high", "change_low", "change_high")

    def check_data(self, data: Data) -> None:
        if not getattr(data, "changes", ()):
            raise UnsuitableDataError(f"{data.name} has no changed texts: `vitscope evaluate --swap` makes them.")

    def prepare(self, data: Any, model: Model) -> None:
        self.data, self.preprocess = data, model.preprocess
        self.cut = how_cut(data, self.length)
        self.condition = torch.as_tensor(data.condition).long()  # (items,)
        numbers, self.document = torch.as_tensor(data.documents).long().unique(return_inverse=True)
        self.numbers = numbers.tolist()
        shape = (len(data.conditions), len(SETS), len(numbers))
        self.sums = {"nats": zeros(*shape)}
        self.sums |= {key: zeros(*shape, dtype=torch.int64) for key in ("targets", "right")}
        self.aligned = data.changed_tokens(0, 1, self.preprocess) is not None
        if not self.aligned:
            self.remarks.append(
                "The tokenizer does not say which characters a token stands for: there are only the numbers over all "
                "targets, changed words included."
            )

    def end_batch(self, batch: Batch) -> None:
        assert batch.outputs is not None
        nats, right = token_losses(batch.outputs, batch.targets)
        asked = batch.targets >= 0  # (B, N)
        for row, item in enumerate(batch.indices.tolist()):
            own, document = int(self.condition[item]), int(self.document[item])
            for condition, kind, chosen in self._sets(item, own, asked[row]):
                place = (condition, SETS.index(kind), document)
                for key, values in (("nats", nats), ("targets", asked), ("right", right)):
                    self.sums[key][place] += values[row][chosen].sum()

    def _sets(self, item: int, own: int, asked: Tensor) -> list[tuple[int, str, Tensor]]:
        """The sets of targets that a text of condition `own` counts in: (condition, which of SETS, (N,) bool)."""
        found = [(own, ALL, asked)]
        others = [c for c in self.data.own if c] if own == 0 else [own]
        for condition in others if self.aligned else ():
            changed = self.data.changed_tokens(item, condition, self.preprocess)
            left = asked.clone()
            left[: len(changed) - 1] &= ~torch.tensor(changed[1:], dtype=torch.bool)  # a target is the next token
            found.append((condition, UNSWAPPED if own else "clean", left))
        return found

    def _of(self, condition: int, kind: str) -> dict[str, Tensor]:
        """Sums per document. A change that changes nothing has the clean ones."""
        if condition not in self.data.own:
            condition, kind = 0, ALL
        return {key: value[condition, SETS.index(kind)] for key, value in self.sums.items()}

    def tables(self) -> dict[str, pd.DataFrame]:
        if not int(self.sums["targets"][0, 0].sum()):
            raise UnsuitableDataError("No text has two tokens: there is nothing to foresee.")
        rows: list[dict[str, Any]] = []
        documents = []
        for c, name in enumerate(self.data.conditions):
            for over in OVER if c and self.aligned else (ALL,):
                found = self._of(c, over)
                clean = self._of(*((0, ALL) if over == ALL else (c, "clean")))
                if not int(found["targets"].sum()) or not int(clean["targets"].sum()):
                    continue  # so far no text of it, or every word of all texts was changed
                key: dict[str, Any] = {"condition": name, "over": over}
                last = {"targets": int(found["targets"].sum()), "n": int((found["targets"] > 0).sum())}
                rows += [{**key, **row, **self.cut, **last} for row in _rows(found, clean)]
                documents.append(self._documents(found).assign(**key))
        return {"perplexity": pd.DataFrame(rows), "perplexity_documents": pd.concat(documents, ignore_index=True)}

    def _documents(self, sums: dict[str, Tensor]) -> pd.DataFrame:
        there = (sums["targets"] > 0).nonzero().flatten()
        loss = sums["nats"][there] / sums["targets"][there]
        return pd.DataFrame(
            {
                "document": [self.numbers[i] for i in there.tolist()],
                "perplexity": [perplexity_of(x) for x in loss.tolist()],
                "loss": loss.numpy(),
                "accuracy": (100 * sums["right"][there] / sums["targets"][there]).numpy(),
                "targets": sums["targets"][there].numpy(),
            }
        )

    def summary(self) -> dict[str, Headline]:
        table = self.tables()["perplexity"]
        found: dict[str, Headline] = {}
        for row in table[table["metric"] == "perplexity"].to_dict("records"):
            name = row["condition"] if row["over"] == ALL else f"{row['condition']}_{row['over']}"
            note = f"over {row['over']} {row['targets']:,} targets; {said(row)}"
            if row["condition"] != CLEAN:
                note = f"{row['change']:.4g} times the {row['clean']:.4g} of the clean texts{_between(row)}; {note}"
            found[name] = Headline(float(row["value"]), "", int(row["n"]), note)
        return found


def _rows(found: dict[str, Tensor], clean: dict[str, Tensor]) -> list[dict[str, Any]]:
    """Perplexity, loss and accuracy, each with its interval, the clean value and the paired change to it."""
    counts = found["targets"], clean["targets"]
    loss, share = (ratio_interval(found[key], counts[0]) for key in ("nats", "right"))
    clean_loss, clean_share = (ratio_interval(clean[key], counts[1])[0] for key in ("nats", "right"))
    more, better = (ratio_change(found[key], counts[0], clean[key], counts[1]) for key in ("nats", "right"))
    percent = [100 * x for x in (*share, clean_share, *better)]
    return [
        _row("perplexity", "", "times", [perplexity_of(x) for x in (*loss, clean_loss, *more)]),
        _row("loss", "nats per token", "nats per token", [*loss, clean_loss, *more]),
        _row("accuracy", "%", "percentage points", percent),
    ]


def _row(metric: str, unit: str, unit_of_change: str, values: list[float]) -> dict[str, Any]:
    names = ("value", "low", "high", "clean", "change", "change_low", "change_high")
    return {"metric": metric, **dict(zip(names, values)), "unit_of_value": unit, "unit_of_change": unit_of_change}


def _between(row: dict[Any, Any]) -> str:
    """' (95 % interval 1.1 to 1.3 over documents)', or '' for one document."""
    if row["change_low"] != row["change_low"]:
        return ""
    return f" (95 % interval {row['change_low']:.4g} to {row['change_high']:.4g} over documents)"
