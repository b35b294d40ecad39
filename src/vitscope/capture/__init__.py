"""Capture: read and change named points of a model during a forward pass."""

from vitscope.capture.points import BLOCK_POINTS, Point, all_points, resolve
from vitscope.capture.tracer import Edit, Tracer, attention_scores

__all__ = ["BLOCK_POINTS", "Edit", "Point", "Tracer", "all_points", "attention_scores", "resolve"]
