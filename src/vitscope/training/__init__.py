"""Training: one readable loop on Accelerate, recipes as data, checkpoints that survive a kill."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitscope.lazy import lazy

if TYPE_CHECKING:
    from vitscope.training.loop import train as train
    from vitscope.training.options import TrainOptions as TrainOptions
    from vitscope.training.recipes import RECIPES as RECIPES
    from vitscope.training.recipes import Recipe as Recipe
    from vitscope.training.recipes import list_recipes as list_recipes
    from vitscope.training.recipes import recipe_options as recipe_options

__getattr__, __dir__, __all__ = lazy(__name__)
