"""Training: one readable loop on Accelerate, recipes as data, checkpoints that survive a kill."""

from vitscope.training.loop import train
from vitscope.training.options import TrainOptions
from vitscope.training.recipes import RECIPES, Recipe, list_recipes, recipe_options

__all__ = ["RECIPES", "Recipe", "TrainOptions", "list_recipes", "recipe_options", "train"]
