"""Which tokens a model reads its answer from, and how."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

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
        weights[layout.prefix_tokens :] = 1 / layout.image_tokens
    else:
        heads = 2 if getattr(model.module, "head_dist", None) is not None else 1
        weights[:heads] = 1 / heads
    return weights


def readout_logits(model: Model, x: Tensor) -> Tensor:
    """The model's way from a point's tokens (B, N, C) to logits (B, K), as if it were the last layer."""
    module: Any = model.module
    if pools(model):
        pooled = module.norm(x)[:, model.layout.prefix_tokens :].mean(1)
        return module.head(module.fc_norm(pooled))
    if getattr(module, "head_dist", None) is not None:
        return (model.to_class_space(x[:, 0], "class") + model.to_class_space(x[:, 1], "distillation")) / 2
    return model.to_class_space(x[:, 0])
