"""Separation fuzziness layer by layer, from one pass."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor

from vitscope.analyses.base import Analysis, Headline, register_analysis, zeros
from vitscope.analyses.separation.definition import (
    Averaging,
    check_averaging,
    check_sizes,
    fuzziness_from_moments,
    image_weights,
)
from vitscope.analyses.separation.pixels import pixel_fuzziness
from vitscope.analyses.separation.profile import FIT_COLUMNS, SPIKE_COLUMNS, block_fits, read_token, spikes
from vitscope.data import Data
from vitscope.data.batch import Batch
from vitscope.errors import DataError, UnsupportedModelError, VitscopeError
from vitscope.models import Model

MOST_BYTES = 2 << 30  # what the sums may take
MOST_PIXEL_NUMBERS = 4_000_000  # classes x pixels up to which the raw pixels are measured


@register_analysis("separation")
class Separation(Analysis):
    """Fuzziness of raw pixels, embedding, class and mean token of every block, and logits, from one pass.

    The embedding (what enters the first block) is the control: from pixels to it the *space* changes, from it to the
    first block a layer acts. State per point: K d + d^2 float64; time per image and point: d^2.
    """

    uses_labels = True
    optional = ("fuzziness", *FIT_COLUMNS, *SPIKE_COLUMNS)

    def __init__(self, averaging: Averaging = "class", pixels: bool | None = None) -> None:
        super().__init__()
        self.averaging: Averaging = check_averaging(averaging)
        self.pixels = pixels  # None: where classes x pixels is small enough (CIFAR-100 is, ImageNet is not)
        self._pixel_fuzziness: float | None = None
        self._weights: Tensor | None = None  # (K,) of an image of each class, from the planned class sizes

    def needs(self, model: Model) -> Sequence[str]:
        return ["blocks.0.hook_resid_pre", "blocks.*.hook_resid_post"]

    def check_data(self, data: Data) -> None:
        labels = torch.tensor(data.labels)
        check_sizes(torch.bincount(labels[labels >= 0]))

    def prepare(self, data: Data, model: Model) -> None:
        """Class sizes, and the pixels in two passes over the images, without the model."""
        labels = torch.tensor(data.labels)
        if int(labels.max()) >= model.num_classes:
            raise DataError(
                f"separation: label {int(labels.max())} in {data.name}, but the model has classes "
                f"0..{model.num_classes - 1}."
            )
        sizes = torch.bincount(labels[labels >= 0], minlength=model.num_classes)
        present = check_sizes(sizes)
        if present < model.num_classes:
            missing = [str(name) for name, n in zip(data.classes, sizes.tolist()) if n == 0]
            more = ", ..." if len(missing) > 3 else ""
            self._remark(
                f"{len(missing)} of {model.num_classes} classes have no image in {data.name} "
                f"({', '.join(missing[:3])}{more}) and do not count."
            )
        self._weights = image_weights(sizes, self.averaging)
        if model.layout.sequence:  # no pictures: the first layer that can be compared is the embedding
            return
        size = present * torch.Size(model.preprocess.input_size).numel()
        wanted = size <= MOST_PIXEL_NUMBERS if self.pixels is None else self.pixels
        if wanted:
            self._pixel_fuzziness = pixel_fuzziness(data, model.preprocess, self.averaging)
        elif self.pixels is None:
            self._remark(
                f"the raw pixels were left out: their class means would be {size:,} numbers "
                f"(more than {MOST_PIXEL_NUMBERS:,}). --set separation.pixels=true measures them all the same."
            )

    def _remark(self, text: str) -> None:
        """For the run's remarks; and on stderr, because a training does not keep those of its probes."""
        self.remarks = [*self.remarks, text]
        warnings.warn(f"separation: {text}", stacklevel=3)

    def start(self, model: Model) -> None:
        layout, k = model.layout, model.num_classes
        if not k:
            raise UnsupportedModelError(f"separation needs classes, and {model.name} has none.")
        self._tokens = {"class": slice(0, 1)} if layout.class_tokens else {}
        self._tokens["mean"] = layout.image
        self._blocks = layout.blocks
        needed = 8 * (len(self._tokens) * (self._blocks + 1) * layout.width * (k + layout.width) + 2 * k * k)
        if needed > MOST_BYTES:
            raise UnsupportedModelError(
                f"separation keeps the class means and second moments of every point: {k} classes x {layout.width} "
                f"dimensions would take {needed / 2**30:.1f} GiB (at most {MOST_BYTES >> 30} are allowed). Choose a "
                "narrower model, or data with fewer classes."
            )
        self.sums = {"counts": zeros(k, dtype=torch.int64)}
        for name, point, _, _ in self._places():
            d = k if point == "logits" else layout.width
            self.sums |= {f"{name}:sum": zeros(k, d), f"{name}:square": zeros(d, d)}

    def _places(self) -> Iterator[tuple[str, str, str, int]]:
        """(name of its sums, point, token, layer) of all that is measured in the model, first layer to last."""
        for layer in range(self._blocks + 1):
            for token in self._tokens:
                name = f"block{layer - 1}" if layer else "embedding"
                yield f"{name}.{token}", "block" if layer else "embedding", token, layer
        yield "logits", "logits", "", self._blocks + 1

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
        """Add features (B, d) to the sums of their classes, and their weighted outer products to the square."""
        if self._weights is None:
            raise VitscopeError("separation must know the class sizes: call prepare(data, model) before measure(...).")
        x = features.detach().to("cpu", torch.float64)
        if (labels < 0).any():
            x, labels = x[labels >= 0], labels[labels >= 0]
        self.sums[f"{name}:sum"].index_add_(0, labels, x)
        self.sums[f"{name}:square"].addmm_((self._weights[labels, None] * x).T, x)

    def tables(self) -> dict[str, pd.DataFrame]:
        assert self._weights is not None
        counts = self.sums["counts"]
        present = check_sizes(counts)  # images that could not be read are gone
        rows = []
        if self._pixel_fuzziness is not None:
            rows.append(("pixels", "", 0, self._pixel_fuzziness))
        for name, point, token, layer in self._places():
            moments = self.sums[f"{name}:sum"], self.sums[f"{name}:square"]
            rows.append((point, token, layer, fuzziness_from_moments(counts, self._weights, *moments)))
        table = pd.DataFrame(rows, columns=["point", "token", "layer", "fuzziness"])
        table["defined"] = table["fuzziness"].notna()  # constant features or coinciding class means have no D
        table["images"] = int(counts.sum())
        table["classes"] = present
        table["averaging"] = self.averaging
        return {"separation": table, "separation_fits": block_fits(table), "separation_spike": spikes(table)}

    def summary(self) -> dict[str, Headline]:
        tables = self.tables()
        table = tables["separation"]
        token = read_token(table)
        last = table[(table["point"] == "block") & (table["token"] == token)].iloc[-1]
        figures = {}
        note = f"{token} token, {self.averaging}-averaged"
        if last["defined"]:
            figures["last_block"] = Headline(float(last["fuzziness"]), "", int(last["images"]), f"last block, {note}")
        fits = tables["separation_fits"]
        law = fits[(fits["curve"] == "log_linear") & (fits["token"] == token)]
        if len(law) and law["rho"].notna().all():
            figures["rate"] = Headline(
                float(law["rho"].iloc[0]), "per block", int(last["images"]), f"log-linear over the blocks, {note}"
            )
        return figures
