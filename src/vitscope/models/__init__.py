"""Models: any timm ViT, wrapped and never rewritten."""

from vitscope.models.catalog import ModelRow, candidate_names, describe, iter_models, list_models
from vitscope.models.layout import Layout
from vitscope.models.model import Model
from vitscope.models.open import open_model
from vitscope.models.preprocessing import Preprocess

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
