"""Published sets that shift away from ImageNet, each in the layout in which it is distributed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitscope.lazy import lazy

if TYPE_CHECKING:
    from vitscope.robustness.sets.registry import SetOptions as SetOptions
    from vitscope.robustness.sets.registry import list_sets as list_sets
    from vitscope.robustness.sets.registry import open_sets as open_sets
    from vitscope.robustness.sets.registry import parse_sets as parse_sets
    from vitscope.robustness.sets.registry import register_set as register_set

__getattr__, __dir__, __all__ = lazy(__name__)
