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
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from vitscope.analyses.base import Headline, register_analysis, zeros
from vitscope.analyses.class_space.analysis import HOOKS, POINTS, ClassSpaceAnalysis, with_control, with_rows
from vitscope.analyses.class_space.projection import Reading
from vitscope.analyses.class_space.ranks import identifiability
from vitscope.analyses.class_space.sharing import Readings
from vitscope.analyses.class_space.tokens import MASKED
from vitscope.errors import VitscopeError
from vitscope.statistics.clusters import COUNTS, FIELDS, Kind, Mean, counted, mean_over_images
from vitscope.statistics.permutation import group_difference, holm, p_greater, p_two_sided, pooled_test
from vitscope.statistics.signed_ranks import difference_counts, signed_rank_p

if TYPE_CHECKING:
    import pandas as pd

    from vitscope.data.batch import Batch
    from vitscope.models import Model

STAGES = (*POINTS, "resid_pre")  # resid_pre: the embedding, at block 0 only
COMPARED = [0, 3]  # of `token_values`: r and the rise of the logit
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
BINS = 20


def token_values(rank: Tensor, change: Tensor, classes: int) -> Tensor:
    """Ranks and rises of the logit (..., B, n) -> (..., 4, B, n) float64: r, is r = 1, did the logit rise, how much."""
    return torch.stack([identifiability(rank.double(), classes), rank == 0, change > 0, change], -3)


def rank_quantile(counts: Tensor, q: float) -> float:
    """The q-quantile of r from counts of half ranks (2K - 1,): the smallest r that a share q does not exceed."""
    by_r = counts.flip(0).cumsum(0)  # r rises as the rank falls
    place = int((by_r >= q * by_r[-1]).to(torch.int8).argmax())
    k = (len(counts) + 1) / 2
    return 1 - (len(counts) - 1 - place) / 2 / k


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

    optional = with_control("low", "high", "logit_change_low", "logit_change_high")  # one image: no interval

    def __init__(self, *, permutations: int = 999, **common: Any) -> None:
        super().__init__(**common)
        if permutations < 1:
            raise VitscopeError(f"permutations={permutations}: the test needs at least one, 999 are usual.")
        self.permutations = permutations

    def start_sums(self, model: Model) -> None:
        blocks, g = self.layout.blocks, len(self.groups)
        self.start_clusters("tokens", 4, len(STAGES), blocks)
        self.sums["any"] = zeros(len(STAGES), blocks, g)
        self.sums["ranks"] = zeros(len(STAGES), blocks, g, 2 * self.projector.classes - 1, dtype=torch.int64)
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

    def sum_up(self, readings: Readings, batch: Batch) -> None:
        embedding, *blocks = self._seen
        rank = torch.stack([reading.rank for reading in blocks]).unflatten(0, (-1, len(POINTS)))  # (L, 3, B, n)
        logit = torch.stack([reading.logit for reading in blocks]).unflatten(0, (-1, len(POINTS))).double()
        before = torch.cat([embedding.logit[None].double(), logit[:-1, 0]])  # (L, B, n): the residual before the block
        change = logit - before[:, None]
        self._ranks = rank[:, 0] if self.variant == "code" else self._ranks
        values = self._add(slice(0, 3), rank.transpose(0, 1), change.transpose(0, 1), readings)  # (3, L, 4, B, n)
        self._add((3, 0), embedding.rank, torch.zeros_like(embedding.logit, dtype=torch.float64), readings)
        if readings.masks is not None and "object" in self.groups:
            self._compare(values, readings)
        self._seen = []

    def _add(self, where: Any, rank: Tensor, change: Tensor, readings: Readings) -> Tensor:
        """Processes and rises (..., B, n), at index `where` of stages and blocks."""
        values = token_values(rank, change, self.projector.classes)  # (..., 4, B, n)
        self.add_clusters("tokens", where, values, readings.members)
        hits = torch.einsum("...bn,bgn->...bg", values[..., 1, :, :], readings.members)
        self.sums["any"][where].add_((hits > 0).double().sum(-2))
        half = (2 * rank).long()
        for g in range(len(self.groups)):
            inside = half[..., readings.members[:, g] > 0]  # (..., members)
            counts = self.sums["ranks"][where][..., g, :]
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
        import pandas as pd

        level, change, distribution = [], [], []
        for s, point in enumerate(STAGES):
            for block in range(self.layout.blocks if point != "resid_pre" else 1):
                for g, group in enumerate(self.groups):
                    r = self.mean_of("tokens", (s, block), 0, g, "fraction")
                    rate = self.mean_of("tokens", (s, block), 1, g, "share")
                    if r is None or rate is None:
                        continue
                    key = {"block": block, "point": point, "tokens": group}
                    counts = self.sums["ranks"][s, block, g]
                    some = 100 * float(self.sums["any"][s, block, g]) / r.images
                    level.append(key | _level_row(r, rate, counts, some) | {"n_classes": self.projector.classes})
                    distribution += [key | row for row in _bins(counts)]
                    if point != "resid_pre":
                        rose = self.mean_of("tokens", (s, block), 2, g, "share")
                        rise = self.mean_of("tokens", (s, block), 3, g)
                        assert rose is not None
                        assert rise is not None
                        change.append(key | _change_row(rose, rise))
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

    def _comparison(self) -> pd.DataFrame | None:
        import pandas as pd

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
        figures = {}
        for row in last.to_dict("records"):
            note = f"last block, {row['tokens']} tokens, variant {self.variant}"
            figures[f"identifiable_{row['tokens']}"] = Headline(float(row["rate"]), "%", int(row["n_images"]), note)
        return figures


def _level_row(r: Mean, rate: Mean, counts: Tensor, some: float) -> dict[str, float]:
    from vitscope.statistics.intervals import wilson

    low, high = wilson(some / 100 * r.images, r.images)
    quantiles = {f"q{round(100 * q):02d}": rank_quantile(counts, q) for q in QUANTILES}
    return {
        "mean": r.value, "low": r.low, "high": r.high, "mean_per_image": r.per_image, **quantiles,
        "rate": 100 * rate.value, "rate_low": 100 * rate.low, "rate_high": 100 * rate.high,
        "rate_per_image": 100 * rate.per_image,
        "images_with": some, "images_with_low": 100 * low, "images_with_high": 100 * high,
        "n_tokens": r.tokens, "n_images": r.images,
    }  # fmt: skip


def _change_row(rose: Mean, rise: Mean) -> dict[str, float]:
    return {
        "rate": 100 * rose.value, "rate_low": 100 * rose.low, "rate_high": 100 * rose.high,
        "rate_per_image": 100 * rose.per_image,
        "logit_change": rise.value, "logit_change_low": rise.low, "logit_change_high": rise.high,
        "n_tokens": rose.tokens, "n_images": rose.images,
    }  # fmt: skip


def _bins(counts: Tensor) -> list[dict[str, float]]:
    """Twenty bins of r, (from, to], from the exact counts of half ranks."""
    k = (len(counts) + 1) / 2
    r = 1 - torch.arange(len(counts), dtype=torch.float64) / 2 / k
    where = ((r * BINS).ceil().long() - 1).clamp(0, BINS - 1)
    shares = torch.zeros(BINS, dtype=torch.float64).index_add_(0, where, counts.double()) / counts.sum()
    return [{"from": b / BINS, "to": (b + 1) / BINS, "share": 100 * share} for b, share in enumerate(shares.tolist())]
