"""How large are the eigenvalues of the centred Gram matrix of the keys, and can they be what was published?

K~ a_d = lambda_d N a_d (Teo & Nguyen 2024, Eq. 11): the eigenvalues of the *Gram matrix* K~ are N lambda_d, those of
the *covariance* in feature space are lambda_d = eigenvalue / N. Published for ViT-Tiny, D_v eigenvalues averaged over
heads and layers: max 648.46, min 4.65, mean 40.07, median 17.73. But g(k_i) >= k(k_i, k_i), so K_phi[i, i] <= 1 and

    every eigenvalue of K~ <= trace K~ <= trace K_phi <= N,

and N = 197 there: 648.46 is impossible for the matrix as defined, of any keys whatsoever.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vitscope.analyses.base import Headline, register_analysis
from vitscope.analyses.kpca.analysis import KpcaAnalysis
from vitscope.analyses.kpca.conventions import PUBLISHED
from vitscope.analyses.kpca.eigen import numerical_rank
from vitscope.analyses.kpca.gram import Variant
from vitscope.analyses.kpca.keygram import KeyGram
from vitscope.errors import NumericalError, VitscopeError

if TYPE_CHECKING:
    import pandas as pd

    from vitscope.data.batch import Batch
    from vitscope.models import Model

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

    def __init__(
        self,
        variant: str = "exact",
        standardised: bool = False,
        of: str = "gram",
        control: str | None = None,
        every: int = 1,
        per_head: bool = False,
    ) -> None:
        super().__init__(variant, standardised, control, every, per_head)
        if of not in ("gram", "covariance"):
            raise VitscopeError(f"of={of!r} is not known: expected 'gram' or 'covariance' (the same divided by N).")
        self.of = of

    def start_sums(self, model: Model) -> None:
        blocks, heads = self.layout.blocks, self.layout.heads
        self.divisor = self.layout.tokens if self.of == "covariance" else 1
        self.start_moments(*self.METRICS, shape=(blocks, heads))
        self.start_moments("eigenvalue", "log10_eigenvalue", shape=(blocks, self.count))  # over images x heads
        self.start_moments(*PUBLISHED, shape=())
        self._waiting: dict[int, Tensor] = {}  # keys of blocks that are decomposed together, without a pause for each

    def read(self, block: int, q: Tensor, k: Tensor, v: Tensor, batch: Batch) -> None:
        options: dict[str, Any] = {"standardised": self.standardised, "variant": self.variant}
        if self.shared.has_vectors(**options):  # they are there for this block only
            gram = self.shared.gram(k, **options)
            self._add(batch, block, gram.eigenvalues, gram.log_scale, gram.trace)
            return
        if sum(keys.nbytes for keys in (*self._waiting.values(), k)) > WAITING:
            self._decompose_waiting(batch)
        self._waiting[block] = k.clone()  # a view would keep q and v as well

    def _decompose_waiting(self, batch: Batch) -> None:
        if not self._waiting:
            return
        blocks, keys = list(self._waiting), torch.cat(list(self._waiting.values()))
        gram = KeyGram(keys, standardised=self.standardised, variant=self.variant)  # type: ignore[arg-type]
        parts = (x.unflatten(0, (len(blocks), -1)) for x in (gram.eigenvalues, gram.log_scale, gram.trace))
        for block, *found in zip(blocks, *parts):
            self._add(batch, block, *found)
        self._waiting = {}

    def _add(self, batch: Batch, block: int, values: Tensor, log_scale: Tensor, uncentred: Tensor) -> None:
        """Eigenvalues (B, H, N), their scale (B, H) and the trace of the uncentred matrix (B, H)."""
        scale = log_scale.exp() / self.divisor
        trace = check_bound(values, uncentred, log_scale) / self.divisor
        top = values[..., : self.count]
        log_top = top.clamp_min(torch.finfo(top.dtype).tiny).log() + log_scale[..., None] - math.log(self.divisor)
        top = top * scale[..., None]
        found = {"largest": top[..., 0], "trace": trace, "trace_centred": values.sum(-1) * scale}
        found |= spectrum_shape(values, self.count) | {"rank": numerical_rank(values).double()}
        for metric, value in found.items():
            self.add_moments(metric, value, block)
        self.emit_heads("kpca_spectrum_image_heads", batch, block, found)
        self.add_moments("eigenvalue", top.flatten(0, 1), block)
        self.add_moments("log10_eigenvalue", log_top.flatten(0, 1) / math.log(10), block)
        if block == 0:
            self._by_rank, self._largest, self._trace = torch.zeros_like(top[:, 0]), trace[:, 0] * 0, trace[:, 0] * 0
        self._by_rank += top.mean(1) / self.layout.blocks
        self._largest = torch.maximum(self._largest, top[..., 0].amax(1))
        self._trace = torch.maximum(self._trace, trace.amax(1))

    def finish_batch(self, batch: Batch) -> None:
        self._decompose_waiting(batch)
        found = published_statistics(self._by_rank, self.variant)  # type: ignore[arg-type]  # each (B,)
        for name, value in found.items():
            self.add_moments(name, value)
        self.emit_images("kpca_spectrum_images", batch, found | {"largest": self._largest, "trace": self._trace})

    def tables(self) -> dict[str, pd.DataFrame]:
        import pandas as pd

        rows = self.images * self.layout.heads
        mean, std = self.moments("eigenvalue", rows)
        log_mean, log_std = self.moments("log10_eigenvalue", rows)
        block, axis = (i.flatten().numpy() for i in torch.meshgrid(*map(torch.arange, mean.shape), indexing="ij"))
        eigenvalues = pd.DataFrame(
            {"block": block, "axis": axis}
            | {"mean": mean.flatten().numpy(), "std": std.flatten().numpy()}
            | {"log10_mean": log_mean.flatten().numpy(), "log10_std": log_std.flatten().numpy(), "n": self.images}
        )
        n, spread = self.images, 1.0
        if self.variant == "code":  # from the divisor n to n - 1
            spread = math.sqrt(n / (n - 1)) if n > 1 else math.nan
        statistics = [
            {"statistic": name, "mean": float(self.moments(name)[0]), "std": float(self.moments(name)[1]) * spread}
            | {
                "published": PUBLISHED[name],
                "bound": self.layout.tokens / self.divisor,
                "of": self.of,
                "n": self.images,
            }
            for name in PUBLISHED
        ]
        tables = {"kpca_spectrum": self.heads_table(*self.METRICS), "kpca_eigenvalues": eigenvalues}
        return self.labelled(tables | {"kpca_eigenvalue_statistics": pd.DataFrame(statistics)})

    def summary(self) -> dict[str, Headline]:
        by_rank = f"largest of the {self.of}, averaged by rank over heads and blocks; no keys can exceed "
        bound = f"{self.layout.tokens / self.divisor:g}"
        return {
            "largest_eigenvalue": self.figure(self.moments("max")[0], "", by_rank + bound),
            "effective_rank": self.figure(
                self.moments("effective_rank")[0].mean(), "axes", "mean over heads and blocks"
            ),
        }
