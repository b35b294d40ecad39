"""Published sets that shift away from ImageNet, each in the layout in which it is distributed."""

from vitscope.robustness.sets.registry import SetOptions, list_sets, open_sets, parse_sets, register_set

__all__ = ["SetOptions", "list_sets", "open_sets", "parse_sets", "register_set"]
