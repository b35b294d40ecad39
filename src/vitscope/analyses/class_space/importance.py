"""Which memories speak for the class? Gradients of the class's evidence with respect to the key coefficients.

A layer adds sum_m k_m v_m to the residual: coefficients k (the heads' outputs before the projection, the MLP's hidden
units) times value vectors v. With the evidence f of a class in the layer's projected output (`objectives.py`), at the
token(s) that the model answers from,

    gradient      df/dk_m = v_m . df/dx,     x the layer's output
    contribution  k_m df/dk_m

The first is what the program of Vilas et al. 2023 calls the gradient of the key coefficients (for attention); the
second counts a memory by how much it was called, too. Both are summed over the tokens that are read, and averaged over
images. Nothing but the final norm and the head is differentiated, so it costs little beside the forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from vitscope.analyses.base import register_analysis, zeros
from vitscope.analyses.class_space.analysis import ClassSpaceAnalysis
from vitscope.analyses.class_space.memories import LAYERS, class_directions, coefficients, value_vectors
from vitscope.analyses.class_space.memory_tables import class_names, memory_names
from vitscope.analyses.class_space.objectives import check_objective, evidence
from vitscope.analyses.class_space.projection import Heads
from vitscope.analyses.class_space.ranks import check_labels
from vitscope.analyses.class_space.relevance import frozen
from vitscope.analyses.class_space.targets import find_class
from vitscope.data.batch import Batch
from vitscope.errors import VitscopeError
from vitscope.models import Model
from vitscope.models.readout import readout_logits, readout_weights
from vitscope.statistics.intervals import Z95

INNER = {"attn": "attn.hook_z", "mlp": "mlp.hook_post"}
VALUES = ("gradient", "contribution")


def evidence_slope(model: Model, x: Tensor, classes: Tensor, objective: str = "cross_entropy") -> Tensor:
    """df/dx (B, N, C) of the class's evidence in a layer's output (B, N, C); zero at tokens that are not read."""
    with frozen(model.module), torch.enable_grad():
        leaf = x.detach().clone().requires_grad_()
        value = evidence(readout_logits(model, leaf), classes.to(x.device), objective)
        (slope,) = torch.autograd.grad(value.sum(), leaf)
    return slope


def coefficient_gradients(slope: Tensor, values: Tensor) -> Tensor:
    """df/dk_m = v_m . df/dx: slopes (..., C), value vectors (C, M) -> (..., M)."""
    return slope @ values.to(slope)


@register_analysis("importance")
class MemoryImportance(ClassSpaceAnalysis):
    """Gradient and contribution of every memory, for the true class or another.

    objective: cross_entropy, cross_entropy_code (softmax twice, as published), probability or logit; none: the first,
    or the second for variant='code'. target: label, a class's number or its name. top: memories per block and layer,
    those with the largest contribution; 0: all of them.
    """

    optional = tuple(f"{value}_{end}" for value in VALUES for end in ("low", "high"))  # one image: no interval

    def __init__(
        self,
        head: Heads = "own",
        variant: str = "exact",
        objective: str | None = None,
        target: int | str = "label",
        top: int = 20,
    ) -> None:
        super().__init__("all", head, variant)
        if head != "own":
            raise VitscopeError(f"head={head!r}: importance is asked of the model's own answer. Leave head out.")
        if objective is not None:
            check_objective(objective)
        if target == "prediction":
            raise VitscopeError("target='prediction': importance is read while the model still runs. Use a class.")
        if top < 0:
            raise VitscopeError(f"top={top}: expected a number of memories per layer, or 0 for all.")
        self.objective, self.target, self.top = objective, target, top

    def needs(self, model: Model) -> list[str]:
        return [f"blocks.*.{name}" for layer in LAYERS for name in (f"hook_{layer}_out", INNER[layer])]

    def start_sums(self, model: Model) -> None:
        self.model = model
        self.asked = find_class(self.target, model.num_classes, model.classes, self.setting.classes)
        self.measure = self.objective or ("cross_entropy_code" if self.variant == "code" else "cross_entropy")
        self.read_tokens = readout_weights(model).nonzero().flatten()
        self.sums = {"n": zeros(1)}
        for block, layer in product(range(model.layout.blocks), LAYERS):
            memories = value_vectors(model, block, layer).shape[1]
            self.sums[f"{block}.{layer}"] = zeros(2 * len(VALUES), memories)  # sums, then sums of squares

    def update(self, block: int, points: Mapping[str, Tensor], batch: Batch) -> None:
        check_labels(batch.labels, self.projector.classes)
        known = batch.labels >= 0
        if not (0 <= block < self.layout.blocks and known.any()):
            return
        labels = batch.labels[known]
        asked = labels if self.asked is None else torch.full_like(labels, self.asked)
        for layer in LAYERS:
            out, inner = (points[f"blocks.{block}.{name}"] for name in (f"hook_{layer}_out", INNER[layer]))
            rows, read = known.to(out.device), self.read_tokens.to(out.device)
            slope = evidence_slope(self.model, out[rows], asked, self.measure)[:, read]  # (B, r, C)
            gradient = coefficient_gradients(slope, value_vectors(self.model, block, layer))  # (B, r, M)
            coefs = coefficients(self.model, block, layer, inner[rows])[:, read]
            found = torch.stack([gradient.sum(1), (gradient * coefs).sum(1)]).detach().double().cpu()  # (2, B, M)
            self.add(f"{block}.{layer}", torch.cat([found.sum(1), found.square().sum(1)]))
        if block == 0:
            self.sums["n"] += len(labels)

    def end_batch(self, batch: Batch) -> None:
        pass

    def tables(self) -> dict[str, pd.DataFrame]:
        n = float(self.sums["n"])
        if n == 0:  # no image has a label
            return {}
        name = class_names(self.projector.classes, self.model.classes, self.setting.classes)
        directions, frames = class_directions(self.model, self.variant != "code"), []
        for block, layer in product(range(self.layout.blocks), LAYERS):
            values = value_vectors(self.model, block, layer, self.variant != "code")
            frame = pd.DataFrame(memory_names(block, layer, directions, values, name)).drop(columns=["logit", "cosine"])
            for value, total, squares in zip(VALUES, *self.sums[f"{block}.{layer}"].numpy().reshape(2, 2, -1)):
                mean = total / n
                half = Z95 * np.sqrt(np.maximum(squares / n - mean**2, 0) / (n - 1)) if n > 1 else np.nan
                frame = frame.assign(**{value: mean, f"{value}_low": mean - half, f"{value}_high": mean + half})
            frames.append(frame.nlargest(self.top or len(frame), "contribution"))
        return {"class_space_memory_importance": pd.concat(frames, ignore_index=True).assign(n_images=round(n))}
