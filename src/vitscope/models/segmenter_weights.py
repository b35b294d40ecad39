"""Weights of a segmenter: a published checkpoint of Segmenter, or those of its backbone alone.

Published files hold `{"model": state}` with `encoder.*` and `decoder.*`. The encoder's head of ImageNet's classes is
among them, though no patch passes it, and all of their layer norms add 1e-5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitscope.architectures.families import family_of
from vitscope.attention import convert_from_description
from vitscope.errors import UnsupportedModelError, WeightsError
from vitscope.models.fitting import fit, fits, is_of_backbone
from vitscope.models.weights import load_into, read_weights, sha256

EPSILON = 1e-5  # of the layer norms in the published program
_WIDTHS = {192: "tiny", 384: "small", 768: "base", 1024: "large"}  # of the published backbones


def read_off(state: Mapping[str, Tensor], given: Mapping[str, Any], where: str) -> tuple[dict[str, Any], list[str]]:
    """Options of `segmenter` that a file's weights tell, and remarks. What is `given` is not guessed at."""
    if "encoder.patch_embed.proj.weight" not in state or not {"decoder.cls_emb", "decoder.head.weight"} & state.keys():
        raise WeightsError(
            f"{where} holds no segmenter (encoder.*, and decoder.cls_emb or decoder.head.weight). If these are the "
            "weights of its backbone, give them as such: weights='random', backbone_weights=FILE; the decoder is new "
            "then and must be trained."
        )
    mask = "decoder.cls_emb" in state
    told: dict[str, Any] = {"decoder": "mask" if mask else "linear"}
    remarks = []
    if mask and "decoder.proj_dec.weight" in state:
        depth = len({key.split(".")[2] for key in state if key.startswith("decoder.blocks.")})
        told |= {"decoder_depth": depth, "decoder_width": state["decoder.proj_dec.weight"].shape[0]}
    width, _, patch, _ = state["encoder.patch_embed.proj.weight"].shape
    if "backbone" not in given:
        if width not in _WIDTHS:
            raise WeightsError(f"{where}: no published backbone is {width} wide. Say which it is: backbone=NAME.")
        kind = "deit_{}_distilled" if "encoder.dist_token" in state else "vit_{}"
        told["backbone"] = f"{kind.format(_WIDTHS[width])}_patch{patch}_224"
        remarks.append(f"{where}: {told['backbone']} was taken for its encoder, by its width, patch size and tokens.")
    positions = state.get("encoder.pos_embed")
    prefix = sum(f"encoder.{token}" in state for token in ("cls_token", "dist_token"))
    if positions is not None and not {"image_size", "img_size"} & given.keys():
        side = math.isqrt(patches := positions.shape[1] - prefix)
        if side**2 == patches:
            told["image_size"] = side * patch
    if "encoder.head.weight" in state and "norm_eps" not in given:
        told["norm_eps"] = EPSILON
        remarks.append(f"{where} is taken for a file of the published program: its norms add 1e-5, as there.")
    return told, remarks


def put_in(module: Any, state: Mapping[str, Tensor], where: str) -> list[str]:
    """Load a segmenter's weights, and say what was fitted."""
    fitted, changes = fit(state, module)
    load_into(module, fitted, where)
    return [f"{where}: {change}." for change in changes]


def put_into_backbone(module: Any, path: str | Path, attention: Any, use_ema: bool) -> tuple[list[str], dict[str, Any]]:
    """Load the weights of a ViT into the encoder of a segmenter and convert it; remarks, and what a run records.

    Softmax weights go in before the model is converted to `attention`, which takes over their projections; weights
    that were trained with that attention go in afterwards.
    """
    if not family_of(module).trunk:
        raise UnsupportedModelError(f"backbone_weights={path}: {type(module).__name__} has no backbone, it is one.")
    file = read_weights(path, use_ema)
    if not is_of_backbone(file.state, module):
        raise WeightsError(f"{path} holds a whole segmenter: give it as weights={path}, not as backbone_weights.")
    remarks = file.remarks(path)
    fitted, changes = fit(file.state, module)
    first = not attention or fits(fitted, module)
    if first:
        load_into(module, fitted, str(path))
    convert_from_description(module, attention)
    if not first:
        fitted, changes = fit(file.state, module)
        load_into(module, fitted, str(path))
    remarks += [f"{Path(path).name}: {change}." for change in changes]
    return remarks, {"weights": Path(path).name, "sha256": sha256(path), **file.origin}
