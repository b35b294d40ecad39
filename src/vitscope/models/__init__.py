"""Models: any timm ViT, wrapped and never rewritten."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitscope.lazy import lazy

if TYPE_CHECKING:
    from vitscope.architectures.layout import Layout as Layout
    from vitscope.models.catalog import ModelRow as ModelRow
    from vitscope.models.catalog import candidate_names as candidate_names
    from vitscope.models.catalog import iter_models as iter_models
    from vitscope.models.catalog import list_models as list_models
    from vitscope.models.examine import describe as describe
    from vitscope.models.model import Model as Model
    from vitscope.models.open import open_model as open_model
    from vitscope.models.preprocessing import Preprocess as Preprocess

__getattr__, __dir__, __all__ = lazy(__name__)
