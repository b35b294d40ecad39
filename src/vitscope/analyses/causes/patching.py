"""What restores a decision? Put parts of one run into another, and see which of them carry it over.

Pairs of inputs (`pairs.py`): for the clean one the answer is right, for its partner it is not. With the logit
difference d = logit of the true class - logit of the partner's answer,

    denoising   the partner's run with a part of the clean one:   (d - d_partner) / (d_clean - d_partner) comes back
    noising     the clean run with a part of the partner's:       (d_clean - d) / (d_clean - d_partner) is lost

as a ratio of sums over pairs, with its interval over images (documents, of texts); beside it the share of decisions
that are restored, or lost. Nothing is 0, all of it 1. Where an item has several answers (texts), d is the mean over
those that the partner gets wrong. Pairs that agree already, or whose clean answer is wrong, are counted and left out.

The null is a random direction: the same part moved as far at every token, but anywhere. `estimate` is attribution
patching (`gradient.py`), and `causes_patching_agreement` says how well it ranks. `paths` asks from head to head.

Cost per pair and direction: about half a forward pass per part, and as much again with `null`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from vitscope.analyses.base import Headline, register_analysis, zeros
from vitscope.analyses.bundles import BUNDLES
from vitscope.analyses.causes.components import (
    ALL,
    KINDS,
    check_kinds,
    components_of,
    exchange,
    token_groups,
)
from vitscope.analyses.causes.decisions import FEW, CausesAnalysis, Contest, contest
from vitscope.analyses.causes.gradient import estimated, first_order, point_gradients
from vitscope.analyses.causes.pairs import Pairs, check_sizes, create_pairs
from vitscope.analyses.causes.patching_tables import COLUMNS, COUNTS, patching_tables
from vitscope.analyses.causes.paths import path_named
from vitscope.analyses.causes.prefix import Edits, Prefix
from vitscope.analyses.naming import check_known
from vitscope.data import Data
from vitscope.data.batch import Batch
from vitscope.data.randomness import derive_seed
from vitscope.errors import VitscopeError
from vitscope.models import Model
from vitscope.statistics.ranks import rank_correlation

DIRECTIONS, TOKENS = ("denoising", "noising"), ("groups", "each")


@dataclass(frozen=True)
class Side:
    """One run of some items, and the values of the points that are exchanged."""

    prefix: Prefix
    values: dict[str, Tensor]
    difference: Tensor  # (B,) float64


@register_analysis("causes.patching")
class Patching(CausesAnalysis):
    """What restores a decision, and what loses it.

    pairs: kinds such as 'pgd@1/255', 'corrupt:fog@3', 'class', 'mask', 'swap'. kinds, tokens, by_token, blocks,
    at_once: as for causes.ablation. directions: denoising, noising. null: random directions, too. gradient: estimates,
    too. paths: from head to head, such as '8.1>11.2', or '8.1>11.2:v' through its values alone.
    """

    optional = ("head", "row", "column", *COLUMNS)
    optional += tuple(f"{value}_{end}" for value in ("rank_correlation", "of_means") for end in ("low", "high"))

    def __init__(
        self,
        pairs: Sequence[str] = (),
        kinds: Sequence[str] = KINDS,
        tokens: str = "groups",
        by_token: Sequence[str] = ("resid",),
        blocks: Sequence[int] | None = None,
        directions: Sequence[str] = DIRECTIONS,
        paths: Sequence[str] = (),
        null: bool = True,
        gradient: bool = True,
        at_once: int = 32,
    ) -> None:
        super().__init__()
        self.pairs, self.directions, self.paths = (
            [words] if isinstance(words, str) else list(dict.fromkeys(words)) for words in (pairs, directions, paths)
        )
        self.makers: list[Pairs] = [create_pairs(word) for word in self.pairs]
        self.kinds, self.by_token = check_kinds(kinds), check_kinds(by_token)
        for name, words, known in (("direction", self.directions, DIRECTIONS), ("tokens", [tokens], TOKENS)):
            for word in words or [""]:
                check_known(name, word, known)
        if at_once < 1:
            raise VitscopeError(f"at_once={at_once}: expected 1 or more.")
        for word in self.paths:
            path_named(word)
        self.tokens, self.blocks, self.null, self.gradient = tokens, blocks and list(blocks), null, gradient
        self.at_once = at_once

    def start(self, model: Model) -> None:
        super().start(model)
        if not self.pairs:
            raise VitscopeError("Which pairs? Give pairs (--pairs), such as pgd@1/255, corrupt:fog@3, class or mask.")
        for maker in self.makers:
            maker.start(model, self.setting)
        own = [name for maker in self.makers for name in maker.groups]
        groups = [*dict.fromkeys([*token_groups(model), *own])]
        places: Sequence[str | int] = range(model.layout.tokens) if self.tokens == "each" else groups
        self.components = components_of(model, self.kinds, self.blocks, places, self.by_token)
        self.ways = [path_named(word, model) for word in self.paths]
        if not self.components and not self.ways:
            raise VitscopeError("Nothing is exchanged: expected some of kinds=head,attn,mlp,resid, or paths.")
        between = [name for way in self.ways for name in (*way.between, way.sender.point)]
        self.names = model.resolve_points(dict.fromkeys([*(c.point for c in self.components), *between]))
        self.start_bundles(BUNDLES if len(self.components) <= 500 else FEW)

    def start_sums(self, rows: int) -> None:
        kinds, ways, e, w = len(self.pairs), len(self.directions), len(self.components), len(self.ways)
        self.sums = {"total": zeros(kinds, rows, e), "n": zeros(kinds, rows, e), "counts": zeros(len(COUNTS), kinds)}
        self.sums |= {key: zeros(kinds, ways, rows, e) for key in ("moved", "decided")}
        if self.null:
            self.sums |= {f"null_{key}": zeros(kinds, ways, rows, e) for key in ("moved", "decided")}
        if self.gradient:
            agree = kinds, ways, len(KINDS), rows
            self.sums |= {"estimate": zeros(kinds, ways, rows, e), "agree": zeros(*agree), "n_agree": zeros(*agree)}
        self.sums |= {f"path_{key}": zeros(kinds, ways, rows, w) for key in ("moved", "decided")}
        self.sums |= {"path_total": zeros(kinds, rows), "path_n": zeros(kinds, rows)}

    def check_data(self, data: Data) -> None:
        super().check_data(data)
        for maker in self.makers:
            maker.check_data(data)

    def prepare(self, data: Data, model: Model) -> None:
        super().prepare(data, model)
        for maker in self.makers:
            maker.prepare(data)

    def end_batch(self, batch: Batch) -> None:
        counted = self.setting.task.counted(batch.targets).reshape(len(batch), -1).any(1)
        batch = batch.rows(counted.nonzero().flatten())
        if not len(batch):
            return
        # an answer that is wrong already cannot be restored: its partner is not even made, an attack takes its time
        _, (right, _) = self._contest(batch, batch.outputs, batch.outputs)
        wrong, clean = len(batch) - int(right.sum()), batch.rows(right.nonzero().flatten())
        for number, maker in enumerate(self.makers):
            self.sums["counts"][:2, number] += torch.tensor([float(len(batch)), float(wrong)])
            if len(clean):
                self._pair(number, clean, maker)

    def _pair(self, number: int, batch: Batch, maker: Pairs) -> None:
        """The partners of items that are right, and what comes of those whose partner is not."""
        partners = maker.partners(batch)
        check_sizes(batch, partners, self.pairs[number])
        where = partners.made.nonzero().flatten()
        if not len(where):
            return
        own = batch.rows(where)
        other = replace(batch, inputs=partners.inputs, outputs=None).rows(where)
        other.outputs = self.model(self.model.place(other.inputs))
        _, (_, contested) = self._contest(own, own.outputs, other.outputs)
        told = len(where), (~contested).sum(), contested.sum()
        self.sums["counts"][2:, number] += torch.tensor([float(count) for count in told])
        used = contested.nonzero().flatten()
        if len(used):
            groups = self.groups_of(own)
            groups |= {name: inside[where] for name, inside in partners.groups.items()}
            self._patch(number, own.rows(used), other.rows(used), {n: g[used] for n, g in groups.items()})

    def _contest(self, batch: Batch, clean: Tensor | None, corrupted: Tensor | None) -> tuple[Contest, Tensor]:
        judge = self.setting.task.judged
        before, targets, items = judge(replace(batch, outputs=clean))
        return contest(before, judge(replace(batch, outputs=corrupted))[0], targets, items, len(batch))

    def _patch(self, number: int, own: Batch, other: Batch, groups: dict[str, Tensor]) -> None:
        """All exchanges between two versions of the same items; `own` has the targets."""
        prefixes = Prefix(self.model, own.inputs), Prefix(self.model, other.inputs)
        match, _ = self._contest(own, *(prefix.outputs for prefix in prefixes))
        sides = []
        for prefix in prefixes:
            values = prefix.read({}, self.names)
            sides.append(Side(prefix, values, self._judged(own, match, prefix.outputs)[0]))
        clean, corrupted = sides
        rows, total = self.rows_of(own), clean.difference - corrupted.difference  # (B,), (B,)
        items, tokens = next(iter(groups.values())).shape
        places = [part.where(groups, (items, tokens)) for part in self.components]
        touched = torch.stack([torch.ones(len(own)) if p is None else p.any(1).float() for p in places] or [total[:0]])
        touched = touched.T.double() * (total > 0)[:, None]  # (B, E); a tie that another batch shape breaks counts not
        self.sums["total"][number].index_add_(0, rows, total[:, None] * touched)
        self.sums["n"][number].index_add_(0, rows, touched)
        self.sums["path_total"][number].index_add_(0, rows, total)
        self.sums["path_n"][number].index_add_(0, rows, (total > 0).double())
        for d, direction in enumerate(self.directions):
            base, new = (corrupted, clean) if direction == "denoising" else (clean, corrupted)
            sign = 1.0 if direction == "denoising" else -1.0
            exact = self._exchange(own, match, base, self._exact(base, new, places), sign)
            self._add((number, d), "", exact * touched, rows)
            if self.null:
                null = self._exchange(own, match, base, self._random(own, base, new, places), sign)
                self._add((number, d), "null_", null * touched, rows)
            if self.gradient and self.components:
                guess = sign * self._estimates(own, match, base, new, places)  # (B, E)
                self.sums["estimate"][number, d].index_add_(0, rows, guess * touched)
                self._agree((number, d), exact[0], guess, touched, rows)
            edits = [way.edits(base.prefix, base.values, new.values) for way in self.ways]
            self._add((number, d), "path_", self._exchange(own, match, base, edits, sign), rows)

    def _judged(self, batch: Batch, match: Contest, outputs: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.setting.task.judged(replace(batch, outputs=outputs))[0]
        return match.difference(logits, len(batch)), match.decided(logits, len(batch))

    def _exact(self, base: Side, new: Side, places: Sequence[Tensor | None]) -> list[Edits]:
        return [
            {part.point: exchange(part, part.part(new.values[part.point]), where)}
            for part, where in zip(self.components, places)
        ]

    def _random(self, batch: Batch, base: Side, new: Side, places: Sequence[Tensor | None]) -> list[Edits]:
        """As far from the base at every token, in a direction drawn by (seed, image, component)."""
        edits: list[Edits] = []
        for part, where in zip(self.components, places):
            old, moved = part.part(base.values[part.point]), part.part(new.values[part.point])
            drawn = _directions(
                old, [derive_seed("null", self.setting.seed, i, part.name) for i in batch.indices.tolist()]
            )
            far = (moved - old).norm(dim=-1, keepdim=True)
            edits.append({part.point: exchange(part, old + far * drawn, where)})
        return edits

    def _exchange(self, batch: Batch, match: Contest, base: Side, edits: Sequence[Any], sign: float) -> Tensor:
        """(2, B, E): how far the logit difference moves, and the share of answers that are restored, or lost."""
        found = torch.zeros(2, len(batch), len(edits), dtype=torch.float64)
        for i, outputs in base.prefix.run_each(edits, self.at_once):
            difference, decided = self._judged(batch, match, outputs)
            found[0, :, i] = sign * (difference - base.difference)
            found[1, :, i] = decided if sign > 0 else 1 - decided
        return found

    def _estimates(self, batch: Batch, match: Contest, base: Side, new: Side, places: Sequence[Any]) -> Tensor:
        def metric(outputs: Tensor) -> Tensor:
            return self._judged(batch, match, outputs)[0]

        points = [*dict.fromkeys(part.point for part in self.components)]
        gradients = point_gradients(self.model, base.prefix.inputs, points, metric)
        effects = first_order(new.values, base.values, gradients)
        return torch.stack([estimated(part, effects, where) for part, where in zip(self.components, places)], 1)

    def _agree(self, key: tuple[int, int], exact: Tensor, guess: Tensor, touched: Tensor, rows: Tensor) -> None:
        """Per pair and kind: do estimates and exact patches rank the components alike?"""
        for k, kind in enumerate(KINDS):
            for image in range(len(exact)):
                mine = [e for e, part in enumerate(self.components) if part.kind == kind and touched[image, e]]
                if len(mine) > 2:
                    self.sums["agree"][key][k, rows[image]] += rank_correlation(exact[image, mine], guess[image, mine])
                    self.sums["n_agree"][key][k, rows[image]] += 1

    def _add(self, key: tuple[int, int], front: str, found: Tensor, rows: Tensor) -> None:
        for name, values in zip(("moved", "decided"), found):
            self.sums[f"{front}{name}"][key].index_add_(0, rows, values)

    def tables(self) -> dict[str, pd.DataFrame]:
        return patching_tables(self)

    def summary(self) -> dict[str, Headline]:
        """The component that restores most, per kind of pairs."""
        rows = [
            row
            for name, table in self.tables().items()
            if name == "causes_patching"
            for row in table.to_dict("records")
        ]
        found = {}
        for pairs in self.pairs:
            mine = [row for row in rows if row["pairs"] == pairs and row["direction"] == "denoising"]
            mine = [row for row in mine if row["kind"] != "resid" and row["tokens"] == ALL]
            for row in sorted(mine, key=lambda r: -r["share"])[:1]:
                note = f"of the logit difference comes back with {row['component']} alone, the most of all"
                found[f"restored {pairs}"] = Headline(100 * float(row["share"]), "%", int(row["n_pairs"]), note)
        return found


def _directions(like: Tensor, seeds: Sequence[int]) -> Tensor:
    """Unit vectors at every token, (B, N, C), each item's own."""
    drawn = [torch.randn(like.shape[1:], generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    return torch.nn.functional.normalize(torch.stack(drawn).to(like), dim=-1)
