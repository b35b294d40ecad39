"""Checkpoints of the published programs (Teo & Nguyen, NeurIPS 2024): DeiT files with another attention inside.

They hold the weights under timm's names, a `qkv` of width 2C where queries are keys, a parameter `s` in scaled
attention, and beside the weights the command line of their training as a pickled `argparse.Namespace`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitscope.attention.description import Description, convert_from_description
from vitscope.errors import WeightsError


def load_published(module: Any, path: str | Path, attention: Description | None = None, use_ema: bool = True) -> Any:
    """Give a plain timm model the attention and the weights of a published checkpoint, and return it.

    `load_published(timm.create_model("deit_tiny_patch16_224"), "checkpoint.pth")`; then `open_model(module)`.
    attention: overrules what the file says of itself.
    """
    from vitscope.models.weights import load_into, read_weights

    file = read_weights(path, use_ema)
    description = attention if attention is not None else published_attention(file.state, file.arguments, str(path))
    convert_from_description(module, description)
    load_into(module, file.state, str(path))
    return module


def published_attention(
    state: Mapping[str, Tensor], arguments: Mapping[str, Any], where: str = "The checkpoint"
) -> list[dict[str, Any]]:
    """The description of a published model's attention from its weights and its command line.

    The RPC model runs RPC in one layer (`--layer 0`) or all (`--layer -1`) and is symmetric elsewhere.
    """
    own = state.get("blocks.0.attn.s")
    if own is not None:
        return [{"name": "scaled", "layers": "all", "form": "matrix" if own.ndim == 3 else "scalar"}]
    weight = state.get("blocks.0.attn.qkv.weight")
    if weight is None or weight.shape[0] != 2 * weight.shape[1]:
        return []
    if not arguments.get("robust"):
        if "robust" in arguments:
            return [{"name": "symmetric", "layers": "all"}]
        raise WeightsError(
            f"{where}: its qkv is 2C wide, so queries are keys, but the file does not say whether RPC was on. Say it: "
            "attention='symmetric', or attention='symmetric; rpc:layers=0,iterations=4,lambda=4'."
        )
    layer = int(arguments.get("layer", 0))
    rpc = {
        "name": "rpc",
        "layers": "all" if layer < 0 else str(layer),
        "iterations": int(arguments.get("num_iter", 1)),
        "lambda": float(arguments.get("lambd", 0.0)),
        "variant": "code",
    }
    return [rpc] if layer < 0 else [{"name": "symmetric", "layers": "all"}, rpc]
