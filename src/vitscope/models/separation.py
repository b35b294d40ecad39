"""Checkpoints of the separation study (Varam et al. 2025) as weights of `small`, the same model under timm's names."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

NORM_EPS = 1e-5  # PyTorch's own, which the study leaves as it is; timm's models have 1e-6
_PLAIN = {"cls_token": "cls_token", "pos_embed": "pos_embed"}
_OUTER = {"patch_embedding.proj": "patch_embed.proj", "mlp_head": "head"}
_LAYER = re.compile(r"encoder_layers\.(\d+)\.(.+)")
_INNER = {
    "attn.attn.in_proj_weight": "attn.qkv.weight",  # queries, keys and values one below the other, as in timm
    "attn.attn.in_proj_bias": "attn.qkv.bias",
    "attn.attn.out_proj.weight": "attn.proj.weight",
    "attn.attn.out_proj.bias": "attn.proj.bias",
    "mlp.0.weight": "mlp.fc1.weight",
    "mlp.0.bias": "mlp.fc1.bias",
    "mlp.2.weight": "mlp.fc2.weight",
    "mlp.2.bias": "mlp.fc2.bias",
}


def is_of_the_study(state: Mapping[str, Tensor]) -> bool:
    return "patch_embedding.proj.weight" in state and any(_LAYER.fullmatch(name) for name in state)


def under_our_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors under timm's names; what has no counterpart keeps its name, and is refused with it later."""
    return {_renamed(name): value for name, value in state.items()}


def _renamed(name: str) -> str:
    if found := _LAYER.fullmatch(name):
        return f"blocks.{found[1]}.{_INNER.get(found[2], found[2])}"
    module, _, parameter = name.rpartition(".")
    return f"{_OUTER[module]}.{parameter}" if module in _OUTER else _PLAIN.get(name, name)


def sizes(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Options of `small` that can be read off the weights under our names; the number of heads cannot."""
    width, channels, patch, _ = state["patch_embed.proj.weight"].shape
    grid = math.isqrt(state["pos_embed"].shape[1] - 1)
    return {
        "embed_dim": width,
        "in_chans": channels,
        "patch_size": patch,
        "img_size": patch * grid,
        "depth": len({name.split(".")[1] for name in state if name.startswith("blocks.")}),
        "mlp_dim": state["blocks.0.mlp.fc1.weight"].shape[0],
    }


def take_over_norms(module: nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, nn.LayerNorm):
            part.eps = NORM_EPS
