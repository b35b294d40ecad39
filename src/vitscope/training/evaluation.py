"""How well a model does on held-out images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitscope.analyses.base import Headline
from vitscope.analyses.chance import describe_chance, near_chance
from vitscope.analyses.one_pass import evaluating
from vitscope.errors import DataError, NumericalError
from vitscope.processes import Processes
from vitscope.runs import Run
from vitscope.training.options import TrainOptions
from vitscope.training.pictures import Pictures
from vitscope.training.probes import gather
from vitscope.training.records import note_skipped
from vitscope.training.setup import TrainData

if TYPE_CHECKING:
    from accelerate import Accelerator

    from vitscope.models import Model


def evaluate(
    options: TrainOptions,
    model: Model,
    pictures: Pictures,
    accelerator: Accelerator,
    processes: Processes,
    skipped: list[list[Any]],
) -> tuple[float, float]:
    """Mean cross-entropy (nats) and accuracy in evaluation mode, without gradients; each image counts once."""
    loss_sum, right, n, dtype = 0.0, 0, 0, getattr(torch, options.dtype)
    with evaluating(model.module), torch.no_grad():
        for batch in pictures.once(options.look_size, rank=processes.rank, world=processes.world):
            skipped += [[s.index, s.path, s.reason] for s in batch.skipped]
            if len(batch) == 0:
                continue
            logits = model(batch.images.to(accelerator.device, dtype)).cpu().double()  # (B, classes)
            loss_sum += float(F.cross_entropy(logits, batch.labels, reduction="sum"))
            right += int((logits.argmax(1) == batch.labels).sum())
            n += len(batch)
    loss_sum, right_sum, images = over_processes(accelerator, loss_sum, right, n)
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


def over_processes(accelerator: Accelerator, *numbers: Tensor | float) -> list[float]:
    """The sum of each number over all processes, in float64 where the device has it."""
    wide = torch.float32 if accelerator.device.type == "mps" else torch.float64
    mine = torch.stack([torch.as_tensor(x, device=accelerator.device).detach().to(wide) for x in numbers])
    return accelerator.reduce(mine, reduction="sum").tolist()


def evaluate_only(
    options: TrainOptions, run: Run, data: TrainData, model: Model, accelerator: Accelerator, processes: Processes
) -> None:
    """Judge the given weights on the held-out images; nothing is trained and no weights are written."""
    skipped: list[list[Any]] = []
    pictures = Pictures(data.test, model.preprocess, options.workers)
    loss, accuracy = evaluate(options, model, pictures, accelerator, processes, skipped)
    skipped = [entry for part in gather(processes, skipped) for entry in part]
    n = len(data.test) - len(skipped)

    def write() -> None:
        import pandas as pd

        row = {"split": data.test.split, "loss": loss, "accuracy": accuracy, "n": n}
        run.write_table("evaluation", pd.DataFrame([row]))
        held_out = f"{data.test.name} ({data.test.split}), weights {options.weights}, no training"
        run.write_summary(
            {
                "train.test_accuracy": Headline(100 * accuracy, "%", n, held_out),
                "train.test_loss": Headline(loss, "nats", n, held_out),
            }
        )
        note_skipped(run, skipped)
        right = round(accuracy * n)
        if near_chance(right, n, model.num_classes):
            run.log_warning(describe_chance(right, n, data.test.classes))
        run.finish()

    processes.first_decides(write)
