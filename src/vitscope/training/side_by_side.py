"""Several trainings at the same time on one machine, each in a process of its own.

Small models leave most of a second core idle; two of them, with one thread each, do not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pandas as pd

from vitscope.errors import VitscopeError
from vitscope.registry import outside_modules
from vitscope.runs import Run, atomic_write
from vitscope.runs.config import dump_yaml
from vitscope.training.loop import train
from vitscope.training.options import TrainOptions
from vitscope.training.panel import MEASURES, judged_by

LOOK = 0.5  # seconds between two looks at the tables


def train_side_by_side(options: Sequence[TrainOptions], *, threads: int = 1) -> list[Run]:
    """`train` of each, at the same time, with so many threads each. Resumes and returns finished runs as it does.

    A training that fails lets the others finish; its message is raised then.
    """
    pending = [o for o in options if o.overwrite or not _finished(Path(o.out))]
    with _started(pending, threads) as processes:
        _watch(pending, processes)
        for one, process in zip(pending, processes):
            if process.returncode:
                told = _beside(one, ".log").read_text(errors="replace").strip()
                raise VitscopeError(f"Training {one.out} failed (exit code {process.returncode}): {told}")
    return [train(replace(o, overwrite=False)) for o in options]  # they are finished: this checks and opens them


@contextmanager
def _started(options: Sequence[TrainOptions], threads: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The processes. Whatever happens here, none is left behind: each saves its state when it is told to stop."""
    processes: list[subprocess.Popen[bytes]] = []
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    try:
        for one in options:
            words = _beside(one, ".yaml")
            config = one.to_config()
            atomic_write(words, dump_yaml({"options": config, "modules": outside_modules(config)}))
            command = [sys.executable, "-m", "vitscope", "train", "--config", str(words), "--out", str(one.out)]
            command += ["--trust"]  # the file is our own
            command += ["--no-progress", *(["--overwrite"] if one.overwrite else [])]
            with _beside(one, ".log").open("wb") as log:  # not a pipe, which would fill up
                processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=log))
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for process in processes:
            process.wait()


def _watch(options: Sequence[TrainOptions], processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """One bar over the epochs of all of them, until the last one is done."""
    from tqdm import tqdm

    names = [o.label or o.model for o in options]
    shown = bool(options) and any(o.progress for o in options)
    with tqdm(total=sum(o.epochs for o in options), unit="epoch", disable=not shown, dynamic_ncols=True) as bar:
        bar.set_description("training " + " and ".join(names))
        while any(process.poll() is None for process in processes):
            time.sleep(LOOK)
            done = [(name, _epochs(Path(o.out))) for name, o in zip(names, options)]
            if (epochs := sum(len(table) for _, table in done)) > bar.n:
                bar.set_postfix_str(reached([(name, table) for name, table in done if len(table)]), refresh=False)
                bar.update(epochs - bar.n)


def reached(done: Sequence[tuple[str, pd.DataFrame]]) -> str:
    """What trainings of these names are judged by, after their last epochs so far."""
    measure = judged_by(table for _, table in done)
    form = ".1f" if measure == "perplexity" else ".1%"
    told = (f"{name} {table[f'test_{measure}'].iloc[-1]:{form}}" for name, table in done)
    return f"held-out {MEASURES[measure].removesuffix(' (%)')}: {', '.join(told)}"


def _beside(options: TrainOptions, suffix: str) -> Path:
    """`runs/demo/digits-vit` -> `runs/demo/digits-vit.log`"""
    return Path(options.out).parent / f"{Path(options.out).name}{suffix}"


def _finished(path: Path) -> bool:
    return (path / "run.json").exists() and Run.open(path).status == "finished"


def _epochs(path: Path) -> pd.DataFrame:
    """A row for each epoch so far."""
    table = path / "tables" / "training.csv"  # the table alone: the run's other files are perhaps just being written
    return pd.read_csv(table) if table.exists() else pd.DataFrame()
