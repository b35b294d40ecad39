"""Capture: read and change named points of a model during a forward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitscope.lazy import lazy

if TYPE_CHECKING:
    from vitscope.capture.cache import Cache as Cache
    from vitscope.capture.cache import Parts as Parts
    from vitscope.capture.points import BLOCK_POINTS as BLOCK_POINTS
    from vitscope.capture.points import Point as Point
    from vitscope.capture.points import all_points as all_points
    from vitscope.capture.points import resolve as resolve
    from vitscope.capture.tracer import Edit as Edit
    from vitscope.capture.tracer import Tracer as Tracer
    from vitscope.capture.weighted import attention_scores as attention_scores

__getattr__, __dir__, __all__ = lazy(__name__)
