"""Checkpoints of the published programs (Teo & Nguyen, NeurIPS 2024): DeiT files with another attention inside.

They hold the weights under timm's names, a `qkv` of width 2C where queries are keys, a parameter `s` in scaled
attention, and beside the weights the command line of their training as a pickled `argparse.Namespace`.

The program that logs the projection error (theirs, and that of Sarıtaş & Yıldız, ACL SRW 2025) saves the very names and
shapes of timm's models, but standardises queries and keys, and its DeiT-Tiny has other heads: its command line tells.

Their FAN has no `q` in its token mixing, and its RPC is always that of 4 iterations and lambda 4 in the first block.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitscope.architectures.families import blocks_of
from vitscope.attention.description import Description, convert_from_description
from vitscope.errors import WeightsError
from vitscope.models.weights import load_into, read_weights

_OF_RECONSTRUCTION = "pi_reg"  # an argument of the programs of these studies that no other DeiT-style program has
_HEADS_THERE = {"deit_tiny_patch16_224": 6}  # where they are not timm's


def load_published(module: Any, path: str | Path, attention: Description | None = None, use_ema: bool = True) -> Any:
    """Give a plain timm model the attention and the weights of a published checkpoint, and return it.

    `load_published(timm.create_model("deit_tiny_patch16_224"), "checkpoint.pth")`; then `open_model(module)`.
    attention: overrules what the file says of itself.
    """
    file = read_weights(path, use_ema)
    description = attention if attention is not None else published_attention(file.state, file.arguments, str(path))
    convert_from_description(module, description)
    load_into(module, file.state, str(path))
    check_arguments(module, file.state, file.arguments, str(path), () if attention is None else ("attention",))
    return module


def check_arguments(
    module: Any,
    state: Mapping[str, Tensor],
    arguments: Mapping[str, Any],
    where: str,
    stated: Collection[str] = (),
) -> None:
    """Refuse a model of the right shapes that is not the one which the file's command line trained.

    stated: what the user has chosen himself, 'num_heads' or 'attention'; it overrules the file.
    """
    heads, standardised = arguments.get("num_heads"), False
    if _OF_RECONSTRUCTION in arguments and is_softmax(state):
        heads, standardised = _HEADS_THERE.get(str(arguments.get("model")), heads), True
    if heads is None and not standardised:
        return
    blocks: list[Any] = list(blocks_of(module))
    own, names = blocks[0].attn.num_heads, {getattr(block.attn, "name", "softmax") for block in blocks}
    wrong: list[tuple[str, str, str, str]] = []  # as trained, as opened, what to type, and in Python
    if isinstance(heads, int) and heads != own and "num_heads" not in stated:
        wrong.append((f"{heads} heads", f"{own} heads", f"--model-options num_heads={heads}", f"num_heads={heads}"))
    if standardised and names != {"standardised"} and "attention" not in stated:
        opened = f"{' and '.join(sorted(names))} attention"
        wrong.append(("standardised attention", opened, "--attention standardised", "attention='standardised'"))
    if wrong:
        trained, found, words, python = zip(*wrong)
        raise WeightsError(
            f"The command line in {where} trained a model with {' and '.join(trained)}; the one that was opened has "
            f"{' and '.join(found)}. The shapes are the same, the answers are not. Type: {' '.join(words)} "
            f"(in Python: {', '.join(python)})."
        )


def is_softmax(state: Mapping[str, Tensor]) -> bool:
    """Has it queries, keys and values, and no parameter beside them?"""
    weight, own = _first_attention(state)
    return weight is not None and weight.shape[0] == 3 * weight.shape[1] and own is None


def _first_attention(state: Mapping[str, Tensor]) -> tuple[Tensor | None, Tensor | None]:
    """(qkv, the parameter of scaled attention) of the first block, in a ViT or in the encoder of a segmenter."""
    first = "encoder.blocks.0.attn." if "encoder.blocks.0.attn.qkv.weight" in state else "blocks.0.attn."
    return state.get(f"{first}qkv.weight"), state.get(f"{first}s")


def published_attention(
    state: Mapping[str, Tensor], arguments: Mapping[str, Any], where: str = "The checkpoint"
) -> list[dict[str, Any]]:
    """The description of a published model's attention from its weights and its command line.

    The RPC model runs RPC in one layer (`--layer 0`) or all (`--layer -1`) and is symmetric elsewhere.
    """
    weight, own = _first_attention(state)
    if own is not None:
        return [{"name": "scaled", "layers": "all", "form": "matrix" if own.ndim == 3 else "scalar"}]
    fan = "blocks.0.attn.kv.weight" in state and "blocks.0.attn.q.weight" not in state
    if not fan and (weight is None or weight.shape[0] != 2 * weight.shape[1]):
        return []
    if not arguments.get("robust"):
        if "robust" in arguments:
            return [{"name": "symmetric", "layers": "all"}]
        rpc_there = "layers=0,decoder=0,iterations=6" if "decoder.cls_emb" in state else "layers=0,iterations=4"
        raise WeightsError(
            f"{where}: it has no query projection, so queries are keys, but the file does not say whether RPC was on. "
            f"Say it: attention='symmetric', or attention='symmetric; rpc:{rpc_there},lambda=4'."
        )
    layer = int(arguments.get("layer", 0))
    rpc = {
        "name": "rpc",
        "layers": "all" if layer < 0 else str(layer),
        "iterations": int(arguments.get("num_iter", 4 if fan else 1)),
        "lambda": float(arguments.get("lambd", 4.0 if fan else 0.0)),
        "variant": "code",
    }
    return [rpc] if layer < 0 else [{"name": "symmetric", "layers": "all"}, rpc]
