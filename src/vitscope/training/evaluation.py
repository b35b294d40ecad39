"""How well a model does on held-out data."""

from __future__ import annotations

from functools import partial
from typing import Any

import pandas as pd
import torch

from vitscope.analyses.base import Headline
from vitscope.analyses.chance import describe_chance, near_chance
from vitscope.analyses.one_pass import evaluating
from vitscope.errors import DataError, NumericalError
from vitscope.models import Model
from vitscope.processes import Processes
from vitscope.runs import Run
from vitscope.tasks import task_of
from vitscope.training.feeds import Feed
from vitscope.training.lesson import Lesson, tally
from vitscope.training.options import TrainOptions
from vitscope.training.probes import gather
from vitscope.training.records import added, note_skipped
from vitscope.training.setup import TrainData


def evaluate(
    options: TrainOptions,
    model: Model,
    feed: Feed,
    processes: Processes,
    skipped: list[list[Any]],
    lesson: Lesson | None = None,
) -> dict[str, float]:
    """The task's figures, among them the loss in nats, in evaluation mode, without gradients; each item counts once.

    lesson: what is taught, which may not be the model's own answers.
    """
    task = task_of(feed.data)
    count = partial(tally, task) if lesson is None else lesson.tally
    sums = [0.0, 0.0, 0.0]  # loss, right answers, answers, and what else the task adds up
    with evaluating(model.module), torch.no_grad():
        for batch in feed.once(options.look_size, rank=processes.rank, world=processes.world):
            skipped += [[s.index, s.path, s.reason] for s in batch.skipped]
            if len(batch) == 0:
                continue
            sums = added(sums, count(model, batch))
    loss, _, counted, *_ = sums = added(*gather(processes, sums))
    if counted == 0:
        why = f"can be read, e.g. {skipped[-1][1]}: {skipped[-1][2]}" if skipped else "has an answer to compare with."
        raise DataError(f"None of the {len(feed.data):,} held-out {task.words.items} {why}")
    if not loss < float("inf"):
        raise NumericalError(
            f"The loss on held-out {task.words.items} is {loss}: the weights have become useless in this epoch. "
            "The last good checkpoint is kept; try a smaller lr or a longer warm-up."
        )
    return task.figures(*sums)


def evaluate_only(options: TrainOptions, run: Run, data: TrainData, model: Model, processes: Processes) -> None:
    """Judge the given weights on the held-out data; nothing is trained and no weights are written."""
    skipped: list[list[Any]] = []
    task, feed = data.task, Feed(data.test, model.preprocess, options.workers)
    figures = evaluate(options, model, feed, processes, skipped)
    skipped = [entry for part in gather(processes, skipped) for entry in part]
    n = len(data.test) - len(skipped)

    def write() -> None:
        measure = task.measure
        run.write_table("evaluation", pd.DataFrame([{"split": data.test.split, **figures, "n": n}]))
        held_out = f"{data.test.name} ({data.test.split}), weights {options.weights}, no training"
        run.write_summary(
            {
                f"train.test_{measure.name}": Headline(
                    measure.factor * figures[measure.name], measure.unit, n, held_out
                ),
                "train.test_loss": Headline(figures["loss"], "nats", n, held_out),
            }
        )
        note_skipped(run, task, skipped)
        right = round(figures.get("accuracy", 1.0) * n)
        if task.one_class and near_chance(right, n, model.num_classes):
            run.log_warning(describe_chance(right, n, data.test.classes))
        run.finish()

    processes.first_decides(write)
