"""At which block does a token know the class? Identifiability per block, point and kind of token.

A point's tokens go through the model's final norm and head; r = 1 - rank/|C| says where the true class stands
(`ranks.py`). Tables:

* `class_space_identifiability`: mean of r, its quantiles, the rate of tokens with r = 1, the share of images that
  have at least one such token, and the number of classes, which says where chance is;
* `class_space_change`: the share of tokens whose true-class logit rises, and the mean rise - at `resid_post` from the
  previous block's output (change rate), at `attn_out` and `mlp_out` from the block's input to the projected output of
  the layer (class-similarity change);
* `class_space_distribution`: how r is distributed, in twenty bins;
* `class_space_class_vs_context` (with masks): class-labelled against context tokens, image by image, with a
  randomisation test (`statistics/permutation.py`), corrected over blocks; 'code' puts the published test beside it;
* `class_space_against_random` (variant 'code' with a control): the published test against random weights.

The embedding is there as point `resid_pre` of block 0. Intervals are over images (`statistics/clusters.py`).

A model with a learnt lens (`models/learnt_lens.py`) has further rows in the first and third table: points `linear` and
`refined` are its block outputs as these heads read them, and `tokens` `whole` is the reading of the image, one per
image: by the plain projection (`resid_post`: the class token, or what a pooling model averages), linear and refined.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pandas as pd
import torch
from torch import Tensor

from vitscope.analyses.base import Headline, register_analysis, zeros
from vitscope.analyses.class_space.analysis import HOOKS, POINTS, ClassSpaceAnalysis, with_control, with_rows
from vitscope.analyses.class_space.levels import bins, change_row, level_row, token_values
from vitscope.analyses.class_space.projection import Reading
from vitscope.analyses.class_space.ranks import true_rank
from vitscope.analyses.class_space.sharing import Readings
from vitscope.analyses.class_space.tokens import MASKED
from vitscope.analyses.control import SUFFIX
from vitscope.data.batch import Batch
from vitscope.errors import VitscopeError
from vitscope.models import Model
from vitscope.models.learnt_lens import read_whole, translate
from vitscope.statistics.clusters import COUNTS, FIELDS, Kind, counted, mean_over_images
from vitscope.statistics.permutation import group_difference, holm, p_greater, p_two_sided, pooled_test
from vitscope.statistics.signed_ranks import difference_counts, signed_rank_p

STAGES = (*POINTS, "resid_pre")  # resid_pre: the embedding, at block 0 only
WHOLE = "whole"  # an image, not a token
COMPARED = [0, 3]  # of `token_values`: r and the rise of the logit
# of the table of levels; a random twin has no learnt lens, so that the control has nothing to say of such rows
_LEVELS = (
    *("mean", "mean_per_image", "q05", "q25", "q50", "q75", "q95", "rate", "rate_low", "rate_high", "rate_per_image"),
    *("images_with", "images_with_low", "images_with_high", "n_tokens", "n_images", "share"),
)


@register_analysis("class_space.identifiability")
class Identifiability(ClassSpaceAnalysis):
    """Identifiability of the true class, how it changes from block to block, and class-labelled against context tokens.

    permutations: of the randomisation test.
    """

    keys: ClassVar = {
        "class_space_identifiability": ["block", "point", "tokens", "n_classes"],
        "class_space_change": ["block", "point", "tokens"],
        "class_space_distribution": ["block", "point", "tokens", "from", "to"],
        "class_space_class_vs_context": ["block", "point", "measure"],
    }

    optional = (  # one image: no interval
        *with_control("low", "high", "logit_change_low", "logit_change_high"),
        *(column + SUFFIX for column in _LEVELS),
    )

    def __init__(self, *, permutations: int = 999, **common: Any) -> None:
        super().__init__(**common)
        if permutations < 1:
            raise VitscopeError(f"permutations={permutations}: the test needs at least one, 999 are usual.")
        self.permutations = permutations

    def start_sums(self, model: Model) -> None:
        blocks, self.model = self.layout.blocks, model
        # what is read, by the groups that it is counted in
        self.stages = {"tokens": (*STAGES, *(lens for lens in model.lenses if lens == "linear"))}
        self.stages |= {WHOLE: ("resid_post", *model.lenses)} if model.lenses else {}
        for name, stages in self.stages.items():
            g = len(self.groups_of(name))
            self.start_clusters(name, 4, len(stages), blocks, groups=g)
            self.sums[_key(name, "any")] = zeros(len(stages), blocks, g)
            shape = (len(stages), blocks, g, 2 * self.projector.classes - 1)
            self.sums[_key(name, "ranks")] = zeros(*shape, dtype=torch.int64)
        if "object" in self.groups:
            # measures: r and the rise of the logit, at each point of POINTS
            self.sums["flips"] = zeros(self.permutations, 2, len(POINTS), blocks)
            self.sums |= {key: zeros(2, len(POINTS), blocks) for key in ("difference", "difference_squared")}
            self.sums["difference_n"] = zeros(1)
            if self.variant == "code":
                self.sums["pooled_squares"] = zeros(2, len(POINTS), blocks, len(MASKED))
        if self._tests_control:
            self.sums["paired"] = zeros(blocks, 4 * self.projector.classes - 3, dtype=torch.int64)
        self._ranks = torch.empty(0)  # (L, B, n) of the last batch's block outputs, where a test pairs them
        self._seen: list[Reading] = []  # of the embedding, then of the three points of each block

    @property
    def _tests_control(self) -> bool:
        return self.variant == "code" and self.control is not None

    def end_batch(self, batch: Batch) -> None:
        super().end_batch(batch)  # the twin has seen the batch, too
        if self._tests_control and isinstance(self.twin, Identifiability) and (batch.labels >= 0).any():
            for block, (own, random) in enumerate(zip(self._ranks, self.twin._ranks)):
                self.sums["paired"][block] += difference_counts(own, random, self.projector.classes)

    def read(self, block: int, points: Mapping[str, Tensor], readings: Readings) -> None:
        if block == 0:
            self._seen = [readings.before(block, points)]
        self._seen += readings.get(block, points, *HOOKS)
        if self.model.lenses:
            self._read_learnt(block, readings.rows(points[f"blocks.{block}.hook_resid_post"]), readings)

    def groups_of(self, name: str) -> list[str]:
        return [WHOLE] if name == WHOLE else self.groups

    def _read_learnt(self, block: int, x: Tensor, readings: Readings) -> None:
        """Block outputs (B, N, C), as the learnt lenses read them."""
        where, labels = f"the learnt lens of block {block}", readings.labels.to(x.device)
        for stage, kind in enumerate(self.stages[WHOLE]):
            logits = read_whole(self.model, x, kind, block).float()  # (B, K)
            rank = true_rank(logits, labels, readings.ties, where)[:, None].cpu()
            self._add(WHOLE, (stage, block), rank, torch.zeros(rank.shape), torch.ones(len(rank), 1, 1).double())
        if "linear" in self.stages["tokens"]:
            tokens = translate(self.model, x, block)[:, self.selection.where]
            how: dict[str, Any] = {"first_token": self.selection.first, "ties": readings.ties, "where": where}
            rank = self.projector.read(tokens, labels, **how).rank.cpu()
            self._add("tokens", (len(STAGES), block), rank, torch.zeros(rank.shape), readings.members)

    def sum_up(self, readings: Readings, batch: Batch) -> None:
        embedding, *blocks = self._seen
        rank = torch.stack([reading.rank for reading in blocks]).unflatten(0, (-1, len(POINTS)))  # (L, 3, B, n)
        logit = torch.stack([reading.logit for reading in blocks]).unflatten(0, (-1, len(POINTS))).double()
        before = torch.cat([embedding.logit[None].double(), logit[:-1, 0]])  # (L, B, n): the residual before the block
        change = logit - before[:, None]
        self._ranks = rank[:, 0] if self.variant == "code" else self._ranks
        members = readings.members
        values = self._add(
            "tokens", slice(0, 3), rank.transpose(0, 1), change.transpose(0, 1), members
        )  # (3, L, 4, B, n)
        self._add("tokens", (3, 0), embedding.rank, torch.zeros(embedding.logit.shape), members)
        if readings.masks is not None and "object" in self.groups:
            self._compare(values, readings)
        self._seen = []

    def _add(self, name: str, where: Any, rank: Tensor, change: Tensor, members: Tensor) -> Tensor:
        """Ranks and rises (..., B, n) of members (B, G, n) of groups, at index `where` of stages and blocks."""
        values = token_values(rank, change.double(), self.projector.classes)  # (..., 4, B, n)
        self.add_clusters(name, where, values, members)
        hits = torch.einsum("...bn,bgn->...bg", values[..., 1, :, :], members)
        self.sums[_key(name, "any")][where].add_((hits > 0).double().sum(-2))
        half = (2 * rank).long()
        for g in range(members.shape[1]):
            inside = half[..., members[:, g] > 0]  # (..., members)
            counts = self.sums[_key(name, "ranks")][where][..., g, :]
            counts += counted(inside, counts.shape[-1])
        return values

    def _compare(self, values: Tensor, readings: Readings) -> None:
        first, second = (readings.members[:, self.groups.index(g)] for g in MASKED)
        compared = values[:, :, COMPARED].movedim(2, 0)  # (2, 3, L, B, n): r and the rise of the logit
        difference, valid = group_difference(compared, first, second)  # (2, 3, L, B)
        signs = readings.signs(self.permutations, self.seed)  # (B, P)
        self.sums["flips"].add_((difference @ signs).movedim(-1, 0))
        self.sums["difference"].add_(difference.sum(-1))
        self.sums["difference_squared"].add_(difference.square().sum(-1))
        self.sums["difference_n"] += valid.sum()
        if self.variant == "code":
            squares = [(compared.square() * members).sum((-2, -1)) for members in (first, second)]
            self.sums["pooled_squares"].add_(torch.stack(squares, -1))

    def tables(self) -> dict[str, pd.DataFrame]:
        level, change, distribution = [], [], []
        for name, s, point, block, g, group in self._cells():
            r = self.mean_of(name, (s, block), 0, g, "fraction")
            rate = self.mean_of(name, (s, block), 1, g, "share")
            if r is None or rate is None:
                continue
            key = {"block": block, "point": point, "tokens": group}
            counts = self.sums[_key(name, "ranks")][s, block, g]
            some = 100 * float(self.sums[_key(name, "any")][s, block, g]) / r.images
            level.append(key | level_row(r, rate, counts, some) | {"n_classes": self.projector.classes})
            distribution += [key | row for row in bins(counts)]
            if name == "tokens" and point in POINTS:
                rose = self.mean_of(name, (s, block), 2, g, "share")
                rise = self.mean_of(name, (s, block), 3, g)
                assert rose is not None
                assert rise is not None
                change.append(key | change_row(rose, rise))
        tables = {
            "class_space_identifiability": pd.DataFrame(level),
            "class_space_change": pd.DataFrame(change),
            "class_space_distribution": pd.DataFrame(distribution),
        }
        if "paired" in self.sums and len(level):
            tables["class_space_against_random"] = pd.DataFrame(
                {"block": block, "p_wilcoxon": signed_rank_p(counts), "n_tokens": int(counts.sum())}
                for block, counts in enumerate(self.sums["paired"])
            )
        compared = self._comparison()
        return with_rows(tables | ({"class_space_class_vs_context": compared} if compared is not None else {}))

    def _cells(self) -> Iterator[tuple[str, int, str, int, int, str]]:
        """(sums, number and name of the stage, block, number and name of the group) of every row that there may be."""
        for name, stages in self.stages.items():
            for s, point in enumerate(stages):
                for block in range(self.layout.blocks if point != "resid_pre" else 1):
                    for g, group in enumerate(self.groups_of(name)):
                        yield name, s, point, block, g, group

    def _comparison(self) -> pd.DataFrame | None:
        n = int(self.sums["difference_n"]) if "difference_n" in self.sums else 0
        if n == 0:  # no masks
            return None
        total, squares, flips = (self.sums[k] for k in ("difference", "difference_squared", "flips"))
        greater, two_sided = p_greater(total, flips), p_two_sided(total, flips)  # (2, 3, L)
        rows = []
        measures: tuple[tuple[str, Kind], ...] = (("identifiability", "change"), ("logit change", "number"))
        for m, (measure, kind) in enumerate(measures):
            for p, point in enumerate(POINTS):
                corrected = holm(two_sided[m, p].tolist())
                for block in range(self.layout.blocks):
                    mean = mean_over_images(n, float(total[m, p, block]), float(squares[m, p, block]), kind)
                    tests = {"p_greater": float(greater[m, p, block]), "p_two_sided": float(two_sided[m, p, block])}
                    row = {"block": block, "point": point, "measure": measure, "difference": mean.value}
                    row |= {"low": mean.low, "high": mean.high} | tests | {"p_holm": corrected[block]}
                    rows.append(row | (self._pooled(m, p, block) if self.variant == "code" else {}))
        return pd.DataFrame(rows).assign(permutations=self.permutations, n_images=n)

    def _pooled(self, measure: int, point: int, block: int) -> dict[str, float]:
        """The published comparison."""
        groups = [self.groups.index(g) for g in MASKED]
        n = self.sums["tokens.counts"][point, block, COUNTS.index("m"), groups].tolist()
        totals = self.sums["tokens.values"][point, block, FIELDS.index("y"), COMPARED[measure], groups].tolist()
        difference, p = pooled_test(n, totals, self.sums["pooled_squares"][measure, point, block].tolist())
        return {"difference_pooled": difference, "p_pooled": p}

    def summary(self) -> dict[str, Headline]:
        table = self.tables().get("class_space_identifiability")
        if table is None:  # no image has a label
            return {}
        last = table[(table["point"] == "resid_post") & (table["block"] == self.layout.blocks - 1)]
        last = last[last["tokens"] != WHOLE]
        figures = {}
        for row in last.to_dict("records"):
            note = f"last block, {row['tokens']} tokens, variant {self.variant}"
            figures[f"identifiable_{row['tokens']}"] = Headline(float(row["rate"]), "%", int(row["n_images"]), note)
        return figures


def _key(name: str, what: str) -> str:
    """Where the sums of tokens and of whole images are."""
    return what if name == "tokens" else f"{name}.{what}"
