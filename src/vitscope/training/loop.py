"""The training loop. There is one, it is this file, and it reads from top to bottom.

Everything random is a function of numbers that are known beforehand: the order of the images of (seed, epoch), their
augmentation of (seed, epoch, image), dropout and mixup of (seed, step, process), the learning rate of the step (and of
the accuracies written down before it, where its schedule waits for them). A checkpoint therefore holds the weights,
their average, the optimiser's state and a few counters, and a run that is killed and started again ends with the same
bits as one that was not (on a CPU, with as many threads and processes).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vitscope.data import steps_per_epoch
from vitscope.data.mask_decoding import doubtful_masks
from vitscope.errors import NumericalError
from vitscope.interrupt import Interrupted, deferred_signals
from vitscope.processes import Ranks
from vitscope.runs import Run, atomic_write
from vitscope.training.augment import EpochAugmentation
from vitscope.training.checkpoint import BEST, LAST, load_checkpoint, newest_checkpoint, save_checkpoint
from vitscope.training.diagnosis import first_bad_tensor
from vitscope.training.distillation import open_teacher
from vitscope.training.evaluation import evaluate, evaluate_only, over_processes
from vitscope.training.losses import Objective, prediction
from vitscope.training.memory import Pictures, open_pictures
from vitscope.training.mixing import Mixing, answers
from vitscope.training.network import Replicated, build_network
from vitscope.training.options import TrainOptions, free_keys
from vitscope.training.probes import Probes, gather
from vitscope.training.processes import accelerated, preserved_randomness, seed_step
from vitscope.training.records import Progress, diverged, finish_run, postfix, progress_bar, stopped, write_history
from vitscope.training.schedule import Schedule
from vitscope.training.setup import (
    Average,
    TrainData,
    build_average,
    build_model,
    describe_model,
    open_data,
    resolved,
    what_is_lost,
)
from vitscope.training.tracking import Tracking, check_trackers

if TYPE_CHECKING:
    from accelerate import Accelerator

    from vitscope.models import Model

KIND = "train"


def train(options: TrainOptions, *, command: str | Sequence[str] | None = None) -> Run:
    """Train a ViT. The same call again resumes a killed run exactly, and returns a finished one at once.

    Under `torchrun` all processes share each batch. After Ctrl-C the state is saved and `Interrupted` is raised.
    """
    check_trackers(options.track)
    with accelerated(options.device, options.mixed_precision) as accelerator:
        device = accelerator.device
        ranks = Ranks.join()
        with preserved_randomness(device):
            data = open_data(options, ranks.world)
            model = build_model(options, data.train)
            model.module.to(getattr(torch, options.dtype))
            config = resolved(options, data, model, device.type)
            probes = Probes(options, model.to(device), ranks)
            objective = Objective(options, open_teacher(options, model, device))
            network = build_network(options, model, accelerator)
            pictures = open_pictures(options, data, model)
            run, unfinished = _open_run(options, config, model, data, probes, ranks, command)
            try:
                if unfinished and options.evaluate:
                    evaluate_only(options, run, data, model, accelerator, ranks)
                elif unfinished:
                    _train(options, run, data, pictures, network, objective, probes, accelerator, ranks)
            finally:
                run.close()
    return run


def _train(
    options: TrainOptions,
    run: Run,
    data: TrainData,
    pictures: tuple[Pictures, Pictures],
    network: Replicated,
    objective: Objective,
    probes: Probes,
    accelerator: Accelerator,
    ranks: Ranks,
) -> None:
    device, world, dtype = accelerator.device, ranks.world, getattr(torch, options.dtype)
    model, optimizer, (learned, held_out) = network.model, network.optimizer, pictures
    steps = steps_per_epoch(len(data.train), options.batch_size)
    schedule = Schedule(options, network.plain, steps)
    mix = Mixing(options, model.num_classes)
    average = build_average(options, model)  # of the weights; None without ema
    progress = _resume(run, network, average, accelerator, ranks)
    black = (-torch.tensor(model.preprocess.mean) / torch.tensor(model.preprocess.std))[:, None, None]  # (C, 1, 1)
    tracking = Tracking(options, accelerator, run)
    ranks.first_decides(tracking.start)
    started = time.monotonic()

    def write(name: str, state: dict[str, Any] | None = None) -> None:
        averaged = None if average is None else average.model.module.state_dict()

        def put() -> None:
            run.check_writable()  # a deleted folder would be made again, with half of what belongs there
            save_checkpoint(run.checkpoints_dir, name, model.module.state_dict(), state, averaged)

        ranks.first_decides(put)

    def save() -> None:
        """All processes come here together; the first one writes."""
        progress.skipped = sorted({tuple(s): s for part in gather(ranks, progress.skipped) for s in part}.values())
        now = {**asdict(progress), "seconds": progress.seconds + time.monotonic() - started}
        network.collect()
        write(LAST, {"progress": now, "optimizer": network.optimizer_state(), "scaler": _scaler(accelerator)})

    if progress.epoch == progress.step == 0 and probes.due(0):
        probes.measure(0, run)
    with deferred_signals() as stop, progress_bar(options, run, progress, steps, ranks) as bar:
        for epoch in range(progress.epoch, options.epochs):
            network.module.train()
            augment = EpochAugmentation(options.augment, len(data.train), black, options.seed, epoch)
            here = {"rank": ranks.rank, "world": world, "start": progress.step}
            for batch in learned.epoch(options.batch_size // world, seed=options.seed, epoch=epoch, **here):
                step = epoch * steps + progress.step
                schedule.set(step, [row["test_accuracy"] for row in progress.history])
                seed_step(options.seed, step, ranks.rank)
                images = augment(batch.images, batch.indices).to(device, dtype)  # (B, C, H, W)
                images, targets = mix(images, batch.labels.to(device))  # targets (B,), or (B, classes) where mixed

                outputs = network.module(images)  # (B, classes); of both heads where a distilled model has a teacher
                loss = objective(outputs, targets, images)  # summed over the images
                right = (prediction(outputs) == answers(targets)).sum()
                loss_sum, right_sum, n, stops = over_processes(accelerator, loss, right, len(images), int(stop.made))
                if not loss_sum < float("inf"):
                    network.collect()
                    seed_step(options.seed, step, ranks.rank)  # dropout falls as it did
                    bad = next(filter(None, gather(ranks, first_bad_tensor(model.module, images))), "the loss itself")
                    raise NumericalError(diverged(options, run, progress, loss_sum / n, step, steps, bad))
                # DDP averages over processes; the mean over all images is wanted, also where a process has fewer
                accelerator.backward(loss * (world / n))
                if options.clip_grad is not None:
                    accelerator.clip_grad_norm_(network.module.parameters(), options.clip_grad)
                optimizer.step()
                optimizer.zero_grad()
                if average is not None:
                    average.update(model.module)

                progress.step += 1
                progress.sums = [a + b for a, b in zip(progress.sums, (loss_sum, right_sum, n))]
                progress.skipped += [[s.index, s.path, s.reason] for s in batch.skipped]
                bar.update()
                bar.set_postfix_str(postfix(progress), refresh=False)
                if stops or (options.checkpoint_steps and (step + 1) % options.checkpoint_steps == 0):
                    save()
                if stops:
                    raise Interrupted(stopped(run, progress, steps))

            train_loss, train_accuracy = progress.sums[0] / progress.sums[2], progress.sums[1] / progress.sums[2]
            network.collect()
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
            ranks.first_decides(lambda: write_history(run, progress))
            save()
            tracking.log(row, epoch + 1)
    tracking.close()
    progress.seconds += time.monotonic() - started
    ranks.first_decides(lambda: finish_run(run, data, progress))


def _open_run(
    options: TrainOptions,
    config: dict[str, Any],
    model: Model,
    data: TrainData,
    probes: Probes,
    ranks: Ranks,
    command: str | Sequence[str] | None,
) -> tuple[Run, bool]:
    """The run folder, made or re-opened by the first process alone -> (run, is there anything left to do?)"""
    out, opened = Path(options.out), []

    def begin() -> bool:
        run = Run.create(out, config, kind=KIND, overwrite=options.overwrite, command=command, free=free_keys())
        opened.append(run)
        atomic_write(run.path / "model.json", json.dumps(describe_model(options, model), indent=2) + "\n")
        if run.status == "finished":
            return False
        fitted = [f"The weights of {options.weights} were fitted: {c}." for c in model.source.get("fitted", [])]
        masks = [doubtful_masks(d, decoding=options.mask_decoding) for d in probes.data.values() if d.has_masks]
        for remark in [
            *model.notes,
            *fitted,
            *data.train.warnings,
            *data.test.warnings,
            *masks,
            what_is_lost(model, data.train),
        ]:
            if remark:
                run.log_warning(remark)
        return True

    unfinished = ranks.first_decides(begin)
    return (opened[0] if opened else Run.create(out, config, kind=KIND, lock=False)), unfinished


def _resume(run: Run, network: Replicated, average: Average | None, accelerator: Accelerator, ranks: Ranks) -> Progress:
    """Put the newest good checkpoint into the network, its average and the optimiser."""
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
    network.load(checkpoint.weights, checkpoint.state["optimizer"])
    if average is not None:
        average.model.module.load_state_dict(checkpoint.average)
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
