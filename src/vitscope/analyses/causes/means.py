"""The mean of points over the data: what a component says when it says nothing about this image.

Pictures have a mean at every token; texts, whose places mean little, one of all tokens. Padding is in none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitscope.analyses.base import Analysis, Setting, register_analysis, zeros
from vitscope.analyses.one_pass import measure
from vitscope.architectures.text_layout import token_ids
from vitscope.data import Data
from vitscope.data.batch import Batch
from vitscope.errors import DataError, UnsuitableDataError, VitscopeError
from vitscope.models import Model

FILE = "means.safetensors"
NOTHING = "A mean over no images: none of the data could be read. Choose others, or method='zero'."


@register_analysis("point_means")
class PointMeans(Analysis):
    """Means of points over images, per token; over tokens where they are those of texts. points: names or globs."""

    default = False
    controllable = False

    def __init__(self, points: Sequence[str] = ()) -> None:
        super().__init__()
        self.points = [points] if isinstance(points, str) else list(points)

    def needs(self, model: Model) -> list[str]:
        if not self.points:
            raise VitscopeError("point_means: which points? For example points=['blocks.*.hook_mlp_out'].")
        return self.points

    def start(self, model: Model) -> None:
        self.text = model.row.text
        self.sums = {"n": zeros(1)}
        layout = model.layout
        tokens = 1 if self.text else layout.tokens
        for name in model.resolve_points(self.needs(model)):
            heads = name.endswith("attn.hook_z")
            shape = (layout.heads, tokens, layout.head_dim) if heads else (tokens, layout.width)
            self.sums[name] = zeros(*shape)

    def update(self, block: int, points: Mapping[str, Tensor], batch: Batch) -> None:
        for name, value in points.items():
            x = value.double()  # (B, N, C) or (B, H, N, D)
            if self.text and batch.valid is not None:
                there = batch.valid.to(x.device)[:, :, None]
                x = x * (there[:, None] if x.ndim == 4 else there)
            x = x.sum(0)
            if not self.text and x.shape != self.sums[name].shape:
                raise UnsuitableDataError(
                    f"A mean at every token is over pictures of one size; {batch.names[0]} has {x.shape[-2]} tokens, "
                    f"others have {self.sums[name].shape[-2]}. Take method='zero', or resize the pictures."
                )
            self.add(name, x.sum(-2, keepdim=True) if self.text else x)

    def end_batch(self, batch: Batch) -> None:
        if not self.text:
            n = len(batch)
        else:
            n = token_ids(batch.inputs).numel() if batch.valid is None else int(batch.valid.sum())
        self.add("n", torch.tensor([n]))

    def means(self) -> dict[str, Tensor]:
        """{point: (N, C) or (H, N, D)} float64; N is 1 for texts."""
        n = float(self.sums["n"])
        if n == 0:
            raise DataError(NOTHING)
        return {name: total / n for name, total in self.sums.items() if name != "n"}

    def tables(self) -> dict[str, pd.DataFrame]:
        if self.setting.folder is not None and float(self.sums["n"]):
            save_file(self.means(), self.setting.folder / FILE)
        return {"point_means": pd.DataFrame({"points": [len(self.sums) - 1], "n": [int(self.sums["n"])]})}


def means_over(model: Model, data: Data | None, points: Sequence[str], setting: Setting, batch_size: int) -> Any:
    """The means of all of `data`, in a pass of its own."""
    if data is None:
        raise VitscopeError("A mean over no images: give the data, measure(..., data=data), or use method='zero'.")
    means = PointMeans(points)
    if setting.folder is None:
        measure(model, data.batches(model.preprocess, batch_size), [means])
        return means.means()

    from vitscope.analyses.engine import analyze_below

    place = analyze_below(setting.folder, "means", model, data, means, batch_size=batch_size, seed=setting.seed)
    if not (place / FILE).exists():
        raise DataError(NOTHING)
    return load_file(place / FILE)
