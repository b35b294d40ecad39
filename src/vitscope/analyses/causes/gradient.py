"""Attribution patching: what a patch would do, to first order, for all components at the price of one backward pass.

    estimate of a component = sum over its tokens and channels of (new - base) * d metric / d value, at the base run

Nanda, "Attribution patching: activation patching at industrial scale" (2023). It is exact where the metric is linear in
the value, which behind a norm and a softmax it is not: the study reports its rank correlation with the exact patches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vitscope.analyses.causes.components import Component
from vitscope.capture import Edit
from vitscope.capture.points import FIRST_POINT
from vitscope.errors import VitscopeError
from vitscope.models import Model

_BESIDE = ("hook_attn_scores", "hook_pattern", "hook_bias")  # fused attention does not go through them


def point_gradients(
    model: Model, inputs: Any, names: Sequence[str], metric: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """{point: d metric(outputs) / d value}; `metric` gives one number per item, and items do not see each other."""
    names = model.resolve_points(names)
    # weights need no gradient: what is differentiated begins behind the embedding
    edits: dict[str, Edit] = {FIRST_POINT: lambda value, point: value.detach().requires_grad_()}
    # a value of its own, also where a block lays the tokens of all texts into one list
    edits |= {n: lambda value, point: value.clone() for n in names if n != FIRST_POINT and not n.endswith(_BESIDE)}
    with torch.enable_grad(), model.edits(edits):
        outputs, cache = model.run_with_cache(inputs, names)
        values = [cache[name] for name in names]
        if missing := [n for n, value in zip(names, values) if not value.requires_grad]:
            raise _without(missing[0])
        found = torch.autograd.grad(metric(outputs).sum(), values, allow_unused=True)
    for name, gradient in zip(names, found):
        if gradient is None:
            raise _without(name)
    return {name: gradient.detach() for name, gradient in zip(names, found)}


def _without(name: str) -> VitscopeError:
    why = (
        "fused attention computes its answer beside it"
        if name.endswith(_BESIDE)
        else "the answer does not go through it"
    )
    return VitscopeError(
        f"{name} has no gradient: {why}. Attribution patching is for points such as hook_resid_post, hook_attn_out, "
        "hook_mlp_out and attn.hook_z."
    )


def first_order(
    new: Mapping[str, Tensor], base: Mapping[str, Tensor], gradients: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Per point and token, (B, N) or (B, H, N) float64: what putting `new` in the place of `base` changes."""
    return {name: ((new[name] - base[name]).double() * g.double()).sum(-1).cpu() for name, g in gradients.items()}


def estimated(component: Component, effects: Mapping[str, Tensor], where: Tensor | None) -> Tensor:
    """(B,): the part of a component, at its tokens (B, N)."""
    found = effects[component.point]
    found = found if component.head is None else found[:, component.head]
    return (found if where is None else found * where).sum(-1)
