"""What is each part good for? Switch it off, and see what becomes of the right answer.

Heads, attentions, MLPs, and the residual stream behind each block at groups of tokens, or at each token: one after the
other is set to zero, or to its mean over the data (`method='mean'`: a pass of its own over the data comes first). For
the same images, before and after: the logit and the probability of the true class, and is it the answer? Of texts, the
same of the next token, mean over tokens. Intervals are those of the paired difference, over images or documents.

Where logits are sums over parts, `causes_ablation_agreement` says how far their direct effects (`attribution.py`) rank
them alike: rank correlation per image, and of the means.

`together` switches several off at once, '11.2+10.0' or 'attn.3+mlp.4'. Its null are as many parts of the same kinds,
drawn at random, `draws` times; parts that work for each other show in `alone`, the sum of their single effects.

Cost: what lies before an edit is computed once (`prefix.py`). All heads, attentions and MLPs of ViT-Tiny, 60 edits,
take about half of 60 forward passes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from vitscope.analyses.base import Headline, register_analysis, zeros
from vitscope.analyses.bundles import BUNDLES
from vitscope.analyses.causes.components import (
    ALL,
    KINDS,
    Component,
    check_kinds,
    component_named,
    components_of,
    exchange,
    joined,
    token_groups,
)
from vitscope.analyses.causes.decisions import FEW, VALUES, CausesAnalysis, true_answers
from vitscope.analyses.causes.direct_effects import direct_effects
from vitscope.analyses.causes.means import means_over
from vitscope.analyses.causes.prefix import Edits, Prefix
from vitscope.analyses.naming import check_known
from vitscope.data import Data
from vitscope.data.batch import Batch
from vitscope.data.randomness import derive_seed
from vitscope.errors import VitscopeError
from vitscope.models import Model
from vitscope.statistics.clusters import over_clusters
from vitscope.statistics.ranks import rank_correlations, ranks_of_sums

METHODS, TOKENS = ("zero", "mean"), ("groups", "each")
WRITING = KINDS[:3]  # heads, attentions, MLPs
ENDS = ("", "_after", "_change", "_change_low", "_change_high")
INTERVAL = ("", "_low", "_high")


@dataclass(frozen=True)
class Trial:
    """What is switched off at once, and where it belongs: one component, a set that was asked for, or a random one."""

    parts: tuple[Component, ...]
    word: str = ""  # the set as it was asked for; '' for a component by itself
    draw: int = -1  # number of the random set; -1: the one that was asked for


@register_analysis("causes.ablation")
class Ablation(CausesAnalysis):
    """The true answer with parts of the model switched off.

    method: zero, or mean over the data. kinds: head, attn, mlp, resid. tokens: by groups or each by itself, for the
    kinds in by_token. blocks: all by default. together: sets such as '11.2+10.0'; draws: random sets beside each.
    at_once: images times edits that go through the model together.
    """

    optional = ("head", "row", "column", "alone", *(f"{value}{end}" for value in VALUES for end in ENDS[3:]))
    optional += tuple(f"{value}_{end}" for value in ("rank_correlation", "of_means") for end in ("low", "high"))

    def __init__(
        self,
        method: str = "zero",
        kinds: Sequence[str] = KINDS,
        tokens: str = "groups",
        by_token: Sequence[str] = ("resid",),
        blocks: Sequence[int] | None = None,
        together: Sequence[str] = (),
        draws: int = 10,
        at_once: int = 32,
    ) -> None:
        super().__init__()
        for name, value, known in (("method", method, METHODS), ("tokens", tokens, TOKENS)):
            check_known(name, value, known)
        if draws < 0 or at_once < 1:
            raise VitscopeError(f"draws={draws}, at_once={at_once}: expected draws >= 0 and at_once >= 1.")
        self.method, self.tokens, self.draws, self.at_once = method, tokens, draws, at_once
        self.kinds, self.by_token = check_kinds(kinds), check_kinds(by_token)
        self.blocks = None if blocks is None else list(blocks)
        self.together = [together] if isinstance(together, str) else list(together)
        for word in self.together:
            _members(word)

    def start(self, model: Model) -> None:
        super().start(model)
        self.groups = token_groups(model)
        places: Sequence[str | int] = range(model.layout.tokens) if self.tokens == "each" else self.groups
        self.trials = [Trial((c,)) for c in components_of(model, self.kinds, self.blocks, places, self.by_token)]
        for word in self.together:
            asked = _members(word, model)
            self.trials.append(Trial(asked, word))
            self.trials += [Trial(self._drawn(asked, word, i), word, i) for i in range(self.draws)]
        if not self.trials:
            raise VitscopeError("Nothing is switched off: expected some of kinds=head,attn,mlp,resid, or together.")
        # trials of one part that writes into the stream by itself: the same is known of it by attribution
        single = [(i, t.parts[0]) for i, t in enumerate(self.trials) if not t.word]
        self.written = [i for i, part in single if part.kind in WRITING and part.tokens == ALL]
        parts = [self.trials[i].parts[0] for i in self.written]
        self.direct = direct_effects(model, parts, self.setting.task.one_class)
        self.means: dict[str, Tensor] = {}
        self._data: Data | None = None
        self.remarks = ["the means are those of these data, from a pass of its own"] if self.method == "mean" else []
        self.start_bundles(BUNDLES if len(self.trials) <= 500 else FEW)

    def _drawn(self, asked: Sequence[Component], word: str, draw: int) -> tuple[Component, ...]:
        """As many components of the same kinds, each at most once."""
        generator = random.Random(derive_seed("ablation", self.setting.seed, word, draw))
        found: list[Component] = []
        for kind in KINDS:
            every = components_of(self.model, [kind], self.blocks)
            found += generator.sample(every, min(len(every), sum(c.kind == kind for c in asked)))
        return tuple(found)

    def start_sums(self, rows: int) -> None:
        shape = rows, len(self.trials)
        self.sums = {f"{value}_{when}": zeros(*shape) for value in VALUES for when in ("before", "after")}
        self.sums |= {"n": zeros(*shape, dtype=torch.int64), "images": zeros(len(self.trials), dtype=torch.int64)}
        if self.direct is not None:
            each, kinds = (rows, len(self.written)), (len(WRITING), rows)
            self.sums |= {"direct": zeros(*each), "missed": zeros(*each)}
            self.sums |= {"agree": zeros(*kinds), "n_agree": zeros(*kinds)}

    def prepare(self, data: Data, model: Model) -> None:
        super().prepare(data, model)
        self._data = data

    def begin(self) -> None:
        if self.method == "mean":
            points = sorted({part.point for trial in self.trials for part in trial.parts})
            self.means = means_over(self.model, self._data, points, self.setting, self.at_once)

    def edits(self, trial: Trial, groups: dict[str, Tensor], shape: tuple[int, int]) -> tuple[Edits, Tensor]:
        """What a trial does to a batch of `shape` (B, N), and to which items anything is done (B,) bool."""
        edits, touched = [], torch.zeros(shape[0], dtype=torch.bool)
        for part in trial.parts:
            where = part.where(groups, shape)
            new: Tensor | float = 0.0 if self.method == "zero" else part.part(self.means[part.point])
            edits.append((part, exchange(part, new, where)))
            touched |= torch.ones_like(touched) if where is None else where.any(1)
        return joined(edits), touched

    def end_batch(self, batch: Batch) -> None:
        counted = self.setting.task.counted(batch.targets).reshape(len(batch), -1).any(1)
        batch = batch.rows(counted.nonzero().flatten())
        if not len(batch):
            return
        groups = self.groups_of(batch)
        items, tokens = next(iter(groups.values())).shape
        made = [self.edits(trial, groups, (items, tokens)) for trial in self.trials]
        numbers = [i for i, (_, touched) in enumerate(made) if touched.any()]
        prefix = Prefix(self.model, batch.inputs)
        before, n = true_answers(self.setting.task, batch, prefix.outputs)
        rows, missed = self.rows_of(batch), torch.zeros(len(batch), len(self.trials), dtype=torch.float64)
        for i, outputs in prefix.run_each([made[i][0] for i in numbers], self.at_once):
            after, _ = true_answers(self.setting.task, batch, outputs)
            self._add(numbers[i], before, after, n, made[numbers[i]][1], rows)
            missed[:, numbers[i]] = (before[0] - after[0]) / n
        if self.direct is not None:
            self._agree(self.direct.of(batch), missed[:, self.written], rows)

    def _agree(self, direct: Tensor, missed: Tensor, rows: Tensor) -> None:
        """Twice (B, E): do direct effects and losses rank the parts of each item alike?"""
        self.sums["direct"].index_add_(0, rows, direct)
        self.sums["missed"].index_add_(0, rows, missed)
        for k, places in enumerate(self._kinds()):
            if len(places) > 2:
                self.sums["agree"][k].index_add_(0, rows, rank_correlations(direct[:, places], missed[:, places]))
                self.sums["n_agree"][k].index_add_(0, rows, torch.ones(len(rows), dtype=torch.float64))

    def _kinds(self) -> list[list[int]]:
        """The places of heads, attentions and MLPs among `written`."""
        kinds = [self.trials[i].parts[0].kind for i in self.written]
        return [[place for place, kind in enumerate(kinds) if kind == wanted] for wanted in WRITING]

    def _add(self, number: int, before: Tensor, after: Tensor, n: Tensor, touched: Tensor, rows: Tensor) -> None:
        for v, value in enumerate(VALUES):
            for when, found in (("before", before), ("after", after)):
                self.sums[f"{value}_{when}"][:, number].index_add_(0, rows, found[v] * touched)
        self.sums["n"][:, number].index_add_(0, rows, n * touched)
        self.sums["images"][number] += int(touched.sum())

    def tables(self) -> dict[str, pd.DataFrame]:
        names = ("causes_ablation", "causes_ablation_tokens", "causes_ablation_together")
        tables: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        single = {trial.parts[0]: i for i, trial in enumerate(self.trials) if not trial.word}
        for number, trial in enumerate(self.trials):
            found = self._row(number)
            if found is None:
                continue
            if not trial.word:
                (part,) = trial.parts
                tables[names[part.placed]].append(part.row(self.layout) | {"method": self.method} | found)
                continue
            known = [single.get(part) for part in trial.parts]
            alone = float("nan") if None in known else sum(self._change(i) for i in known if i is not None)
            what = {"set": trial.word, "drawn": "asked" if trial.draw < 0 else f"random {trial.draw}"}
            what |= {"parts": "+".join(part.name for part in trial.parts), "method": self.method}
            tables[names[2]].append(what | found | {"alone": alone})
        tables["causes_ablation_agreement"] = self._agreement() if self.direct is not None else []
        return {name: pd.DataFrame(rows) for name, rows in tables.items() if rows}

    def _agreement(self) -> list[dict[str, Any]]:
        """Per kind: the rank correlation of direct effect and loss, mean over items, and that of the means."""
        rows = []
        for k, (kind, places) in enumerate(zip(WRITING, self._kinds())):
            counts = self.sums["n_agree"][k]
            mean = over_clusters(self.sums["agree"][k], counts, "change")  # it lies in [-1, 1]
            if mean is None:
                continue
            there = counts > 0
            direct, missed = (self.sums[name][there][:, places] for name in ("direct", "missed"))
            whole = ranks_of_sums(direct, missed, counts[there, None].expand(-1, len(places)), self.setting.seed)
            row = {"kind": kind, "components": len(places), "method": self.method}
            row |= {f"rank_correlation{end}": v for end, v in zip(INTERVAL, (mean.value, mean.low, mean.high))}
            row |= {f"of_means{end}": value for end, value in zip(INTERVAL, whole)}
            rows.append(row | {"n_images": int(counts.sum())})
        return rows

    def _change(self, number: int, value: str = "logit") -> float:
        n = int(self.sums["n"][:, number].sum())
        return float((self.sums[f"{value}_after"] - self.sums[f"{value}_before"])[:, number].sum()) / max(n, 1)

    def _row(self, number: int) -> dict[str, Any] | None:
        """Before, after and change of each value; None where there is no image with such tokens."""
        counts = self.sums["n"][:, number]
        n, row = int(counts.sum()), dict[str, Any]()
        if n == 0:
            return None
        for value in VALUES:
            before, after = (self.sums[f"{value}_{when}"][:, number] for when in ("before", "after"))
            change = over_clusters(after - before, counts, "number" if value == "logit" else "change")
            assert change is not None
            scale = 1 if value == "logit" else 100
            means = float(before.sum()) / n, float(after.sum()) / n, change.value, change.low, change.high
            row |= {f"{value}{end}": scale * mean for end, mean in zip(ENDS, means)}
        return row | {"n_answers": n, "n_images": int(self.sums["images"][number])}

    def summary(self) -> dict[str, Headline]:
        table = self.tables().get("causes_ablation")
        rows: list[dict[Any, Any]] = [] if table is None else table[table["tokens"] == ALL].to_dict("records")
        found = {}
        for kind in KINDS[:3]:
            for row in sorted((r for r in rows if r["kind"] == kind), key=lambda r: r["logit_change"])[:1]:
                note = f"{row['component']}, the most needed, set to {self.method}: change of the true logit"
                found[kind] = Headline(float(row["logit_change"]), "", int(row["n_images"]), note)
        return found

    def answers(self) -> tuple[int, int] | None:
        """Of whatever is switched off at all tokens: all images are counted there."""
        for number, trial in enumerate(self.trials):
            if all(part.tokens == ALL for part in trial.parts):
                right = float(self.sums["accuracy_before"][:, number].sum())
                return round(right), int(self.sums["n"][:, number].sum())
        return None


def _members(word: str, model: Model | None = None) -> tuple[Component, ...]:
    """'11.2+10.0' -> its components, which are different ones."""
    found = [component_named(part, model) for part in str(word).split("+")]
    if len(set(found)) < len(found):
        raise VitscopeError(f"together={word!r}: a component is named twice.")
    return tuple(found)
