"""What `import vitscope` costs beside `import torch`. Target: at most 1.1 x.

Fresh processes, interleaved, so that a busy machine slows both alike.
"""

from __future__ import annotations

import statistics
import subprocess
import sys

REPEATS = 11
TARGET = 1.1
STATEMENTS = {"vitscope": "import vitscope", "torch": "import torch"}
PROGRAM = "import time; t = time.perf_counter(); {}; print(time.perf_counter() - t)"


def seconds(statement: str) -> float:
    """The statement's own time in a fresh interpreter, without that of starting it."""
    command = [sys.executable, "-c", PROGRAM.format(statement)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    times: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    for repeat in range(REPEATS + 1):
        for name, statement in STATEMENTS.items():
            cost = seconds(statement)
            if repeat:  # the first round fills the file cache
                times[name].append(cost)
    for name, values in times.items():
        print(f"import {name:<9} min {min(values):7.4f} s   median {statistics.median(values):7.4f} s")
    minima = min(times["vitscope"]) / min(times["torch"])
    medians = statistics.median(times["vitscope"]) / statistics.median(times["torch"])
    print(f"ratio of minima {minima:.4f}, of medians {medians:.4f} (target {TARGET}, {REPEATS} repeats)")


if __name__ == "__main__":
    main()
