"""Sweeps: the same training with varied options and several seeds, on this machine or on a cluster."""

from vitscope.sweeps.plan import PlannedRun, make_plan, parse_vary
from vitscope.sweeps.sweeping import sweep

__all__ = ["PlannedRun", "make_plan", "parse_vary", "sweep"]
