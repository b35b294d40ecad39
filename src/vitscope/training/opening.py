"""The run folder of a training: made, or found again with what it holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from vitscope.data.mask_decoding import doubtful_masks
from vitscope.models import Model
from vitscope.models.own_tokenizer import FILE, tokenizer_json
from vitscope.processes import Processes
from vitscope.runs import Run, atomic_write
from vitscope.training.checkpoint import load_checkpoint, newest_checkpoint
from vitscope.training.network import Replicated
from vitscope.training.options import FREE, TrainOptions
from vitscope.training.probes import Probes
from vitscope.training.records import Progress
from vitscope.training.setup import Average, TrainData, describe_model, what_is_lost, what_pieces_change

KIND = "train"


def open_run(
    options: TrainOptions,
    config: dict[str, Any],
    model: Model,
    data: TrainData,
    probes: Probes,
    processes: Processes,
    command: str | Sequence[str] | None,
) -> tuple[Run, bool]:
    """The run folder, made or re-opened by the first process alone -> (run, is there anything left to do?)"""
    out, opened = Path(options.out), []

    def begin() -> bool:
        run = Run.create(out, config, kind=KIND, overwrite=options.overwrite, command=command, free=FREE)
        opened.append(run)
        atomic_write(run.path / "model.json", json.dumps(describe_model(options, model), indent=2) + "\n")
        if model.row.text:
            atomic_write(run.path / FILE, tokenizer_json(model.preprocess))
        if run.status == "finished":
            return False
        fitted = [f"The weights of {options.weights} were fitted: {c}." for c in model.source.get("fitted", [])]
        masks = [doubtful_masks(d, decoding=options.mask_decoding) for d in probes.data.values() if d.has_masks]
        lost = what_is_lost(model, data.train)
        pieces = what_pieces_change(model.module, options.accumulate * processes.world)
        for remark in [*model.notes, *fitted, *data.train.warnings, *data.test.warnings, *masks, lost, pieces]:
            if remark:
                run.log_warning(remark)
        return True

    unfinished = processes.first_decides(begin)
    return (opened[0] if opened else Run.create(out, config, kind=KIND, lock=False)), unfinished


def resume(
    options: TrainOptions,
    run: Run,
    network: Replicated,
    average: Average | None,
    accelerator: Accelerator,
    processes: Processes,
) -> Progress:
    """Put the newest good checkpoint into the network, its average and the optimiser."""
    now = Progress(processes=processes.world, threads=torch.get_num_threads(), accumulate=options.accumulate)

    def find() -> Path | None:
        path, remarks = newest_checkpoint(run.checkpoints_dir)
        for remark in remarks:
            run.log_warning(remark)
        return path

    path = processes.first_decides(find)
    if path is None:
        return now
    checkpoint = load_checkpoint(path)
    network.load(checkpoint.weights, checkpoint.state["optimizer"])
    if average is not None:
        average.model.module.load_state_dict(checkpoint.average)
    if accelerator.scaler is not None and checkpoint.state["scaler"] is not None:
        accelerator.scaler.load_state_dict(checkpoint.state["scaler"])
    before = Progress(**_renamed(checkpoint.state["progress"]))
    if processes.first and before.manner != now.manner:
        run.log_warning(
            f"Begun with {before.manner}, resumed with {now.manner}: sums are taken in another order, so the last "
            "digits differ from an undisturbed run, and dropout is drawn otherwise."
        )
    before.processes, before.threads, before.accumulate = now.processes, now.threads, now.accumulate
    return before


def _renamed(progress: dict[str, Any]) -> dict[str, Any]:
    """As a checkpoint of 0.1 has it, under today's names."""
    known = dict(progress)
    if "best_accuracy" in known:
        best = known.pop("best_accuracy")
        known["best"] = None if best < 0 else best
    return known
