"""The training loop. There is one, it is this file; `Training.step` is one step of it, from data to weights.

Everything random is a function of numbers that are known beforehand: the order of the items of (seed, epoch), their
augmentation of (seed, epoch, item), dropout and mixup of (seed, step, process), the learning rate of the step (and of
the accuracies written down before it, where its schedule waits for them). A checkpoint therefore holds the weights,
their average, the optimiser's state and a few counters, and a run that is killed and started again ends with the same
bits as one that was not (on a CPU, with as many threads and processes).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from vitscope.data import Batch, steps_per_epoch
from vitscope.errors import NumericalError
from vitscope.interrupt import Interrupted, StopRequest, deferred_signals
from vitscope.models import Model
from vitscope.processes import Processes
from vitscope.runs import Run
from vitscope.training.checkpoint import BEST, LAST, save_checkpoint
from vitscope.training.diagnosis import first_bad_tensor
from vitscope.training.evaluation import evaluate, evaluate_only
from vitscope.training.feeds import open_feeds
from vitscope.training.lesson import open_lesson
from vitscope.training.network import build_network
from vitscope.training.opening import open_run, resume
from vitscope.training.options import TrainOptions
from vitscope.training.probes import Probes, gather
from vitscope.training.processes import accelerated, preserved_randomness, seed_step
from vitscope.training.recipes import options_of
from vitscope.training.records import added, diverged, finish_run, postfix, progress_bar, stopped, write_history
from vitscope.training.schedule import Schedule
from vitscope.training.setup import build_average, build_model, open_data, resolved
from vitscope.training.tracking import Tracking, check_trackers
from vitscope.training.watch import Watch


def train(
    options: TrainOptions | str | None = None, *, command: str | Sequence[str] | None = None, **changes: Any
) -> Run:
    """Train a ViT. The same call again resumes a killed run exactly, and returns a finished one at once.

    options: `TrainOptions`, or the name of a recipe; changes: single options, `train("quick", out="runs/a", epochs=4)`.
    Under `torchrun` all processes share each batch. After Ctrl-C the state is saved and `Interrupted` is raised.
    """
    options = options_of(options, changes)
    check_trackers(options.track)
    with (
        accelerated(options.device, options.mixed_precision) as accelerator,
        preserved_randomness(accelerator.device),
    ):
        training = Training(options, accelerator, command)
        try:
            if training.unfinished and options.evaluate:
                evaluate_only(options, training.run, training.data, training.model, training.processes)
            elif training.unfinished:
                training.learn()
        finally:
            training.run.close()
    return training.run


class Training:
    """What a training holds: `learn` does all of it, `step` is what it does again and again."""

    def __init__(self, options: TrainOptions, accelerator: Accelerator, command: str | Sequence[str] | None) -> None:
        self.options, self.accelerator, self.processes = options, accelerator, Processes.join()
        self.device, self.dtype = accelerator.device, getattr(torch, options.dtype)
        self.data = open_data(options, self.processes.world)
        self.task = self.data.task
        self.steps = steps_per_epoch(len(self.data.train), options.batch_size)
        self.model = build_model(options, self.data.train)
        self.model.module.to(self.dtype)
        config = resolved(options, self.data, self.model, self.device.type)
        self.probes = Probes(options, self.model.to(self.device), self.processes)
        self.lesson = open_lesson(options, self.task, self.model, len(self.data.train), self.device)
        self.network = build_network(options, self.model, accelerator)
        self.learned, self.held_out = open_feeds(options, self.data, self.model)
        self.schedule = Schedule(options, self.network.plain, self.steps)
        self.watch, self.stop, self.stops = Watch(self.device, self.processes), StopRequest(), False
        # the run folder is the last to be opened: what is refused above has written nothing
        self.run, self.unfinished = open_run(
            options, config, self.model, self.data, self.probes, self.processes, command
        )

    def learn(self) -> None:
        """All epochs that are left."""
        options, run, processes = self.options, self.run, self.processes
        self.average = build_average(options, self.model)  # of the weights; None without ema
        self.progress = progress = resume(options, run, self.network, self.average, self.accelerator, processes)
        self.tracking = Tracking(options, self.accelerator, run)
        processes.first_decides(self.tracking.start)
        self.started = time.monotonic()
        if progress.epoch == progress.step == 0 and self.probes.due(0):
            self.probes.measure(0, run)
        with deferred_signals() as self.stop, progress_bar(options, run, progress, self.steps, processes) as self.bar:
            for epoch in range(progress.epoch, options.epochs):
                self._steps_of(epoch)
                self._end_of(epoch)
        self.tracking.close()
        progress.seconds += time.monotonic() - self.started
        processes.first_decides(lambda: finish_run(run, self.data, progress))

    def step(self, at: int, batch: Batch) -> None:
        """One step of the optimiser, the `at`-th of the training. batch: what this process has of its items."""
        options, network, accelerator, lesson = self.options, self.network, self.accelerator, self.lesson
        self.schedule.set(at, [row[f"test_{self.task.measure.name}"] for row in self.progress.history])
        seed_step(options.seed, at, self.processes.rank)
        inputs, targets = lesson.prepare(batch)  # (B, C, H, W) pictures, (B,) classes; (B, classes) where mixed

        counted, seen = lesson.counted(targets), []
        per_answer = self._per_answer(counted)
        pieces = network.pieces(inputs, targets, options.accumulate)
        for number, (x, y) in enumerate(pieces, 1):  # (B / accumulate, ...): their gradients add up
            with nullcontext() if number == len(pieces) else accelerator.no_sync(network.module):
                outputs = self.model.ask(network.module, x)  # (b, classes); of both heads where there is a teacher
                loss = lesson.loss(outputs, y, x)  # summed over the answers
                accelerator.backward(loss * per_answer)
            seen.append((loss.detach(), lesson.right(outputs, y)))

        self.watch.note(seen, counted)
        self._look(at, [x for x, _ in pieces])  # where it is time to: before the weights move
        if options.clip_grad is not None:
            accelerator.clip_grad_norm_(network.module.parameters(), options.clip_grad)
        network.optimizer.step()
        network.optimizer.zero_grad()
        if self.average is not None:
            self.average.update(self.model.module)

    def _per_answer(self, counted: int | Tensor) -> Tensor | float:
        """1 / answers over all processes, times the number of processes, because DDP averages their gradients.

        A process may have fewer than another, where an item could not be read. The sum stays on the device.
        """
        if self.processes.world == 1:  # a batch may have nothing to compare: its loss is 0
            return 1 / (counted.clamp(min=1) if isinstance(counted, Tensor) else counted)
        mine = torch.as_tensor(counted, dtype=self.dtype, device=self.device)
        return self.processes.world / self.accelerator.reduce(mine, reduction="sum").clamp(min=1)

    def _look(self, at: int, inputs: Sequence[Any]) -> None:
        """Every few steps, and before whatever is saved: are all losses finite, and was anyone asked to stop?"""
        ends = (at + 1) % self.steps == 0
        if not (self.watch.due(self.stop.made) or self._saves_after(at) or ends):
            return
        found, self.stops = self.watch.look(self.stop.made)
        for step, sums in enumerate(found, at + 1 - len(found)):
            loss, _, n, *_ = sums
            if not loss < float("inf"):
                first = self._first_bad(step, at, inputs)
                raise NumericalError(diverged(self.options, self.run, loss / max(n, 1), step, self.steps, first))
            self.progress.sums = added(self.progress.sums, sums)
        self.bar.set_postfix_str(postfix(self.task, self.progress), refresh=False)

    def _first_bad(self, step: int, at: int, inputs: Sequence[Any]) -> str:
        """The first tensor that is not finite in `step`, if that is the present one: its weights have not moved yet."""
        if step < at:
            return f"not known, because it was noticed at step {at}, when the weights had already followed it"
        self.network.collect()
        seed_step(self.options.seed, at, self.processes.rank)  # dropout falls as it did
        mine = next(filter(None, (first_bad_tensor(self.model.module, x) for x in inputs)), None)
        return next(filter(None, gather(self.processes, mine)), "the loss itself")

    def _steps_of(self, epoch: int) -> None:
        """The steps that are left of an epoch; after each of them the training can be saved."""
        options, progress = self.options, self.progress
        self.lesson.begin(epoch)
        here = {"rank": self.processes.rank, "world": self.processes.world, "start": progress.step}
        size = options.batch_size // self.processes.world
        self.network.learning()
        for batch in self.learned.epoch(size, seed=options.seed, epoch=epoch, **here):
            at = epoch * self.steps + progress.step
            self.step(at, batch)
            progress.step += 1
            progress.skipped += [[s.index, s.path, s.reason] for s in batch.skipped]
            self.bar.update()
            if self.stops or self._saves_after(at):
                self._save()
            if self.stops:
                raise Interrupted(stopped(self.run, progress, self.steps))

    def _end_of(self, epoch: int) -> None:
        """What an epoch has taught: judged on held-out items, written down, saved."""
        progress, run, processes, measure = self.progress, self.run, self.processes, self.task.measure
        self.network.collect()
        figures = {"train_": self.task.figures(*progress.sums), "test_": self._judge(self.model)}
        if self.average is not None:
            figures["ema_test_"] = self._judge(self.average.model)
        row = {"epoch": epoch + 1, "lr": self.network.optimizer.param_groups[0]["lr"]}  # the rate of the last step
        row |= {prefix + name: value for prefix, found in figures.items() for name, value in found.items()}
        progress.history.append(row)
        progress.epoch, progress.step, progress.sums = epoch + 1, 0, [0.0, 0.0, 0.0]

        # Tables and `best` come before `last`: a kill in between repeats this epoch and writes the same again.
        if self.probes.due(epoch + 1):
            self.probes.measure(epoch + 1, run)
        if measure.better(reached := row[f"test_{measure.name}"], progress.best):
            progress.best, progress.best_epoch = reached, epoch + 1
            self._write(BEST)
        processes.first_decides(lambda: write_history(run, progress))
        self._save()
        self.tracking.log(row, epoch + 1)

    def _judge(self, model: Model) -> dict[str, float]:
        skipped = self.progress.skipped
        return evaluate(self.options, model, self.held_out, self.processes, skipped, self.lesson)

    def _saves_after(self, at: int) -> bool:
        every = self.options.checkpoint_steps
        return bool(every) and (at + 1) % every == 0

    def _save(self) -> None:
        """All processes come here together, after a look at the losses; the first one writes."""
        progress, scaler = self.progress, self.accelerator.scaler
        progress.skipped = sorted(
            {tuple(s): s for part in gather(self.processes, progress.skipped) for s in part}.values()
        )
        now = {**asdict(progress), "seconds": progress.seconds + time.monotonic() - self.started}
        self.network.collect()
        state = {"progress": now, "optimizer": self.network.optimizer_state()}
        # fp16 scales its loss; the other precisions have no such state
        self._write(LAST, {**state, "scaler": None if scaler is None else scaler.state_dict()})

    def _write(self, name: str, state: dict[str, Any] | None = None) -> None:
        averaged = None if self.average is None else self.average.model.module.state_dict()

        def put() -> None:
            self.run.check_writable()  # a deleted folder would be made again, with half of what belongs there
            save_checkpoint(self.run.checkpoints_dir, name, self.model.module.state_dict(), state, averaged)

        self.processes.first_decides(put)
