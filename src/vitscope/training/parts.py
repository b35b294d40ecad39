"""Parts of a model that learn at a rate of their own, or not at all: a backbone and its decoder, for example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from vitscope.errors import VitscopeError, suggest


def find_part(module: nn.Module, name: str, option: str) -> nn.Module:
    """A part by its dotted name; one that is not there is answered with the nearest."""
    known = {key: part for key, part in module.named_modules() if key}
    if name not in known:
        first = list(dict.fromkeys(key.split(".")[0] for key in known))
        raise VitscopeError(
            f"{option}: the model has no part {name!r}.{suggest(name, known)} Its parts are {', '.join(first)}, and "
            "those inside, such as encoder.blocks.0."
        )
    return known[name]


def freeze(module: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """Parts that are not to learn, without gradients from now on. At least one weight has to be left."""
    parts = [find_part(module, name, "freeze") for name in names]
    for part in parts:
        part.requires_grad_(False)
    if parts and not any(parameter.requires_grad for parameter in module.parameters()):
        raise VitscopeError(f"freeze={' '.join(names)} leaves nothing that could learn.")
    return parts


def rated(module: nn.Module, scales: Mapping[str, Any], weight_decay: float) -> list[dict[str, Any]]:
    """Groups of weights for timm's optimisers and schedules: {part: factor of the rate}, the innermost part decides.

    As in timm, biases, norms and what the model names do not decay.
    """
    for name, scale in scales.items():
        find_part(module, name, "lr_scale")
        if not isinstance(scale, int | float) or isinstance(scale, bool) or not 0 <= scale < float("inf"):
            raise VitscopeError(f"lr_scale: {name}={scale} is no factor of the learning rate, such as encoder=0.1.")
    spared: set[str] = getattr(module, "no_weight_decay", set)()
    groups: dict[tuple[float, bool], list[Any]] = {}
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        inside = [part for part in scales if name.startswith(f"{part}.")]
        scale = float(scales[max(inside, key=len)]) if inside else 1.0
        groups.setdefault((scale, parameter.ndim > 1 and name not in spared), []).append(parameter)
    return [
        {"params": found, "weight_decay": weight_decay if decays else 0.0, "lr_scale": scale}
        for (scale, decays), found in groups.items()
    ]
