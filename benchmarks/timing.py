"""Side-by-side ratios: contenders run interleaved, and ratios are taken between their minima.

Interleaving lets slow drifts of the machine hit all contenders alike; the minimum is the run least disturbed by others.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def interleaved(
    contenders: Mapping[str, Callable[[], object]],
    repeats: int = 15,
    warmup: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of every repeat of every contender. `time.process_time` for the clock: of the processor alone."""
    for _ in range(warmup):
        for run in contenders.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, run in contenders.items():
            start = clock()
            run()
            seconds[name].append(clock() - start)
    return seconds


def report(
    seconds: dict[str, list[float]], base: str, bounds: dict[str, float] | None = None, by_median: bool = False
) -> None:
    """One line per contender: ratio of minima to `base`, ratio of medians, and the bound that the first should keep.

    by_median: the second, where a bound is one of medians.
    """
    floor, middle = min(seconds[base]), statistics.median(seconds[base])
    width = max(map(len, seconds))
    print(f"{'':{width}}  {'min ms':>9}  {'ratio':>6}  {'median':>6}   (to {base}, {len(seconds[base])} repeats)")
    for name, times in seconds.items():
        ratio, typical = min(times) / floor, statistics.median(times) / middle
        bound, held = (bounds or {}).get(name), typical if by_median else ratio
        verdict = "" if bound is None else f"   bound {bound}: {'kept' if held <= bound else 'MISSED'}"
        print(f"{name:{width}}  {1000 * min(times):9.1f}  {ratio:6.3f}  {typical:6.3f}{verdict}")
