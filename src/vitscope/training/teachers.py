"""Which models can teach: run folders and ViTs as `open_model` opens them, and any other classifier of timm.

A teacher only has to answer. Nothing looks inside it, so it need not be of a family that vitscope can read: DeiT's is a
convolutional network, `regnety_160`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from vitscope.errors import VitscopeError, WeightsError
from vitscope.models import Preprocess, describe, open_model
from vitscope.models.catalog import read_table
from vitscope.models.creation import check_at_hand
from vitscope.models.naming import is_own, is_trained
from vitscope.models.open import check_name
from vitscope.models.preprocessing import from_timm
from vitscope.models.weights import check_finite, load_into, read_weights


class Answers(Protocol):
    """What a teacher has to have. A `Model` has it."""

    preprocess: Preprocess
    classes: list[str] | None

    @property
    def num_classes(self) -> int: ...
    @property
    def device(self) -> torch.device: ...
    def __call__(self, images: Tensor, /) -> Tensor: ...


@dataclass
class Classifier:
    """A module that nothing looks into, in evaluation mode."""

    module: nn.Module
    preprocess: Preprocess
    num_classes: int
    classes: list[str] | None = None

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    def __call__(self, images: Tensor) -> Tensor:
        """Preprocessed images (B, C, H, W) -> logits (B, classes)."""
        return self.module(images)


def open_answers(name: str, weights: str | Path | None, device: torch.device, use_ema: bool = True) -> Answers:
    """A run folder, or a model of timm: `weights` is a file, 'random', or None for timm's own (a download)."""
    if is_trained(name) or is_own(name) or _can_be_read(name):
        return open_model(name, weights, device=device, use_ema=use_ema)
    check_name(name)
    module, origin = _build(name, weights, use_ema)
    check_finite(module, origin)
    configuration: dict[str, Any] = dict(module.pretrained_cfg or {})  # type: ignore[arg-type]
    classes = int(getattr(module, "num_classes", 0))
    if not classes:
        raise VitscopeError(f"{name} has no classes: a teacher must be a classifier, such as regnety_160.")
    size = tuple(configuration.get("input_size", (3, 224, 224)))
    channels = _sizes(module.state_dict(), configuration).get("in_chans") or size[0]
    preprocess = from_timm(configuration, (channels, *size[1:]), name)
    return Classifier(module.eval().requires_grad_(False).to(device), preprocess, classes)


def _can_be_read(name: str) -> bool:
    """Is it of a family that `open_model` opens?"""
    architecture = name.partition(".")[0]
    if any(row.name == architecture and row.supported for row in read_table() or ()):
        return True
    check_name(name)
    return describe(name).supported


def _build(name: str, weights: str | Path | None, use_ema: bool) -> tuple[nn.Module, str]:
    import timm

    if weights is None:
        if not timm.is_model_pretrained(name):
            raise WeightsError(f"timm has no weights for the teacher {name}: give --teacher-weights FILE.")
        check_at_hand(name)
        try:
            return timm.create_model(name, pretrained=True), f"The weights of {name}"
        except Exception as error:  # the hub, sockets, hashes, disks: a download has many ways to fail
            raise WeightsError(
                f"The weights of the teacher {name} could not be fetched ({type(error).__name__}). Give a file: "
                "--teacher-weights FILE."
            ) from error
    if str(weights) == "random":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return timm.create_model(name), name
    state = read_weights(weights, use_ema).state
    with torch.random.fork_rng(devices=[]):  # what is drawn here is overwritten; the training's own draws stay
        plan: Any = timm.create_model(name)
        settings = _sizes(state, plan.pretrained_cfg)
        module = timm.create_model(name, **settings) if settings else plan
    load_into(module, state, str(weights))
    return module, str(weights)


def _sizes(state: Mapping[str, Tensor], configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Classes and channels, read off the weights of the layers that timm names for them."""
    sizes: dict[str, Any] = {}
    for option, layer, axis in (("num_classes", "classifier", 0), ("in_chans", "first_conv", 1)):
        named = configuration.get(layer)
        weight = state.get(f"{named}.weight") if isinstance(named, str) else None
        if weight is not None and weight.ndim > axis:
            sizes[option] = int(weight.shape[axis])
    return sizes
