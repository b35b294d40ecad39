"""How much memory a computation needs at its peak, from the allocator's own record."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


def peak_memory(run: Callable[[], object], device: torch.device | str = "cpu") -> int:
    """Bytes of tensor memory at the peak of `run()`, above what was there before; work space of kernels included.

    On a CPU the profiler reports each allocation and release, so the figure is exact and repeatable, which the size of
    the process is not. On CUDA the allocator keeps its own peak.
    """
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    if device.type != "cpu":
        raise NotImplementedError(f"peak memory is known on CPU and CUDA, not on {device.type}")
    profiler: Any = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
    with _quiet_profiler(), profiler:
        run()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    level = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        level += event.nbytes()
        peak = max(peak, level)
    return peak


@contextmanager
def _quiet_profiler() -> Iterator[None]:
    """The profiler's library writes every start and stop to stderr unless the environment tells it not to."""
    name, before = "KINETO_LOG_LEVEL", os.environ.get("KINETO_LOG_LEVEL")
    os.environ.setdefault(name, "99")
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
