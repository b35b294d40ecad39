"""Two models of the class-embedding study (Vilas et al., NeurIPS 2023) under its names: timm's ViTs of its own weights.

* `deit_ensemble_16`, its "Refinement" model: DeiT-B/16 with the eleven heads of Naseer et al. (ICLR 2022) beside it.
  The study drops these; here they are a learnt lens (`learnt_lens`). Pictures: short side 256, centre 224.
* `vit_cifar_16`: ViT-B/16 with the 100 classes of CIFAR-100; its names begin with `model.`. Pictures are squashed to
  224 x 224, around grey.

Both open from the study's checkpoints, `open_model("deit_ensemble_16", FILE)`: timm has no weights of theirs.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from vitscope.models.learnt_lens import attach
from vitscope.models.naming import register_model

_GREY = (0.5, 0.5, 0.5)


@register_model("deit_ensemble_16")
def deit_ensemble_16(**options: Any) -> nn.Module:
    """timm's `deit_base_patch16_224` with heads of refinement."""
    module = _timm("deit_base_patch16_224", options, architecture="deit_ensemble_16", crop_pct=0.875)
    attach(module, "refined")
    return module


@register_model("vit_cifar_16")
def vit_cifar_16(*, num_classes: int = 100, **options: Any) -> nn.Module:
    """timm's `vit_base_patch16_224` with 100 classes."""
    recipe = {"crop_pct": 1.0, "crop_mode": "squash", "interpolation": "bilinear", "mean": _GREY, "std": _GREY}
    return _timm(
        "vit_base_patch16_224",
        {"num_classes": num_classes, **options},
        architecture="vit_cifar_16",
        num_classes=num_classes,
        **recipe,
    )


def _timm(name: str, options: dict[str, Any], **changes: Any) -> nn.Module:
    """timm's model with another recipe for pictures; the tag of timm's weights is not its."""
    import timm

    module: Any = timm.create_model(name, **options)
    configuration = {**module.pretrained_cfg, **changes, "tag": "class-embedding study"}
    module.pretrained_cfg = module.default_cfg = configuration
    return module
