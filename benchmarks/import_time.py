"""What `import vitscope` costs beside `import torch`: at most 1.1 times as much.

    python benchmarks/import_time.py

Fresh processes, interleaved; each reports the time of the import alone, without that of starting Python.
"""

from __future__ import annotations

import subprocess
import sys

from timing import report

PROGRAM = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"


def seconds(module: str) -> float:
    """The import's own time in a fresh interpreter."""
    command = [sys.executable, "-c", PROGRAM.format(module)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main(repeats: int = 11) -> None:
    modules = ("torch", "vitscope")
    rounds = [{f"import {m}": seconds(m) for m in modules} for _ in range(repeats + 1)]
    times = {name: [r[name] for r in rounds[1:]] for name in rounds[0]}  # the first round fills the file cache
    report(times, "import torch", {"import vitscope": 1.1})


if __name__ == "__main__":
    main()
