"""Does the part that speaks loudest for an answer matter most to it? Attribution beside ablation, part by part.

Attribution is one pass and counts the direct effect alone; ablation is a pass per part and counts what later parts make
of it. Spearman's rank correlation of the two says how far the cheap one may stand for the other: 1, they rank heads
alike; 0, they have nothing to do with each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vitscope.analyses.causes.components import Component
from vitscope.data.batch import Batch
from vitscope.errors import UnsupportedModelError
from vitscope.models import Model
from vitscope.models.decomposition import Part

_WRITERS = {"attn": ("head", "attn_bias"), "mlp": ("mlp", "mlp_bias")}  # the parts that a component consists of


class DirectEffects:
    """What components give to the true logit of a batch, where a model's logits are sums over its parts."""

    def __init__(self, model: Model, components: Sequence[Component]) -> None:
        split = model.decomposition
        self.model, self.points, self.each = model, split.needs(), split.readout.each
        rows = [[float(_inside(part, component)) for part in split.parts] for component in components]
        self.chosen = torch.tensor(rows, dtype=torch.float64)  # (E, parts)

    @torch.no_grad()
    def of(self, batch: Batch) -> Tensor:
        """(B, E) float64: the mean over the answers of each item."""
        _, cache = self.model.run_with_cache(self.model.place(batch.inputs), self.points)
        known = batch.targets >= 0  # (B,) or (B, N)
        given = self.model.attribute(cache, batch.targets.clamp(min=0)).values.double().cpu()  # (parts, B[, N])
        given = given * known
        if self.each:
            given = given.sum(-1) / known.sum(-1).clamp(min=1)
        return (self.chosen @ given).T


def direct_effects(model: Model, components: Sequence[Component], one_class: bool) -> DirectEffects | None:
    """None where the logits are no such sums (`causes.attribution` says why), or an item has no class of its own."""
    if not components or not (one_class or getattr(model.layout, "causal", False)):
        return None
    try:
        return DirectEffects(model, components)
    except UnsupportedModelError:
        return None


def _inside(part: Part, component: Component) -> bool:
    if part.block != component.block:
        return False
    if component.head is not None:
        return part.kind == "head" and part.head == component.head
    return part.kind in _WRITERS[component.kind]
