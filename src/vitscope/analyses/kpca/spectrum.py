"""How large are the eigenvalues of the centred Gram matrix of the keys, and can they be what was published?

K~ a_d = lambda_d N a_d (Teo & Nguyen 2024, Eq. 11): the eigenvalues of the *Gram matrix* K~ are N lambda_d, those of
the *covariance* in feature space are lambda_d = eigenvalue / N. Published for ViT-Tiny, D_v eigenvalues averaged over
heads and layers: max 648.46, min 4.65, mean 40.07, median 17.73. But g(k_i) >= k(k_i, k_i), so K_phi[i, i] <= 1 and

    every eigenvalue of K~ <= trace K~ <= trace K_phi <= N,

and N = 197 there: 648.46 is impossible for the matrix as defined, of any keys whatsoever.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from vitscope.analyses.base import Headline, register_analysis, zeros
from vitscope.analyses.kpca.analysis import KpcaAnalysis
from vitscope.analyses.kpca.conventions import PUBLISHED
from vitscope.analyses.kpca.eigen import numerical_rank
from vitscope.analyses.kpca.gram import Variant
from vitscope.analyses.kpca.keygram import KeyGram
from vitscope.data.batch import Batch
from vitscope.errors import NumericalError, VitscopeError
from vitscope.models import Model
from vitscope.statistics.moments import mean_std

WAITING = 2**26  # bytes of activations that may wait: enough to keep all cores busy, little beside a batch


def spectrum_shape(values: Tensor, count: int) -> dict[str, Tensor]:
    """Scale-free descriptions of eigenvalues (..., N), each (...).

    effective_rank: exp of the entropy of the shares p_d = lambda_d / sum lambda (Roy & Vetterli 2007); participation:
    1 / sum p_d^2; top_share: sum of the first `count` shares.
    """
    total = values.sum(-1, keepdim=True)
    shares = values / torch.where(total > 0, total, 1.0)
    return {
        "effective_rank": torch.special.entr(shares).sum(-1).exp(),
        "participation": 1 / torch.where(total[..., 0] > 0, shares.square().sum(-1), 1.0),
        "top_share": shares[..., :count].sum(-1),
    }


def published_statistics(values: Tensor, variant: Variant = "exact") -> dict[str, Tensor]:
    """max, min, mean and median of eigenvalues averaged by rank: (..., D) -> four of (...).

    Of an even number, the median is the mean of the two in the middle; for `code` it is the lower one.
    """
    ordered = values.sort(-1).values
    d = values.shape[-1]
    middle = ordered[..., [(d - 1) // 2, (d - 1) // 2 if variant == "code" else d // 2]].mean(-1)
    return {"max": ordered[..., -1], "min": ordered[..., 0], "mean": values.mean(-1), "median": middle}


def check_bound(values: Tensor, trace: Tensor, log_scale: Tensor, slack: float = 1e-9) -> Tensor:
    """trace K_phi (...), after checking that eigenvalues <= trace K~ <= trace K_phi <= N. All but it are scaled.

    A violation means that the numbers are wrong, whatever the model.
    """
    n = values.shape[-1]
    total = trace * log_scale.exp()
    for holds, what in (
        ((values <= values.sum(-1, keepdim=True) * (1 + slack)).all(), "an eigenvalue exceeds the trace of K~"),
        ((values.sum(-1) <= trace * (1 + slack)).all(), "the trace of K~ exceeds that of K_phi"),
        ((total <= n * (1 + slack)).all(), f"the trace of K_phi exceeds the number of tokens, {n}"),
    ):
        if not holds:
            raise NumericalError(f"The spectrum violates a bound that holds for all keys: {what}. Please report this.")
    return total


@dataclass(frozen=True)
class _Keys:
    """Keys of a block (B, H, N, D) that wait for their decomposition."""

    block: int
    keys: Tensor
    batch: Batch


@dataclass
class _Totals:
    """What comes together over the blocks for images with the same number of tokens."""

    batch: Batch
    by_rank: Tensor  # (B, axes) eigenvalues, mean over heads and blocks
    largest: Tensor  # (B,) over heads and blocks
    trace: Tensor  # (B,) the same of traces

    def add(self, top: Tensor, trace: Tensor, blocks: int) -> None:
        """Eigenvalues (B, H, axes) and traces (B, H) of one of so many blocks."""
        self.by_rank += top.mean(1) / blocks
        self.largest = torch.maximum(self.largest, top[..., 0].amax(1))
        self.trace = torch.maximum(self.trace, trace.amax(1))


@register_analysis("kpca.spectrum")
class Spectrum(KpcaAnalysis):
    """Eigenvalues per image, head and block; `of`='covariance' divides them by the number of tokens.

    Tables: `kpca_spectrum` (per head: trace, effective rank, ...), `kpca_eigenvalues` (per block and axis),
    `kpca_eigenvalue_statistics` (averaged by rank over heads and blocks, then max/min/mean/median: the published way),
    and per image `kpca_spectrum_images` (with `per_head`, per image, block and head `kpca_spectrum_image_heads`). With
    variant 'code', the deviation of these statistics over images has the divisor n - 1, and one image has none.
    """

    optional = ("std",)
    METRICS = ("largest", "trace", "trace_centred", "effective_rank", "participation", "top_share", "rank")

    def __init__(self, *, of: str = "gram", **common: Any) -> None:
        super().__init__(**common)
        if of not in ("gram", "covariance"):
            raise VitscopeError(f"of={of!r} is not known: expected 'gram' or 'covariance' (the same divided by N).")
        self.of = of

    def start_sums(self, model: Model) -> None:
        blocks, heads = self.layout.blocks, self.layout.heads
        self.start_moments(*self.METRICS, shape=(blocks, heads))
        self.start_moments("eigenvalue", "log10_eigenvalue", shape=(blocks, self.count))  # over images x heads
        if self.layout.sequence:
            self.sums["having"] = zeros(blocks, self.count, dtype=torch.int64)  # texts that have so many axes
        self.start_moments(*PUBLISHED, shape=())
        self._waiting: list[_Keys] = []  # of blocks that are decomposed together, without a pause for each
        self._totals: dict[int, _Totals] = {}  # by the number of tokens

    def read(self, block: int, q: Tensor, k: Tensor, v: Tensor, batch: Batch) -> None:
        options: dict[str, Any] = {"standardised": self.standardised, "variant": self.variant}
        if self.shared.has_vectors(**options):  # they are there for this block only
            gram = self.shared.gram(k, **options)
            self._add(batch, block, gram.eigenvalues, gram.log_scale, gram.trace)
            return
        if sum(waiting.keys.nbytes for waiting in self._waiting) + k.nbytes > WAITING:
            self._decompose_waiting()
        self._waiting.append(_Keys(block, k.clone(), batch))  # a view would keep q and v as well

    def _decompose_waiting(self) -> None:
        for tokens in dict.fromkeys(waiting.keys.shape[2] for waiting in self._waiting):
            alike = [waiting for waiting in self._waiting if waiting.keys.shape[2] == tokens]
            keys = torch.cat([waiting.keys for waiting in alike])
            gram = KeyGram(keys, standardised=self.standardised, variant=self.variant)  # type: ignore[arg-type]
            parts = (x.unflatten(0, (len(alike), -1)) for x in (gram.eigenvalues, gram.log_scale, gram.trace))
            for waiting, *found in zip(alike, *parts):
                self._add(waiting.batch, waiting.block, *found)
        self._waiting = []

    def _add(self, batch: Batch, block: int, values: Tensor, log_scale: Tensor, uncentred: Tensor) -> None:
        """Eigenvalues (B, H, N), their scale (B, H) and the trace of the uncentred matrix (B, H)."""
        tokens = values.shape[-1]
        divisor = tokens if self.of == "covariance" else 1
        scale = log_scale.exp() / divisor
        trace = check_bound(values, uncentred, log_scale) / divisor
        axes = min(self.count, tokens - 1) if "having" in self.sums else self.count  # of N centred keys N - 1 are left
        top = values[..., :axes]
        log_top = top.clamp_min(torch.finfo(top.dtype).tiny).log() + log_scale[..., None] - math.log(divisor)
        top = top * scale[..., None]
        found = {"largest": top[..., 0], "trace": trace, "trace_centred": values.sum(-1) * scale}
        found |= spectrum_shape(values, self.count) | {"rank": numerical_rank(values).double()}
        for metric, value in found.items():
            self.add_moments(metric, value, block)
        self.emit_heads("kpca_spectrum_image_heads", batch, block, found)
        where = (block, slice(axes))
        self.add_moments("eigenvalue", top.flatten(0, 1), where)
        self.add_moments("log10_eigenvalue", log_top.flatten(0, 1) / math.log(10), where)
        if "having" in self.sums:
            self.sums["having"][where] += len(batch)
        if tokens not in self._totals:
            nothing = torch.zeros_like(trace[:, 0])
            self._totals[tokens] = _Totals(batch, torch.zeros_like(top[:, 0]), nothing, nothing)
        self._totals[tokens].add(top, trace, sum(self.blocks_of(tokens)))

    def finish_batch(self, batch: Batch) -> None:
        self._decompose_waiting()
        for totals in self._totals.values():
            found = published_statistics(totals.by_rank, self.variant)  # type: ignore[arg-type]  # each (B,)
            for name, value in found.items():
                self.add_moments(name, value)
            largest = {"largest": totals.largest, "trace": totals.trace}
            self.emit_images("kpca_spectrum_images", totals.batch, found | largest)
        self._totals = {}

    @property
    def bound(self) -> float:
        """What the largest eigenvalue cannot exceed, mean over images: N, and 1 for the covariance."""
        if self.of == "covariance":
            return 1.0
        return float(self.sums["tokens"]) / max(1, self.images) if "tokens" in self.sums else float(self.layout.tokens)

    def tables(self) -> dict[str, pd.DataFrame]:
        having = self.sums.get("having", self.seen[:, None].expand(-1, self.count))  # (blocks, axes)
        rows = (having * self.layout.heads).clamp_min(1)
        (mean, std), (log_mean, log_std) = (
            mean_std(rows, self.sums[key], self.sums[f"{key}.squared"]) for key in ("eigenvalue", "log10_eigenvalue")
        )
        block, axis = (i.flatten().numpy() for i in torch.meshgrid(*map(torch.arange, mean.shape), indexing="ij"))
        eigenvalues = pd.DataFrame(
            {"block": block, "axis": axis}
            | {"mean": mean.flatten().numpy(), "std": std.flatten().numpy()}
            | {"log10_mean": log_mean.flatten().numpy(), "log10_std": log_std.flatten().numpy()}
            | {"n": having.flatten().numpy()}
        )
        n, spread = self.images, 1.0
        if self.variant == "code":  # from the divisor n to n - 1
            spread = math.sqrt(n / (n - 1)) if n > 1 else math.nan
        statistics = [
            {"statistic": name, "mean": float(self.moments(name)[0]), "std": float(self.moments(name)[1]) * spread}
            | {"published": PUBLISHED[name], "bound": self.bound, "of": self.of, "n": self.images}
            for name in PUBLISHED
        ]
        tables = {"kpca_spectrum": self.heads_table(*self.METRICS), "kpca_eigenvalues": eigenvalues}
        return self.labelled(tables | {"kpca_eigenvalue_statistics": pd.DataFrame(statistics)})

    def summary(self) -> dict[str, Headline]:
        by_rank = f"largest of the {self.of}, averaged by rank over heads and blocks; no keys can exceed "
        bound = f"{self.bound:g}"
        if "tokens" in self.sums:
            bound += ", the mean number of tokens" if self.of == "gram" else ""
        return {
            "largest_eigenvalue": self.figure(self.moments("max")[0], "", by_rank + bound),
            "effective_rank": self.figure(self.over_blocks("effective_rank"), "axes", "mean over heads and blocks"),
        }
