"""What segmentation costs: `evaluate` against forward passes, the lens on patches, and memory over many images.

    python benchmarks/segmentation.py                 # ViT-Tiny at 224 x 224 with random weights, both decoders
    python benchmarks/segmentation.py --images 64 512 # memory over few and over many images
    python benchmarks/segmentation.py --bounds        # only what has a bound
    python benchmarks/segmentation.py --cpu           # the processor's time, where other programs run beside it

A forward pass includes the decoder and resizing its classes to the picture. `evaluate` reads pictures and label maps
that lie in memory, and counts confusions. After each batch that it has read and counted, the same batch goes through
the model alone: slow drifts of the machine hit both alike. What a run takes to begin and to end is not in it. Memory is
that of processes of their own, which never give their peak back.
"""

from __future__ import annotations

import argparse
import functools
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import vitscope
from timing import report

CLASSES, SIDE, BATCH = 21, 224, 16
BOUND, FLAT = 1.15, 1.05


@functools.cache
def noise(i: int) -> np.ndarray:
    return np.random.default_rng(i).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)


@functools.cache
def squares(i: int) -> np.ndarray:
    small = np.random.default_rng(i).integers(0, CLASSES, (7, 7), dtype=np.uint8)
    return small.repeat(SIDE // 7, 0).repeat(SIDE // 7, 1)


class Scenes:
    """Pictures of noise, or their label maps of large squares: 64 of them, again and again."""

    alike = True  # in size

    def __init__(self, n: int, maps: bool) -> None:
        self.n, self.maps = n, maps

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> np.ndarray:
        if not 0 <= i < self.n:
            raise IndexError(i)
        return squares(i % 64) if self.maps else noise(i % 64)


def scenes(images: int) -> Any:
    """Data for segmentation, of a source in memory."""
    from vitscope.data import Source
    from vitscope.data.segmentation.dataset import SegmentationData
    from vitscope.data.source import as_source

    names = [str(i) for i in range(images)]
    classes = [str(c) for c in range(CLASSES)]
    source = Source(Scenes(images, False), classes=classes, maps=Scenes(images, True), names=names, content="noise")
    return SegmentationData(as_source(source, "noise"), range(images), name="noise", split="all")


def model(decoder: str) -> vitscope.Model:
    return vitscope.open_model("segmenter", "random", num_classes=CLASSES, decoder=decoder)


def run(opened: vitscope.Model, data: Any, analyses: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        vitscope.analyze(opened, data, analyses, out, batch_size=BATCH, gallery=0, progress=False, report=False)


def batch_by_batch(
    opened: vitscope.Model, images: int, analysis: str, clock: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """Seconds of a forward pass and of the analysis, reading included, of every batch of one run."""
    alone: list[float] = []
    whole: list[float] = []
    data = scenes(images)
    read = data.batches

    def watched(*args: Any, **options: Any) -> Iterator[Any]:
        batches, start = read(*args, **options), clock()
        for batch in batches:
            inputs = batch.inputs
            yield batch
            whole.append(clock() - start)
            start = clock()
            with torch.inference_mode():
                opened(inputs)
            alone.append(clock() - start)
            start = clock()

    data.batches = watched
    run(opened, data, [analysis])
    return alone[1:], whole[1:]  # the first ones find everything cold


def peak(images: int) -> int:
    """Bytes that a process of its own had at most, with all analyses of segmentation."""
    command = [sys.executable, __file__, "--here", str(images)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return int(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--images", type=int, nargs=2, default=[64, 512], metavar=("FEW", "MANY"))
    parser.add_argument("--timed", type=int, default=96, metavar="N", help="images of a timed pass")
    parser.add_argument("--decoder", nargs="+", default=["linear", "mask"])
    parser.add_argument("--cpu", action="store_true", help="time of the processor: other programs run meanwhile")
    parser.add_argument("--no-memory", action="store_true", help="leave memory out")
    parser.add_argument("--bounds", action="store_true", help="time nothing but what has a bound")
    parser.add_argument("--here", type=int, metavar="N", help="run over N images in this process and print the bytes")
    given = parser.parse_args()
    lenses = ["patches.identifiability", "patches.attention"]
    if given.here is not None:
        run(model("linear"), scenes(given.here), ["segmentation", *lenses])
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
        return
    clock = time.process_time if given.cpu else time.perf_counter
    size = f"{given.timed} images of {SIDE}x{SIDE}, batch {BATCH}, {given.repeats} repeats"
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {size}")
    for decoder in given.decoder:
        opened = model(decoder)
        print(opened)
        names = (
            {"evaluate": "segmentation"} if given.bounds else {"evaluate": "segmentation", **dict(zip(lenses, lenses))}
        )
        seconds: dict[str, tuple[list[float], list[float]]] = {shown: ([], []) for shown in names}
        for _ in range(given.repeats):
            for shown, name in names.items():
                for pool, new in zip(seconds[shown], batch_by_batch(opened, given.timed, name, clock)):
                    pool.extend(new)
        for shown, (alone, whole) in seconds.items():
            bounds = {shown: BOUND} if shown == "evaluate" else None
            report({"forward pass": alone, shown: whole}, "forward pass", bounds)
    if given.no_memory:
        return
    peaks = [peak(images) for images in given.images]
    for images, found in zip(given.images, peaks):
        print(f"{images:7,d} images: peak {found / 1e6:8.1f} MB")
    ratio = peaks[1] / peaks[0]
    print(f"  ratio {ratio:.3f}   bound {FLAT}: {'kept' if ratio <= FLAT else 'MISSED'}")


if __name__ == "__main__":
    main()
