"""What segmentation costs: `evaluate` against forward passes, the lens on patches, and memory over many images.

    python benchmarks/segmentation.py                 # ViT-Tiny at 224 x 224 with random weights, both decoders
    python benchmarks/segmentation.py --images 64 512 # memory over few and over many images
    python benchmarks/segmentation.py --bounds        # only what has a bound
    python benchmarks/segmentation.py --cpu           # the processor's time, where other programs run beside it

A forward pass includes the decoder and resizing its classes to the picture. `evaluate` reads pictures and label maps
that lie in memory, and counts confusions. Each is timed over few and over many images, and what counts is the time of
one more image: a run takes a while to begin and to end, however many images it has. Memory is that of processes of
their own, which never give their peak back.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import vitscope
from timing import interleaved

CLASSES, SIDE, BATCH = 21, 224, 16
BOUND, FLAT = 1.15, 1.05


class Scenes:
    """Pictures of noise, or their label maps of large squares, made when they are looked at."""

    alike = True  # in size

    def __init__(self, n: int, maps: bool) -> None:
        self.n, self.maps = n, maps

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> np.ndarray:
        if not 0 <= i < self.n:
            raise IndexError(i)
        rng = np.random.default_rng(i % 64)
        if not self.maps:
            return rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
        return rng.integers(0, CLASSES, (7, 7), dtype=np.uint8).repeat(SIDE // 7, 0).repeat(SIDE // 7, 1)


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


def run(opened: vitscope.Model, images: int, analyses: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        vitscope.analyze(opened, scenes(images), analyses, out, batch_size=BATCH, progress=False, report=False)


@torch.inference_mode()
def forwards(opened: vitscope.Model, batches: list[torch.Tensor]) -> None:
    for images in batches:
        opened(images)


def per_image(seconds: dict[str, list[float]], few: int, many: int) -> None:
    """From the minima of `NAME, N images`: what one more image costs, and what is left of the few."""
    print(f"{'':24} {'ms per image':>12}  {'ratio':>6}  {'begin and end (s)':>17}")
    base = None
    for name in dict.fromkeys(name.split(", ")[0] for name in seconds):
        least = [min(seconds[f"{name}, {images} images"]) for images in (few, many)]
        more = (least[1] - least[0]) / (many - few)
        base = base or more  # the first one
        verdict = ""
        if name == "evaluate":
            verdict = f"   bound {BOUND}: {'kept' if more / base <= BOUND else 'MISSED'}"
        print(f"{name:24} {1000 * more:12.2f}  {more / base:6.3f}  {least[0] - few * more:17.2f}{verdict}")


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
    parser.add_argument(
        "--timed", type=int, nargs=2, default=[32, 96], metavar=("FEW", "MANY"), help="images of the timed passes"
    )
    parser.add_argument("--decoder", nargs="+", default=["linear", "mask"])
    parser.add_argument("--cpu", action="store_true", help="time of the processor: other programs run meanwhile")
    parser.add_argument("--no-memory", action="store_true", help="leave memory out")
    parser.add_argument("--bounds", action="store_true", help="time nothing but what has a bound")
    parser.add_argument("--here", type=int, metavar="N", help="run over N images in this process and print the bytes")
    given = parser.parse_args()
    every = ["segmentation", "patches.identifiability", "patches.attention"]
    if given.here is not None:
        run(model("linear"), given.here, every)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
        return
    few, many = given.timed
    size = f"{few} and {many} images of {SIDE}x{SIDE}, batch {BATCH}, {given.repeats} repeats"
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {size}")
    for decoder in given.decoder:
        opened = model(decoder)
        print(opened)
        batches = [batch.inputs for batch in scenes(many).batches(opened.preprocess, BATCH)]
        timed: dict[str, Any] = {"forward passes": lambda n: forwards(opened, batches[: n // BATCH])}  # noqa: B023
        for name in ["segmentation"] if given.bounds else every:
            shown = "evaluate" if name == "segmentation" else name
            timed[shown] = lambda n, name=name: run(opened, n, [name])  # noqa: B023
        contenders = {
            f"{name}, {images} images": partial(call, images) for name, call in timed.items() for images in (few, many)
        }
        clock = time.process_time if given.cpu else time.perf_counter
        per_image(interleaved(contenders, given.repeats, 1, clock), few, many)
    if given.no_memory:
        return
    peaks = [peak(images) for images in given.images]
    for images, found in zip(given.images, peaks):
        print(f"{images:7,d} images: peak {found / 1e6:8.1f} MB")
    ratio = peaks[1] / peaks[0]
    print(f"  ratio {ratio:.3f}   bound {FLAT}: {'kept' if ratio <= FLAT else 'MISSED'}")


if __name__ == "__main__":
    main()
