"""Sweeps: the same training with varied options and several seeds, on this machine or on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitscope.lazy import lazy

if TYPE_CHECKING:
    from vitscope.sweeps.plan import PlannedRun as PlannedRun
    from vitscope.sweeps.plan import make_plan as make_plan
    from vitscope.sweeps.plan import parse_vary as parse_vary
    from vitscope.sweeps.sweeping import sweep as sweep

__getattr__, __dir__, __all__ = lazy(__name__)
