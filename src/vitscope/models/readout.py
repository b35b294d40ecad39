"""Which tokens a model reads its answer from, and how."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vitscope.architectures.families import final_norms, heads_of
from vitscope.errors import UnsupportedModelError

if TYPE_CHECKING:
    from vitscope.models import Model


def pools(model: Model) -> bool:
    """Does the model average its image tokens (rather than read class tokens)?"""
    pooling = getattr(model.module, "global_pool", "token") or "token"
    if pooling not in ("token", "avg") or getattr(model.module, "pool_include_prefix", False):
        raise UnsupportedModelError(f"{model.name} pools by {pooling!r}: which tokens it reads is not known.")
    return pooling == "avg"


def readout_weights(model: Model) -> Tensor:
    """(N,) float32, sums to one: how much each token counts in the answer."""
    layout = model.layout
    weights = torch.zeros(layout.tokens)
    if pools(model):
        weights[layout.image] = 1 / layout.image_tokens
    else:
        heads = len(heads_of(model.module))
        weights[:heads] = 1 / heads
    return weights


def readout_logits(model: Model, x: Tensor) -> Tensor:
    """The model's way from a point's tokens (B, N, C) to logits (B, K), as if it were the last layer."""
    module: Any = model.module
    if pools(model):
        norm, *others = final_norms(module)
        pooled = norm(x)[:, model.layout.image].mean(1)
        for norm in others:
            pooled = norm(pooled)
        return heads_of(module)[0](pooled)
    if len(heads_of(module)) == 2:
        return (model.to_class_space(x[:, 0], "class") + model.to_class_space(x[:, 1], "distillation")) / 2
    return model.to_class_space(x[:, 0])
