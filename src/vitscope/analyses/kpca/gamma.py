"""Are the vectors behind the learnt values eigenvectors of the Gram matrix?

If V has the form of the theorem, v_dj = (a_dj - mean a_d) / g(k_j), the coefficients come back as
a_d = (I - 1_N)^+ G^-1 V[:, d] with G = diag(1 / g(k_j)); and if they are eigenvectors, K~ a_d = lambda_d N a_d, then

    gamma_i = (K~ a_d)_i / (N a_di)

is the same number lambda_d for every token i (Teo & Nguyen 2024, section 2.2.2). The published evidence is that
|gamma_i - gamma_j| is small. But gamma itself is tiny (K~ has entries of order 1 / N^2), for *any* vector: random ones
pass the test as well. What tells eigenvectors from others is relative: |gamma_i - gamma_j| / max(|gamma_i|, |gamma_j|),
or the residual

    ||K~ a - rho a|| / ||K~ a||,   rho = a.K~a / a.a   (the sine of the angle between a and K~ a; 0 for an eigenvector).

I - 1_N is a projector of rank N - 1: the published inverse does not exist. Its pseudo-inverse is itself, and what it
loses, the mean of G^-1 V, must be zero for any V of the theorem's form: `off_centre` says how far it is from that.

The program of the reproduction study (variant `code`) adds 1e-10 to the denominator of the relative difference: no
little, where gamma is 1e-7 for the first axes and less for the others.
"""

from __future__ import annotations

import pandas as pd
import torch
from torch import Tensor

from vitscope.analyses.base import Headline, register_analysis
from vitscope.analyses.kpca import nulls
from vitscope.analyses.kpca.alignment import ratio
from vitscope.analyses.kpca.analysis import KpcaAnalysis
from vitscope.analyses.kpca.conventions import VECTORS
from vitscope.analyses.kpca.gram import Variant, centred_gram, double, standardise
from vitscope.analyses.kpca.pairs import mean_size, pair_differences, relative_pair_differences, signed_mean
from vitscope.analyses.kpca.threads import over_images
from vitscope.data.batch import Batch
from vitscope.models import Model

NOISE = 0.1  # of the published perturbation
CODE_RELATIVE = 1e-10  # the published program adds it to max(|gamma_i|, |gamma_j|)
METRICS = ("absolute", "absolute_std", "relative", "relative_std", "size", "signed", "residual")


def recovered_vectors(v: Tensor, log_g: Tensor) -> tuple[Tensor, Tensor]:
    """a^ = (I - 1_N) G^-1 V up to a factor per head (..., N, D), and its `off_centre` (..., D).

    off_centre: the share of ||G^-1 V[:, d]|| that lies in the mean, from 0 (as the theorem needs) to 1.
    """
    scaled = v * (log_g - log_g.amax(-1, keepdim=True)).exp()[..., None]  # g(k_j) v_j, the largest g being 1
    mean = scaled.mean(-2, keepdim=True)
    size = mean.abs() * scaled.shape[-2] ** 0.5
    return scaled - mean, ratio(size, scaled.square().sum(-2, keepdim=True).sqrt_()).squeeze(-2)


def perturbed_vectors(vectors: Tensor, noise: Tensor) -> Tensor:
    """Orthonormal columns from eigenvectors + 0.1 noise, the noise standard normal: (..., N, D)."""
    return torch.linalg.qr(vectors + NOISE * noise)[0]


def gamma(matrix: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """gamma (..., D, N) and the residual (..., D) of vectors (..., N, D) under a symmetric matrix (..., N, N).

    gamma is not finite where a vector's entry is zero: there the equation says nothing about it.
    """
    a = vectors.mT.contiguous()  # (..., D, N)
    image = a @ matrix  # K~ a, K~ being symmetric
    length = a.square().sum(-1)
    rho = ratio((a * image).sum(-1), length)
    residual = ratio((rho[..., None] * a).sub_(image).norm(dim=-1), image.norm(dim=-1))
    return image.div_(a * a.shape[-1]), residual


def gamma_statistics(
    matrix: Tensor, vectors: Tensor, log_scale: Tensor, variant: Variant = "exact"
) -> dict[str, Tensor]:
    """Per axis (..., D), of K~ = exp(log_scale) * matrix: pairwise |gamma_i - gamma_j| and what to hold it against.

    `size` is the mean |gamma_i|: an absolute difference that is not small beside it is not small. `signed` is the mean
    gamma_i. For `code`, relative differences are |gamma_i - gamma_j| / (max(|gamma_i|, |gamma_j|) + 1e-10).
    """
    g, residual = gamma(matrix, vectors)
    scale = log_scale.exp()[..., None]
    absolute, absolute_std = pair_differences(g)
    added = (CODE_RELATIVE / scale).expand(g.shape[:-1]) if variant == "code" else None  # in units of g
    relative, relative_std = relative_pair_differences(g, added)
    return {
        "absolute": absolute * scale,
        "absolute_std": absolute_std * scale,
        "relative": relative,
        "relative_std": relative_std,
        "size": mean_size(g) * scale,
        "signed": signed_mean(g) * scale,
        "residual": residual,
    }


def off_centre(vectors: Tensor) -> Tensor:
    """The share of each column's length that lies in its mean, 0 to 1: (..., N, D) -> (..., D)."""
    return ratio(vectors.mean(-2).abs() * vectors.shape[-2] ** 0.5, vectors.square().sum(-2).sqrt_())


@register_analysis("kpca.gamma")
class Gamma(KpcaAnalysis):
    """gamma of the true eigenvectors, of perturbed ones, of those recovered from the learnt V, and of random vectors.

    Tables: `kpca_gamma` (per block and axis), `kpca_gamma_average` (per axis), `kpca_gamma_heads` (per head), and per
    image and block `kpca_gamma_images` (with `per_head`, and head, `kpca_gamma_image_heads`). Means and deviations are
    over images and heads; `absolute_std` and `relative_std` are over the pairs of tokens within a head.
    """

    axes_needed = True

    def start_sums(self, model: Model) -> None:
        self.shared.want_vectors(self, standardised=self.standardised, variant=self.variant)  # type: ignore[arg-type]
        blocks, heads = self.layout.blocks, self.layout.heads
        for kind in VECTORS:
            self.start_moments(*(f"{kind}.{metric}" for metric in METRICS), shape=(blocks, self.count))
            self.start_moments(f"{kind}.head_residual", f"{kind}.head_off_centre", shape=(blocks, heads))

    def read(self, block: int, q: Tensor, k: Tensor, v: Tensor, batch: Batch) -> None:
        variant: Variant = self.variant  # type: ignore[assignment]
        gram = self.shared.gram(k, vectors=True, standardised=self.standardised, variant=variant)
        seed = self.setting.seed

        def measure(k: Tensor, v: Tensor, vectors: Tensor, log_g: Tensor, images: Tensor) -> dict[str, Tensor]:
            own = centred_gram(standardise(k, variant) if self.standardised else k, variant)
            shape = tuple(vectors.shape[1:])
            noise, random = (
                nulls.normal(shape, seed, stream, block, images).to(vectors) for stream in (nulls.NOISE, nulls.VECTORS)
            )
            recovered, lost = recovered_vectors(double(v), log_g)
            kinds = (vectors, perturbed_vectors(vectors, noise), recovered, random)
            found: dict[str, Tensor] = {}
            for kind, a in zip(VECTORS, kinds):
                found |= {f"{kind}.{m}": x for m, x in gamma_statistics(own.matrix, a, own.log_scale, variant).items()}
                found[f"{kind}.off_centre"] = lost if kind == "recovered" else off_centre(a)
            return found

        found = over_images(measure, k, v, self.axes_of(gram), gram.log_g, batch.indices)  # each (B, H, D)
        for kind in VECTORS:
            for metric in METRICS:
                self.add_moments(f"{kind}.{metric}", found[f"{kind}.{metric}"].flatten(0, 1), block)
            for metric in ("residual", "off_centre"):
                self.add_moments(f"{kind}.head_{metric}", found[f"{kind}.{metric}"].mean(-1), block)
            columns = {m: found[f"{kind}.{m}"].mean((1, 2)) for m in (*METRICS, "off_centre")}
            self.emit_images("kpca_gamma_images", batch, {"block": block, "vectors": kind} | columns)
            each = {m: found[f"{kind}.{m}"].mean(2) for m in (*METRICS, "off_centre")}
            self.emit_heads("kpca_gamma_image_heads", batch, block, {"vectors": kind} | each)

    def tables(self) -> dict[str, pd.DataFrame]:
        heads_each, blocks = self.layout.heads, self.layout.blocks
        rows = int(self.seen.sum()) * heads_each
        per_block, average, heads = [], [], []
        for kind in VECTORS:
            whole: dict[str, object] = {"vectors": kind, "axis": range(self.count)}
            place = {"block": [b for b in range(blocks) for _ in range(self.count)], "vectors": kind}
            each: dict[str, object] = place | {"axis": [*range(self.count)] * blocks}
            for metric in METRICS:
                key = f"{kind}.{metric}"
                mean, std = self.moments(key, heads_each)
                each |= {metric: mean.flatten().numpy(), f"{metric}_deviation": std.flatten().numpy()}
                total = (self.sums[x].sum(0) / max(1, rows) for x in (key, f"{key}.squared"))
                mean, squares = total
                std = (squares - mean.square()).clamp_min(0).sqrt()
                whole |= {metric: mean.numpy(), f"{metric}_deviation": std.numpy()}
            per_block.append(pd.DataFrame(each | {"n": self.seen.repeat_interleave(self.count).numpy()}))
            average.append(pd.DataFrame(whole | {"n": self.images}))
            for metric in ("residual", "off_centre"):
                frame = self.heads_table(f"{kind}.head_{metric}")
                heads.append(frame.assign(metric=metric, vectors=kind))
        tables = {"kpca_gamma": per_block, "kpca_gamma_average": average, "kpca_gamma_heads": heads}
        return self.labelled({name: pd.concat(frames, ignore_index=True) for name, frames in tables.items()})

    def summary(self) -> dict[str, Headline]:
        notes = {
            "recovered": "of the vectors behind the learned values; 0 for eigenvectors",
            "random": "of random vectors",
        }
        return {
            f"residual_{kind}": self.figure(self.over_blocks(f"{kind}.head_residual"), "", note)
            for kind, note in notes.items()
        }
