"""The training loop. There is one, it is this file, and it reads from top to bottom.

Everything random is a function of numbers that are known beforehand: the order of the images of (seed, epoch), their
augmentation of (seed, epoch, image), dropout and mixup of (seed, step, process), the learning rate of the step. A
checkpoint therefore holds the weights, their average, the optimiser's state and a few counters, and a run that is
killed and started again ends with the same bits as one that was not (on a CPU, with as many threads and processes).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitscope.analyses.base import Figure
from vitscope.analyses.interrupt import Interrupted, deferred_signals
from vitscope.analyses.one_pass import evaluating
from vitscope.analyses.ranks import Ranks
from vitscope.data import Skipped, steps_per_epoch
from vitscope.errors import DataError, NumericalError
from vitscope.runs import Run, atomic_write
from vitscope.training.augment import EpochAugmentation
from vitscope.training.checkpoint import BEST, LAST, load_checkpoint, newest_checkpoint, save_checkpoint
from vitscope.training.distillation import open_teacher
from vitscope.training.losses import Objective, prediction
from vitscope.training.memory import Pictures
from vitscope.training.mixing import Mixing, answers
from vitscope.training.options import TrainOptions, free_keys
from vitscope.training.picture_augment import picture_augmentation
from vitscope.training.probes import Probes, gather
from vitscope.training.processes import accelerated, preserved_randomness, seed_step
from vitscope.training.setup import (
    Average,
    TrainData,
    build_average,
    build_model,
    build_optimizer,
    build_schedule,
    describe_model,
    open_data,
    resolved,
)

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch.optim import Optimizer

    from vitscope.models import Model

KIND = "train"


@dataclass
class Progress:
    """How far a training got. With the weights and the optimiser's state this is all that a resume needs."""

    epoch: int = 0  # complete epochs
    step: int = 0  # complete steps of the next one
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])  # its loss, right answers, images so far
    history: list[dict[str, float]] = field(default_factory=list)  # rows of tables/training.csv
    best_accuracy: float = -1.0  # on held-out images
    best_epoch: int = 0
    skipped: list[list[Any]] = field(default_factory=list)  # (image, path, reason) of what could not be read
    seconds: float = 0.0  # over all attempts
    processes: int = 1
    threads: int = 1


def train(options: TrainOptions, *, command: str | Sequence[str] | None = None) -> Run:
    """Train a ViT. The same call again resumes a killed run exactly, and returns a finished one at once.

    Under `torchrun` all processes share each batch. After Ctrl-C the state is saved and `Interrupted` is raised.
    """
    with accelerated(options.device, options.mixed_precision) as accelerator:
        device = accelerator.device
        ranks = Ranks.join()
        with preserved_randomness(device):
            data = open_data(options, ranks.world)
            model = build_model(options, data.train)
            model.module.to(getattr(torch, options.dtype))
            config = resolved(options, data, model, device.type)
            optimizer = build_optimizer(options, model.module)
            probes = Probes(options, model.to(device), ranks)
            run, unfinished = _open_run(options, config, model, ranks, command)
            try:
                if unfinished:
                    _train(options, run, data, model, optimizer, probes, accelerator, ranks)
            finally:
                run.close()
    return run


def _train(
    options: TrainOptions,
    run: Run,
    data: TrainData,
    model: Model,
    optimizer: Optimizer,
    probes: Probes,
    accelerator: Accelerator,
    ranks: Ranks,
) -> None:
    device, world, dtype = accelerator.device, ranks.world, getattr(torch, options.dtype)
    steps = steps_per_epoch(len(data.train), options.batch_size)
    schedule = build_schedule(options, optimizer, steps)
    objective = Objective(options, open_teacher(options, model, device))
    mix = Mixing(options, model.num_classes)
    network, prepared = accelerator.prepare(model.module, optimizer)  # DDP where there are several processes
    # Model.module stays the bare network: it is saved, evaluated and probed; `network` shares its weights.
    average = build_average(options, model)  # of the weights; None without ema
    augmentation = picture_augmentation(options, model.preprocess)
    learned = Pictures(data.train, model.preprocess, options.workers, augment=augmentation, repeats=options.repeats)
    held_out = Pictures(data.test, model.preprocess, options.workers)
    progress = _resume(run, model, average, prepared, accelerator, ranks)
    black = (-torch.tensor(model.preprocess.mean) / torch.tensor(model.preprocess.std))[:, None, None]  # (C, 1, 1)
    started = time.monotonic()

    def write(name: str, state: dict[str, Any] | None = None) -> None:
        averaged = None if average is None else average.model.module.state_dict()
        ranks.first_decides(
            lambda: save_checkpoint(run.checkpoints_dir, name, model.module.state_dict(), state, averaged)
        )

    def save() -> None:
        """All processes come here together; the first one writes."""
        progress.skipped = sorted({tuple(s): s for part in gather(ranks, progress.skipped) for s in part}.values())
        now = {**asdict(progress), "seconds": progress.seconds + time.monotonic() - started}
        write(LAST, {"progress": now, "optimizer": prepared.state_dict(), "scaler": _scaler(accelerator)})

    if progress.epoch == progress.step == 0 and probes.due(0):
        probes.measure(0, run)
    with deferred_signals() as stop, _bar(options, run, progress, steps, ranks) as bar:
        for epoch in range(progress.epoch, options.epochs):
            network.train()
            augment = EpochAugmentation(options.augment, len(data.train), black, options.seed, epoch)
            here = {"rank": ranks.rank, "world": world, "start": progress.step}
            for batch in learned.epoch(options.batch_size // world, seed=options.seed, epoch=epoch, **here):
                step = epoch * steps + progress.step
                schedule.step_update(step)
                seed_step(options.seed, step, ranks.rank)
                images = augment(batch.images, batch.indices).to(device, dtype)  # (B, C, H, W)
                images, targets = mix(images, batch.labels.to(device))  # targets (B,), or (B, classes) where mixed

                outputs = network(images)  # (B, classes); of both heads where a distilled model has a teacher
                loss = objective(outputs, targets, images)  # summed over the images
                right = (prediction(outputs) == answers(targets)).sum()
                loss_sum, right_sum, n, stops = _over_processes(accelerator, loss, right, len(images), int(stop.made))
                if not loss_sum < float("inf"):
                    raise NumericalError(_diverged(options, run, progress, loss_sum / n, step, steps))
                # DDP averages over processes; the mean over all images is wanted, also where a process has fewer
                accelerator.backward(loss * (world / n))
                if options.clip_grad is not None:
                    accelerator.clip_grad_norm_(network.parameters(), options.clip_grad)
                prepared.step()
                prepared.zero_grad()
                if average is not None:
                    average.update(model.module)

                progress.step += 1
                progress.sums = [a + b for a, b in zip(progress.sums, (loss_sum, right_sum, n))]
                progress.skipped += [[s.index, s.path, s.reason] for s in batch.skipped]
                bar.update()
                bar.set_postfix_str(_postfix(progress), refresh=False)
                if stops or (options.checkpoint_steps and (step + 1) % options.checkpoint_steps == 0):
                    save()
                if stops:
                    raise Interrupted(_stopped(run, progress, steps))

            train_loss, train_accuracy = progress.sums[0] / progress.sums[2], progress.sums[1] / progress.sums[2]
            test_loss, test_accuracy = evaluate(options, model, held_out, accelerator, ranks, progress.skipped)
            row = {
                "epoch": epoch + 1,
                "lr": optimizer.param_groups[0]["lr"],  # of the last step
                "train_loss": train_loss,
                "train_accuracy": train_accuracy,
                "test_loss": test_loss,
                "test_accuracy": test_accuracy,
            }
            if average is not None:
                averaged = evaluate(options, average.model, held_out, accelerator, ranks, progress.skipped)
                row["ema_test_loss"], row["ema_test_accuracy"] = averaged
            progress.history.append(row)
            progress.epoch, progress.step, progress.sums = epoch + 1, 0, [0.0, 0.0, 0.0]

            # Tables and `best` come before `last`: a kill in between repeats this epoch and writes the same again.
            if probes.due(epoch + 1):
                probes.measure(epoch + 1, run)
            if test_accuracy > progress.best_accuracy:
                progress.best_accuracy, progress.best_epoch = test_accuracy, epoch + 1
                write(BEST)
            ranks.first_decides(lambda: _write_history(run, progress))
            save()
    progress.seconds += time.monotonic() - started
    ranks.first_decides(lambda: _finish(run, data, progress))


def evaluate(
    options: TrainOptions,
    model: Model,
    pictures: Pictures,
    accelerator: Accelerator,
    ranks: Ranks,
    skipped: list[list[Any]],
) -> tuple[float, float]:
    """Mean cross-entropy (nats) and accuracy in evaluation mode, without gradients; each image counts once."""
    loss_sum, right, n, dtype = 0.0, 0, 0, getattr(torch, options.dtype)
    with evaluating(model.module), torch.no_grad():
        for batch in pictures.once(options.look_size, rank=ranks.rank, world=ranks.world):
            skipped += [[s.index, s.path, s.reason] for s in batch.skipped]
            if len(batch) == 0:
                continue
            logits = model(batch.images.to(accelerator.device, dtype)).cpu().double()  # (B, classes)
            loss_sum += float(F.cross_entropy(logits, batch.labels, reduction="sum"))
            right += int((logits.argmax(1) == batch.labels).sum())
            n += len(batch)
    loss_sum, right_sum, images = _over_processes(accelerator, loss_sum, right, n)
    if images == 0:
        raise DataError(
            f"None of the {len(pictures.data):,} held-out images can be read, e.g. {skipped[-1][1]}: {skipped[-1][2]}"
        )
    if not loss_sum < float("inf"):
        raise NumericalError(
            f"The loss on held-out images is {loss_sum}: the weights have become useless in this epoch. "
            "The last good checkpoint is kept; try a smaller lr or a longer warm-up."
        )
    return loss_sum / images, right_sum / images


def _over_processes(accelerator: Accelerator, *numbers: Tensor | float) -> list[float]:
    """The sum of each number over all processes, in float64 where the device has it."""
    wide = torch.float32 if accelerator.device.type == "mps" else torch.float64
    mine = torch.stack([torch.as_tensor(x, device=accelerator.device).detach().to(wide) for x in numbers])
    return accelerator.reduce(mine, reduction="sum").tolist()


def _open_run(
    options: TrainOptions, config: dict[str, Any], model: Model, ranks: Ranks, command: str | Sequence[str] | None
) -> tuple[Run, bool]:
    """The run folder, made or re-opened by the first process alone -> (run, is there anything left to do?)"""
    out, opened = Path(options.out), []

    def begin() -> bool:
        run = Run.create(out, config, kind=KIND, overwrite=options.overwrite, command=command, free=free_keys())
        opened.append(run)
        atomic_write(run.path / "model.json", json.dumps(describe_model(options, model), indent=2) + "\n")
        return run.status != "finished"

    unfinished = ranks.first_decides(begin)
    return (opened[0] if opened else Run.create(out, config, kind=KIND, lock=False)), unfinished


def _resume(
    run: Run, model: Model, average: Average | None, optimizer: Any, accelerator: Accelerator, ranks: Ranks
) -> Progress:
    """Put the newest good checkpoint into the model, its average and the optimiser."""
    now = Progress(processes=ranks.world, threads=torch.get_num_threads())

    def find() -> Path | None:
        path, remarks = newest_checkpoint(run.checkpoints_dir)
        for remark in remarks:
            run.log_warning(remark)
        return path

    path = ranks.first_decides(find)
    if path is None:
        return now
    checkpoint = load_checkpoint(path)
    model.module.load_state_dict(checkpoint.weights)
    if average is not None:
        average.model.module.load_state_dict(checkpoint.average)
    optimizer.load_state_dict(checkpoint.state["optimizer"])
    if accelerator.scaler is not None and checkpoint.state["scaler"] is not None:
        accelerator.scaler.load_state_dict(checkpoint.state["scaler"])
    before = Progress(**checkpoint.state["progress"])
    if ranks.first and (before.processes, before.threads) != (now.processes, now.threads):
        run.log_warning(
            f"Begun with {before.processes} process(es) of {before.threads} thread(s), resumed with {now.processes} of "
            f"{now.threads}: sums are taken in another order, so the last digits differ from an undisturbed run."
        )
    before.processes, before.threads = now.processes, now.threads
    return before


def _scaler(accelerator: Accelerator) -> dict[str, Any] | None:
    """The state of fp16's loss scaling; the other precisions need none."""
    return accelerator.scaler.state_dict() if accelerator.scaler is not None else None


def _write_history(run: Run, progress: Progress) -> None:
    import pandas as pd

    table = pd.DataFrame(progress.history)
    run.write_table("training", table.astype({"epoch": int}))


def _finish(run: Run, data: TrainData, progress: Progress) -> None:
    _write_history(run, progress)
    n = len(data.test) - sum(path in set(data.test.paths) for _, path, _ in progress.skipped)
    last = progress.history[-1]
    held_out = f"held-out images, {data.test.name} ({data.test.split})"
    chosen = f"{held_out}, after epoch {progress.best_epoch}, which was chosen on these images"
    run.write_summary(
        {
            "train.test_accuracy": Figure(100 * last["test_accuracy"], "%", n, f"{held_out}, after the last epoch"),
            "train.best_accuracy": Figure(100 * progress.best_accuracy, "%", n, chosen),
        }
    )
    if progress.skipped:
        run.write_skipped(Skipped(*entry) for entry in progress.skipped)
        run.log_warning(f"{len(progress.skipped):,} images could not be read and were left out: table 'skipped'.")
    timing = {"seconds": round(progress.seconds, 3), "epochs": progress.epoch}
    run.write_timing({"train": {**timing, "processes": progress.processes, "threads": progress.threads}})
    run.finish()


def _bar(options: TrainOptions, run: Run, progress: Progress, steps: int, ranks: Ranks) -> Any:
    from tqdm import tqdm

    return tqdm(
        total=options.epochs * steps,
        initial=progress.epoch * steps + progress.step,
        desc=run.label,
        unit="step",
        mininterval=0.5,
        dynamic_ncols=True,
        disable=not (options.progress and ranks.first),
    )


def _postfix(progress: Progress) -> str:
    held_out = f", held-out {progress.history[-1]['test_accuracy']:.1%}" if progress.history else ""
    return f"epoch {progress.epoch + 1}, loss {progress.sums[0] / progress.sums[2]:.3f}{held_out}"


def _saved(progress: Progress) -> str:
    return f"{progress.epoch} epoch(s)" + (f" and {progress.step} step(s)" if progress.step else "")


def _stopped(run: Run, progress: Progress, steps: int) -> str:
    return (
        f"Stopped after {_saved(progress)} of {steps} steps. Everything is saved in {run.path}; the same command again "
        "goes on from there."
    )


def _diverged(options: TrainOptions, run: Run, progress: Progress, loss: float, step: int, steps: int) -> str:
    kept = run.checkpoints_dir / LAST
    where = f"The last good checkpoint is kept in {kept}." if kept.is_dir() else "There is no checkpoint yet."
    return (
        f"The loss is {loss} at step {step} (step {progress.step} of {steps} in epoch {progress.epoch + 1}). {where} "
        f"Try a smaller lr (now {options.lr:g}), a longer warm-up (now {options.warmup_epochs:g} epochs), "
        "clip_grad=1, or mixed_precision='no', in a new folder (--out) or with --overwrite."
    )
