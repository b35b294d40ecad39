"""Models: any timm ViT, wrapped and never rewritten.

Names are loaded on first use: `capture` reads `models.families` while `models.model` stands on `capture`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitscope.models.catalog import ModelRow, candidate_names, iter_models, list_models
    from vitscope.models.examine import describe
    from vitscope.models.layout import Layout
    from vitscope.models.model import Model
    from vitscope.models.open import open_model
    from vitscope.models.preprocessing import Preprocess

_HOME = {
    "Layout": "layout",
    "Model": "model",
    "ModelRow": "catalog",
    "Preprocess": "preprocessing",
    "candidate_names": "catalog",
    "describe": "examine",
    "iter_models": "catalog",
    "list_models": "catalog",
    "open_model": "open",
}

__all__ = [
    "Layout",
    "Model",
    "ModelRow",
    "Preprocess",
    "candidate_names",
    "describe",
    "iter_models",
    "list_models",
    "open_model",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
