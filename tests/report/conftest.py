"""Run folders as the engine and the training loop leave them, with fabricated numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from vitscope.analyses.base import Headline
from vitscope.runs import Run

HOSTILE = """<script>document.title='hacked'</script>"><img src=x onerror=alert(1)>'&amp;"""
MakeRun = Callable[..., Run]


def maps_table(images: list[int], blocks: int, side: int, name: str, rng: np.random.Generator) -> pd.DataFrame:
    """One blob per image that grows sharper with depth."""
    frames = []
    row, col = (a.ravel() for a in np.indices((side, side)))
    for image in images:
        y, x = rng.uniform(1, side - 2, 2)
        for block in range(blocks):
            width = side / (1 + block)
            value = np.exp(-((row - y) ** 2 + (col - x) ** 2) / width**2) + 0.05 * rng.random(side * side)
            if name == "class logit":
                value = value - 0.5
            frames.append(
                pd.DataFrame({"image": image, "map": name, "block": block, "row": row, "col": col, "value": value})
            )
    return pd.concat(frames, ignore_index=True)


def training_table(epochs: int, rng: np.random.Generator, best: float = 0.95) -> pd.DataFrame:
    epoch = np.arange(1, epochs + 1)
    wobble = rng.normal(0, 0.004, epochs)
    return pd.DataFrame(
        {
            "epoch": epoch,
            "train_loss": 2.3 * np.exp(-epoch / 4) + 0.02,
            "train_accuracy": 1 - 0.9 * np.exp(-epoch / 3),
            "test_loss": 2.2 * np.exp(-epoch / 4) + 0.15 + 0.004 * epoch,
            "test_accuracy": np.clip(best - 0.85 * np.exp(-epoch / 3) + wobble, 0, 1),
            "lr": 1e-3 * np.cos(np.pi / 2 * epoch / (epochs + 1)),
        }
    )


def fill(run: Run, *, seed: int, blocks: int, classes: list[str], images: int = 6, side: int = 7) -> None:
    """Tables in the shape of the accuracy and attention analyses, maps, thumbnails, summary, timing, warnings."""
    rng = np.random.default_rng(seed)
    n = 1000
    shown = list(range(images))
    names = [classes[i % len(classes)] for i in shown]
    run.write_table("maps_attention", maps_table(shown, blocks, side, "attention", rng))
    run.write_table("maps_logit", maps_table(shown, blocks, side, "class logit", rng))
    paths = [f"digits/{i}.png" for i in shown]
    run.write_table(
        "images",
        pd.DataFrame(
            {
                "image": shown,
                "path": paths,
                "label": [i % len(classes) for i in shown],
                "class_name": names,
                "prediction": [i % len(classes) for i in shown],
                "predicted_name": names,
            }
        ),
    )
    run.images_dir.mkdir(exist_ok=True)
    for i in shown:
        pixels = np.zeros((28, 28), np.uint8)
        pixels[4 + i : 24, 10 : 14 + i] = 220
        Image.fromarray(pixels).save(run.images_dir / f"{i}.png")
    run.write_table("per_block", pd.DataFrame({"block": range(blocks), "value": rng.random(blocks)}))
    run.write_summary(
        {
            "accuracy.top1": Headline(93.4567891, "%", n, "95 % Wilson interval"),
            "accuracy.loss": Headline(0.21234567, "nats", n),
        }
    )
    timing = {"seconds": 83.25, "images_per_second": 612.5, "peak_memory_bytes": 812_345_678}
    run.write_timing({"analyze": timing})
    run.write_skipped([(17, f"val/{HOSTILE}/broken.png", "truncated file")])
    run.log_warning(f"a tag was chosen for {HOSTILE}")


def analysis_run(
    root: Path,
    label: str,
    *,
    folder: str = "",
    seed: int = 0,
    blocks: int = 6,
    classes: list[str] | None = None,
    finished: bool = True,
    config: dict[str, Any] | None = None,
) -> Run:
    """A filled, closed run folder of `vitscope analyze`."""
    settings = {
        "model": {"name": label},
        "data": {"name": "mnist5k", "split": "test", "n": 1000, "seed": 0, "fingerprint": "9f2c51d0aa31"},
        "analyses": ["accuracy", "attention"],
        "seed": 0,
        "device": "cpu",
    } | (config or {})
    path = root / (folder or label)
    with Run.create(path, settings, kind="analyze", command=f"vitscope analyze '{label}' --data mnist5k") as run:
        fill(run, seed=seed, blocks=blocks, classes=classes or [str(i) for i in range(10)])
        if finished:
            run.finish()
    return Run.open(path)


def training_run(
    root: Path, folder: str, *, label: str = "vit_demo", epochs: int = 12, best: float = 0.95, seed: int = 0
) -> Run:
    """A finished training run."""
    config = {"model": {"name": label}, "data": {"name": "mnist5k", "fingerprint": "77"}, "lr": 1e-3, "seed": 1}
    with Run.create(root / folder, config, kind="train", command="vitscope demo") as run:
        run.write_table("training", training_table(epochs, np.random.default_rng(seed), best))
        run.finish()
    return Run.open(run.path)


@pytest.fixture(scope="session")
def run_makers() -> tuple[MakeRun, MakeRun]:
    """(analysis_run, training_run) for fixtures that choose the folder themselves."""
    return analysis_run, training_run


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """make_run('vit_tiny') -> a finished analysis run."""
    return partial(analysis_run, tmp_path / "runs")


@pytest.fixture
def make_training(tmp_path: Path) -> MakeRun:
    """make_training('demo') -> a finished training run of 12 epochs."""
    return partial(training_run, tmp_path / "runs")
