"""From a name to an untrained module: vitscope's own architectures first, then timm's."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import nn

OWN = {"small": "vitscope.models.small"}  # name -> the module that holds a function of that name


def create(name: str, **options: Any) -> nn.Module:
    """A module with fresh weights; TypeError for an option that the architecture does not take."""
    if name in OWN:
        return getattr(import_module(OWN[name]), name)(**options)
    import timm

    return timm.create_model(name, pretrained=False, **options)
