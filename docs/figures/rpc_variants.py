"""Draws rpc_variants.svg, the figure of docs/attention.md: python docs/figures/rpc_variants.py"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from vitscope.attention.pursuit import pursue
from vitscope.attention.rpc import SIGNS, VARIANTS, Variant, rpc_threshold
from vitscope.report import figures as f
from vitscope.report.svg import save_figure

LAMBDA, SIZE, RANK, OUTLIERS, ITERATIONS = 4.0, 80, 4, 0.05, 30


def outlier_share(variant: Variant, sizes: list[float]) -> list[float]:
    """Share of key entries beyond the threshold in the first iteration; Gaussian keys in ViT-Tiny's shape."""
    keys = torch.randn(1, 3, 197, 64, generator=torch.Generator().manual_seed(0))
    return [100 * ((s * keys).abs() > rpc_threshold(s * keys, LAMBDA, variant)).double().mean().item() for s in sizes]


def recovery_error(variant: Variant) -> list[float]:
    """Relative error of the low-rank part after each iteration, with singular-value thresholding for attention."""
    generator = torch.Generator().manual_seed(0)
    low = torch.randn(SIZE, RANK, generator=generator, dtype=torch.float64)
    low = low @ torch.randn(RANK, SIZE, generator=generator, dtype=torch.float64)
    where = torch.rand(SIZE, SIZE, generator=generator) < OUTLIERS
    matrix = (low + where * 10 * torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64))[None, None]
    threshold, inverse_mu = rpc_threshold(matrix, SIZE**-0.5, variant), 4 * matrix.abs().mean()
    found: list[Tensor] = []

    def lower_singular_values(x: Tensor) -> Tensor:
        u, s, v = torch.linalg.svd(x, full_matrices=False)
        found.append(u * (s - inverse_mu).clamp_min(0) @ v)
        return found[-1]

    pursue(matrix, lower_singular_values, threshold, SIGNS[variant], ITERATIONS + 1)
    return [((x - low).norm() / low.norm()).item() for x in found]


def main() -> None:
    sizes = torch.logspace(-1, 1, 41).tolist()
    styles = f.model_styles(VARIANTS)
    with f.house_style():
        figure, (left, right) = f.new_figure(columns=2, height=2.6, share_x=False, share_y=False)
        for variant in VARIANTS:
            style = styles[variant]
            share, error = outlier_share(variant, sizes), recovery_error(variant)
            dash = ":" if variant == "exact" else "-"  # on the left it lies on `paper`
            left.plot(sizes, share, color=style.colour, linestyle=dash, label=variant)
            right.plot(range(1, len(error) + 1), error, color=style.colour, linestyle=dash, label=variant)
        f.log_axis(left, "x")
        f.log_axis(right)
        right.set_ylim(1e-7, 1e7)
        f.label_axes(left, x="standard deviation of the keys", y="key entries in S (%)", title="What counts as outlier")
        f.label_axes(right, x="iteration", y="relative error of L", title="Low rank + sparse, thresholded SVD")
        left.legend(loc="upper left")
        _, png = save_figure(figure, Path(__file__).parent, "rpc_variants")
        png.unlink()  # the page shows the SVG


if __name__ == "__main__":
    main()
