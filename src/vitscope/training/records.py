"""What a training writes down: how far it got, its tables and summary, and what it says when it stops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import pandas as pd

from vitscope.analyses.base import Headline
from vitscope.processes import Processes
from vitscope.runs import Run
from vitscope.tasks import Task
from vitscope.training.checkpoint import LAST
from vitscope.training.options import TrainOptions
from vitscope.training.setup import TrainData


@dataclass
class Progress:
    """How far a training got. With the weights and the optimiser's state this is all that a resume needs."""

    epoch: int = 0  # complete epochs
    step: int = 0  # complete steps of the next one
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])  # its loss, right answers, answers, ... so far
    history: list[dict[str, float]] = field(default_factory=list)  # rows of tables/training.csv
    best: float | None = None  # of the task's measure, on held-out data
    best_epoch: int = 0
    skipped: list[list[Any]] = field(default_factory=list)  # (image, path, reason) of what could not be read
    seconds: float = 0.0  # over all attempts
    processes: int = 1
    threads: int = 1
    accumulate: int = 1

    @property
    def manner(self) -> str:
        """What may change on a resume and then shows in the last digits."""
        pieces = f" and batches in {self.accumulate} pieces" if self.accumulate > 1 else ""
        return f"{self.processes} process(es) of {self.threads} thread(s){pieces}"


def added(*sums: Sequence[float]) -> list[float]:
    """The sum of each column; a row that has not begun to count what a task adds up beside is shorter."""
    return [sum(column) for column in zip_longest(*sums, fillvalue=0.0)]


def write_history(run: Run, progress: Progress) -> None:
    table = pd.DataFrame(progress.history)
    run.write_table("training", table.astype({"epoch": int}))


def finish_run(run: Run, data: TrainData, progress: Progress) -> None:
    write_history(run, progress)
    names = set(getattr(data.test, "paths", ())) if progress.skipped else set()
    n = len(data.test) - sum(path in names for _, path, _ in progress.skipped)
    task = data.task
    measure, items = task.measure, task.words.items
    held_out = f"held-out {items}, {data.test.name} ({data.test.split})"
    chosen = f"{held_out}, after epoch {progress.best_epoch}, which was chosen on these {items}"
    last, best = progress.history[-1][f"test_{measure.name}"], progress.best
    values = {"test": (last, f"{held_out}, after the last epoch"), "best": (last if best is None else best, chosen)}
    run.write_summary(
        {
            f"train.{which}_{measure.name}": Headline(measure.factor * value, measure.unit, n, note)
            for which, (value, note) in values.items()
        }
    )
    note_skipped(run, task, progress.skipped)
    timing = {"seconds": round(progress.seconds, 3), "epochs": progress.epoch}
    run.write_timing({"train": {**timing, "processes": progress.processes, "threads": progress.threads}})
    run.finish()


def note_skipped(run: Run, task: Task, skipped: list[list[Any]]) -> None:
    if skipped:
        run.write_skipped((index, path, reason) for index, path, reason in skipped)
        run.log_warning(f"{len(skipped):,} {task.words.items} could not be read and were left out: table 'skipped'.")


def progress_bar(options: TrainOptions, run: Run, progress: Progress, steps: int, processes: Processes) -> Any:
    from tqdm import tqdm

    return tqdm(
        total=options.epochs * steps,
        initial=progress.epoch * steps + progress.step,
        desc=run.label,
        unit="step",
        mininterval=0.5,
        dynamic_ncols=True,
        disable=not (options.progress and processes.first),
    )


def postfix(task: Task, progress: Progress) -> str:
    measure, held_out = task.measure, ""
    if progress.history:
        reached = measure.factor * progress.history[-1][f"test_{measure.name}"]
        held_out = f", held-out {reached:.1f}{measure.unit}"
    return f"epoch {progress.epoch + 1}, loss {progress.sums[0] / max(progress.sums[2], 1):.3f}{held_out}"


def saved(progress: Progress) -> str:
    return f"{progress.epoch} epoch(s)" + (f" and {progress.step} step(s)" if progress.step else "")


def stopped(run: Run, progress: Progress, steps: int) -> str:
    return (
        f"Stopped after {saved(progress)} of {steps} steps. Everything is saved in {run.path}; the same command again "
        "goes on from there."
    )


def diverged(options: TrainOptions, run: Run, loss: float, step: int, steps: int, first_bad: str) -> str:
    kept = run.checkpoints_dir / LAST
    where = f"The last good checkpoint is kept in {kept}." if kept.is_dir() else "There is no checkpoint yet."
    return (
        f"The loss is {loss} at step {step} (step {step % steps} of {steps} in epoch {step // steps + 1}). "
        f"First to be bad: {first_bad}. {where} "
        f"Try a smaller lr (now {options.lr:g}), a longer warm-up (now {options.warmup_epochs:g} epochs), "
        "clip_grad=1, or mixed_precision='no', in a new folder (--out) or with --overwrite."
    )
