"""Weights made to fit a model of other sizes: positions, input channels, head or decoder. What was changed is said."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from vitscope.architectures.families import family_of, trunk_of
from vitscope.errors import WeightsError
from vitscope.models.weights import count_classes

HEADS = ("head.", "head_dist.")
_OF_CLASSES = ("decoder.head.", "decoder.mask_norm.")  # of a segmenter: rows are classes; and its class embeddings
_UNUSED = (*HEADS, "attn_pool.")  # of a backbone whose patches go into a decoder


def fit(state: Mapping[str, Tensor], module: Any) -> tuple[dict[str, Tensor], list[str]]:
    """A state dict that fits `module`, and what was changed for that: positions, input channels, head.

    A segmenter takes the weights of its backbone, too: its decoder stays as it is.
    """
    own, trunk, text = module.state_dict(), trunk_of(module), family_of(module).text
    fitted, changes, inside = dict(state), list[str](), _prefix(module)
    if inside:
        fitted, changes = _around(fitted, module, inside)
    if _differs(fitted, own, key := f"{inside}pos_embed"):
        fitted[key] = _resized_positions(fitted[key], trunk)
        changes.append(f"position embedding resized to {'x'.join(map(str, trunk.patch_embed.grid_size))} patches")
    key = f"{inside}patch_embed.proj.weight"
    if _differs(fitted, own, key) and fitted[key].shape[2:] == own[key].shape[2:]:
        before, after = fitted[key].shape[1], own[key].shape[1]
        fitted[key] = _other_channels(fitted[key], after)
        changes.append(f"{before} input channels made {after}")
    of_classes = (*_OF_CLASSES, "decoder.cls_emb") if inside else HEADS
    heads = [] if text else [key for key in own if key.startswith(of_classes)]  # words are no classes
    none = not any(key in fitted for key in heads)  # a head of which only a part is there is a damaged one
    if heads and (none or any(_differs(fitted, own, key) for key in heads)):
        classes = count_classes(fitted) or 0
        fitted = {k: v for k, v in fitted.items() if k not in heads and not k.startswith(HEADS)}
        fitted |= {key: own[key] for key in heads}
        changes.append(f"new head: the weights have {classes} classes, the data {count_classes(own)}")
    return fitted, changes


def is_of_backbone(state: Mapping[str, Tensor], module: Any) -> bool:
    """Are these the weights of a ViT alone, where the model has more around one?"""
    inside = _prefix(module)
    return bool(inside) and not any(key.startswith((inside, "decoder.")) for key in state)


def in_order(state: Mapping[str, Tensor], rows: list[int]) -> dict[str, Tensor]:
    """Weights whose classes come in another order: class i is the former class rows[i]."""
    ordered = {key: value[rows] if key.startswith((*HEADS, *_OF_CLASSES)) else value for key, value in state.items()}
    key = "decoder.cls_emb"
    return {**ordered, key: state[key][:, rows]} if key in state else ordered


def fits(state: Mapping[str, Tensor], module: nn.Module) -> bool:
    own = module.state_dict()
    return own.keys() == state.keys() and not any(_differs(state, own, key) for key in own)


def _prefix(module: Any) -> str:
    """Of the names of a ViT's weights inside of a model."""
    trunk = family_of(module).trunk
    return f"{trunk}." if trunk else ""


def _around(state: dict[str, Tensor], module: Any, inside: str) -> tuple[dict[str, Tensor], list[str]]:
    """The weights of a ViT under their names in a segmenter; those of a segmenter without what no patch passes."""
    if is_of_backbone(state, module):
        fitted = {inside + key: value for key, value in state.items() if not key.startswith(_UNUSED)}
        decoder = {key: value for key, value in module.state_dict().items() if not key.startswith(inside)}
        return fitted | decoder, ["a new decoder: the weights are those of the backbone alone"]
    kept = {key: value for key, value in state.items() if not key.startswith(tuple(inside + name for name in _UNUSED))}
    if len(kept) == len(state):
        return kept, []
    return kept, [f"{inside}head left out: it tells classes of whole pictures, and no patch passes it"]


def _other_channels(weight: Tensor, channels: int) -> Tensor:
    """(out, in, h, w) for another number of input channels, so that grey pictures give what they gave."""
    from timm.models import adapt_input_conv

    if weight.shape[1] == 1:  # which timm does not do
        return weight.repeat(1, channels, 1, 1) / channels
    return adapt_input_conv(channels, weight)


def _differs(state: Mapping[str, Tensor], own: Mapping[str, Tensor], key: str) -> bool:
    return key in state and key in own and state[key].shape != own[key].shape


def _resized_positions(positions: Tensor, module: Any) -> Tensor:
    """timm's bicubic resampling of (1, N, C); prefix tokens keep theirs."""
    from timm.layers import resample_abs_pos_embed

    prefix = 0 if getattr(module, "no_embed_class", False) else module.num_prefix_tokens
    patches = positions.shape[1] - prefix
    if positions.ndim != 3 or math.isqrt(max(patches, 0)) ** 2 != patches:
        raise WeightsError(
            f"The position embedding {tuple(positions.shape)} is not that of {prefix} prefix token(s) and a square of "
            "patches: it cannot be resized."
        )
    return resample_abs_pos_embed(positions, list(module.patch_embed.grid_size), num_prefix_tokens=prefix)
