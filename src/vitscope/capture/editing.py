"""Several edits of one point as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from vitscope.capture.points import Point
from vitscope.capture.tracer import Edit


def in_turn(edits: Iterable[tuple[str, Edit]]) -> dict[str, Edit]:
    """(point, edit), ... -> {point: edit}. Edits of the same point act one after the other, in their order."""
    points: dict[str, list[Edit]] = {}
    for point, edit in edits:
        points.setdefault(point, []).append(edit)
    return {point: _chained(functions) for point, functions in points.items()}


def _chained(functions: Sequence[Edit]) -> Edit:
    def edit(value: Tensor, point: Point) -> Tensor:
        for function in functions:
            new = function(value, point)
            value = value if new is None else new
        return value

    return functions[0] if len(functions) == 1 else edit
