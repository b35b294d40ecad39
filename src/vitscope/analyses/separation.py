"""How far apart are the classes, layer by layer? Separation fuzziness (He & Su, PNAS 2023, arXiv 2210.17020).

With n_k images of class k, class means m_k and the mean m of all n images,

    SSB = sum_k w_k (m_k - m)(m_k - m)^T,   SSW = sum_k w_k / n_k sum_i (x_ki - m_k)(x_ki - m_k)^T,
    D   = trace(SSW pinv(SSB)),

small where classes are tight and far apart. `averaging="class"` takes w_k = 1/K, every class alike (Varam et al. 2025);
`"samples"` takes w_k = n_k/n (He & Su). They agree for classes of equal size.

SSB has rank at most K, so nothing is inverted in d dimensions. Let A be the (K, d) matrix with rows
sqrt(w_k) (m_k - m) and A = U S V^T its thin singular value decomposition. Then pinv(SSB) = V S^-2 V^T and

    D = sum_r (v_r^T SSW v_r) / s_r^2,

where v_r^T SSW v_r comes from the scatter of the features along each class axis v_r.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from vitscope.analyses.base import Analysis, Figure, register_analysis, zeros
from vitscope.errors import DataError, UnsupportedModelError, VitscopeError

if TYPE_CHECKING:
    import pandas as pd

    from vitscope.data import ImageData
    from vitscope.data.batch import Batch
    from vitscope.models import Model, Preprocess

Averaging = Literal["class", "samples"]
CUTOFF = 1e-10  # of SSB's largest eigenvalue: the pseudo-inverse drops smaller ones, as the published program does
MOST_BYTES = 2 << 30  # what the class-wise second moments of all points may take
MOST_PIXEL_NUMBERS = 4_000_000  # classes x pixels up to which the raw pixels are measured


@dataclass(frozen=True)
class ClassAxes:
    """Principal axes of the class means: what is left of SSB once it is known."""

    axes: Tensor  # (R, d) orthonormal
    strengths: Tensor  # (R,) eigenvalues of SSB, all above the cutoff
    means: Tensor  # (K, d)
    weights: Tensor  # (K,) w_k


def class_axes(counts: Tensor, sums: Tensor, averaging: Averaging) -> ClassAxes:
    """Axes from the class sizes (K,) and sums of features (K, d); classes without an image do not count."""
    present = counts > 0
    counts, sums = counts[present].double(), sums[present].double()
    means = sums / counts[:, None]  # (K, d)
    total = counts.sum()
    weights = torch.full_like(counts, 1 / len(counts)) if averaging == "class" else counts / total
    scaled = weights.sqrt()[:, None] * (means - sums.sum(0) / total)  # (K, d)
    _, s, vt = torch.linalg.svd(scaled, full_matrices=False)
    strengths = s.square()  # descending
    kept = strengths > CUTOFF * strengths[0] if len(strengths) else strengths > 0
    return ClassAxes(vt[kept], strengths[kept], means, weights)


def fuzziness_along(axes: ClassAxes, scatter: Tensor) -> float:
    """D from the mean square deviation of each class along each axis (K, R). NaN where the class means coincide."""
    if len(axes.strengths) == 0 or not axes.strengths[0] > 0:
        return float("nan")
    return float((axes.weights[:, None] * scatter / axes.strengths).sum())


def fuzziness(features: Tensor, labels: Tensor, averaging: Averaging = "class") -> float:
    """Separation fuzziness of features (n, d) with integer labels (n,), in float64."""
    features = features.double()
    _, classes, counts = labels.unique(return_inverse=True, return_counts=True)
    sums = torch.zeros(len(counts), features.shape[1], dtype=torch.float64).index_add_(0, classes, features)
    axes = class_axes(counts, sums, averaging)
    deviations = (features - axes.means[classes]) @ axes.axes.T  # (n, R)
    squares = torch.zeros(len(counts), len(axes.axes), dtype=torch.float64).index_add_(0, classes, deviations**2)
    return fuzziness_along(axes, squares / counts[:, None])


def fuzziness_from_moments(counts: Tensor, sums: Tensor, squares: Tensor, averaging: Averaging) -> float:
    """D from class sizes (K,), sums of features (K, d) and of their outer products (K, d, d)."""
    axes = class_axes(counts, sums, averaging)
    present = counts > 0
    moments = torch.einsum("rd,kde,re->kr", axes.axes, squares[present], axes.axes) / counts[present][:, None].double()
    scatter = moments - (axes.means @ axes.axes.T) ** 2  # E[(v.x)^2] - (v.m)^2, float64
    return fuzziness_along(axes, scatter.clamp_min(0))


def is_constant(counts: Tensor, sums: Tensor, squares: Tensor) -> bool:
    """Do all images have the same features, up to rounding? D is undefined then."""
    n = counts.sum().double()
    total = squares.diagonal(dim1=-2, dim2=-1).sum()  # sum of |x|^2
    spread = total / n - (sums.sum(0) / n).square().sum()
    return bool(spread <= 1e-12 * total / n)


@register_analysis("separation")
class Separation(Analysis):
    """Fuzziness of raw pixels, embedding, class and mean token of every block, and logits, from one pass.

    The embedding (what enters the first block) is the control: from pixels to it the *space* changes, from it to the
    first block a layer acts. State per point: K (d + d^2) float64; time per image and point: d^2.
    """

    uses_labels = True
    optional = ("fuzziness",)

    def __init__(self, averaging: Averaging = "class", pixels: bool | None = None) -> None:
        super().__init__()
        if averaging not in ("class", "samples"):
            raise VitscopeError(f"separation: averaging={averaging!r} is unknown. Choose 'class' or 'samples'.")
        self.averaging: Averaging = averaging
        self.pixels = pixels  # None: where classes x pixels is small enough (CIFAR-100 is, ImageNet is not)
        self._pixel_fuzziness: float | None = None

    def needs(self, model: Model) -> Sequence[str]:
        return ["blocks.0.hook_resid_pre", "blocks.*.hook_resid_post"]

    def prepare(self, data: ImageData, model: Model) -> None:
        """Raw pixels have too many dimensions for second moments: two passes over the images, without the model."""
        size = data.num_classes * torch.Size(model.preprocess.input_size).numel()
        wanted = size <= MOST_PIXEL_NUMBERS if self.pixels is None else self.pixels
        if wanted:
            self._pixel_fuzziness = pixel_fuzziness(data, model.preprocess, self.averaging)

    def start(self, model: Model) -> None:
        layout, k = model.layout, model.num_classes
        if not k:
            raise UnsupportedModelError(f"separation needs classes, and {model.name} has none.")
        self._tokens = {"class": slice(0, 1)} if layout.class_tokens else {}
        self._tokens["mean"] = slice(layout.prefix_tokens, layout.tokens)
        sizes = {
            f"{place}.{token}": layout.width
            for place in ["embedding", *(f"block{i}" for i in range(layout.blocks))]
            for token in self._tokens
        }
        sizes["logits"] = k
        needed = sum(8 * k * d * d for d in sizes.values())
        if needed > MOST_BYTES:
            raise UnsupportedModelError(
                f"separation keeps second moments of every class: {k} classes x {layout.width} dimensions x "
                f"{len(sizes)} points would take {needed / 2**30:.0f} GiB (at most {MOST_BYTES >> 30} are allowed). "
                "Choose fewer classes, or a narrower model."
            )
        self._blocks = layout.blocks
        self.sums = {"counts": zeros(k, dtype=torch.int64)}
        for name, d in sizes.items():
            self.sums[f"{name}:sum"] = zeros(k, d)
            self.sums[f"{name}:square"] = zeros(k, d, d)

    def update(self, block: int, points: Mapping[str, Tensor], batch: Batch) -> None:
        for name, value in points.items():  # (B, N, C)
            place = "embedding" if name.endswith("resid_pre") else f"block{block}"
            for token, where in self._tokens.items():
                self._count(f"{place}.{token}", value[:, where].mean(1), batch.labels)

    def end_batch(self, batch: Batch) -> None:
        assert batch.logits is not None
        self._count("logits", batch.logits, batch.labels)
        known = batch.labels[batch.labels >= 0]
        self.add("counts", torch.bincount(known, minlength=len(self.sums["counts"])))

    def _count(self, name: str, features: Tensor, labels: Tensor) -> None:
        """Add features (B, d) to the sums of their classes."""
        x = features.detach().to("cpu", torch.float64)
        sums, squares = self.sums[f"{name}:sum"], self.sums[f"{name}:square"]
        for k in labels.unique().tolist():
            if k >= 0:
                mine = x[labels == k]  # (n, d)
                sums[k] += mine.sum(0)
                squares[k].addmm_(mine.T, mine)

    def tables(self) -> dict[str, pd.DataFrame]:
        import pandas as pd

        counts = self.sums["counts"]
        present = int((counts > 0).sum())
        if present < 2:
            raise DataError(f"separation needs images of two classes or more; here {present} class(es) have any.")
        rows = []
        if self._pixel_fuzziness is not None:
            rows.append(("pixels", "", 0, self._pixel_fuzziness))
        for key in self.sums:
            name, _, kind = key.partition(":")
            if kind == "sum":
                place, _, token = name.partition(".")
                layer = {"embedding": 0, "logits": self._blocks + 1}.get(place)
                layer = int(place.removeprefix("block")) + 1 if layer is None else layer
                moments = counts, self.sums[f"{name}:sum"], self.sums[f"{name}:square"]
                value = float("nan") if is_constant(*moments) else fuzziness_from_moments(*moments, self.averaging)
                rows.append((place.rstrip("0123456789"), token, layer, value))
        table = pd.DataFrame(rows, columns=["point", "token", "layer", "fuzziness"])
        table["defined"] = table["fuzziness"].notna()  # constant features or coinciding class means have no D
        table["images"] = int(counts.sum())
        table["classes"] = present
        table["averaging"] = self.averaging
        return {"separation": table}

    def summary(self) -> dict[str, Figure]:
        table = self.tables()["separation"]
        token = "class" if (table["token"] == "class").any() else "mean"
        last = table[(table["point"] == "block") & (table["token"] == token)].iloc[-1]
        if not last["defined"]:
            return {}
        note = f"{token} token of the last block, {self.averaging}-averaged"
        return {"last_block": Figure(float(last["fuzziness"]), "", int(last["images"]), note)}


_PIXELS: weakref.WeakKeyDictionary[ImageData, dict[tuple[Preprocess, str], float]] = weakref.WeakKeyDictionary()


def pixel_fuzziness(data: ImageData, preprocess: Preprocess, averaging: Averaging = "class") -> float:
    """Fuzziness of raw pixels at the model's input size: class means first, then the scatter along their axes.

    Kept per dataset: pixels do not change while a model trains. Memory: K x d; time: 2 passes, K x d per image.
    """
    known = _PIXELS.setdefault(data, {})
    if (preprocess, averaging) not in known:
        known[preprocess, averaging] = _pixel_fuzziness(data, preprocess, averaging)
    return known[preprocess, averaging]


def _pixel_fuzziness(data: ImageData, preprocess: Preprocess, averaging: Averaging) -> float:
    k, d = data.num_classes, torch.Size(preprocess.input_size).numel()
    mean, std = (torch.tensor(v)[:, None, None] for v in (preprocess.mean, preprocess.std))
    counts, sums = zeros(k, dtype=torch.int64), zeros(k, d)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for batch in data.batches(preprocess, 250):
            pixels = (batch.images * std + mean).flatten(1).double()  # (B, d) in [0, 1]
            known = batch.labels >= 0
            yield pixels[known], batch.labels[known]

    for pixels, labels in batches():
        counts += torch.bincount(labels, minlength=k)
        sums.index_add_(0, labels, pixels)
    axes = class_axes(counts, sums, averaging)
    present = counts > 0
    centres = zeros(k, len(axes.axes))
    centres[present] = axes.means @ axes.axes.T  # (K, R)
    squares = zeros(k, len(axes.axes))
    for pixels, labels in batches():
        squares.index_add_(0, labels, (pixels @ axes.axes.T - centres[labels]) ** 2)
    return fuzziness_along(axes, squares[present] / counts[present][:, None])
