"""Peak memory of `analyze` over few and over many images: it must be the same within 5 %.

Each run is a process of its own, because a process never gives its peak back:

    python benchmarks/memory.py                    # 200 and 1,000 images, accuracy and attention
    python benchmarks/memory.py --analyses all     # whatever runs by default
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

BOUND = 1.05
MODEL, BATCH = "vit_tiny_patch16_224", 16


class SyntheticImages(Sequence[np.ndarray]):
    """Noise of the usual size, made when it is looked at: the data themselves take no memory."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> np.ndarray:  # type: ignore[override]
        if not 0 <= i < self.n:
            raise IndexError(i)
        return np.random.default_rng(i).integers(0, 256, (224, 224, 3), dtype=np.uint8)


def peak_of_analyze(images: int, analyses: Any) -> int:
    """Run it here and return the peak of resident memory in bytes."""
    from vitscope.analyses import analyze
    from vitscope.data import ImageData, Source
    from vitscope.data.source import as_source
    from vitscope.models import open_model

    labels = [i % 1000 for i in range(images)]
    classes = [str(c) for c in range(1000)]
    source = as_source(Source(SyntheticImages(images), labels, classes, content="synthetic"), "synthetic")
    data = ImageData(source, range(images), name="synthetic", split="all")
    with tempfile.TemporaryDirectory() as folder:
        analyze(
            open_model(MODEL, "random"),
            data,
            analyses,
            Path(folder) / "run",
            batch_size=BATCH,
            save_every=5,
            progress=False,
            report=False,
        )
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def compare_peaks(script: str, sizes: Sequence[int], bound: float, told: str, *words: str) -> None:
    """Run `SCRIPT --here N`, which prints its peak in bytes, over few and many images, each in a process of its own."""
    peaks = []
    for images in sizes:
        command = [sys.executable, script, "--here", str(images), *words]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            sys.exit(result.stderr)
        peaks.append(int(result.stdout.split()[-1]))
        print(f"{images:7,d} images: peak {peaks[-1] / 1e6:8.1f} MB")
    ratio = peaks[1] / peaks[0]
    print(f"  ratio {ratio:.3f}   bound {bound}: {'kept' if ratio <= bound else 'MISSED'}   ({told})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs=2, default=[200, 1000], metavar=("FEW", "MANY"))
    parser.add_argument("--analyses", default="accuracy,attention", help="names separated by commas, or 'all'")
    parser.add_argument("--here", type=int, metavar="N", help="run over N images in this process and print the bytes")
    options = parser.parse_args()
    if options.here is not None:
        print(peak_of_analyze(options.here, None if options.analyses == "all" else options.analyses.split(",")))
        return
    compare_peaks(__file__, options.images, BOUND, f"{MODEL}, batch {BATCH}", "--analyses", options.analyses)


if __name__ == "__main__":
    main()
