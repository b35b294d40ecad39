"""The learning rate: timm's schedules, as a function of the step and, for 'plateau', of the accuracies so far.

There is no state to save. A schedule that waits for the held-out accuracy is played again from the accuracies that the
run has written down, and the noise of an epoch is drawn from (seed, epoch): a resumed run has the rates of a straight
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from vitscope.training.options import TrainOptions


def rate_noise(seed: int, epoch: int, limit: float, deviation: float = 1.0) -> float:
    """Relative noise of an epoch's rate: normal, drawn again while it is `limit` or more.

    With deviation 1 these are timm's draws. timm takes an `lr_noise_std`, too, and does not look at it.
    """
    generator = torch.Generator().manual_seed(seed + epoch)
    while True:
        noise = deviation * torch.randn(1, generator=generator).item()
        if abs(noise) < limit:
            return noise


class Schedule:
    """`schedule.set(step, accuracies)` puts the rate of a step into the optimiser.

    rate_set: 'step' follows the curve step by step; 'epoch' keeps the rate that the curve has when an epoch begins;
    'late' keeps the one that it had an epoch before, because DeiT's program moves the curve to the epoch that has just
    ended: its first two epochs have the rate of the first.
    """

    def __init__(self, options: TrainOptions, optimizer: Optimizer, steps: int) -> None:
        self.options, self.optimizer, self.steps = options, optimizer, steps
        self.waits = options.schedule == "plateau"
        self.each_step = options.rate_set == "step" and not self.waits
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])  # as timm marks them
        self._curve = self._new()
        self._set_for: tuple[int, int] | None = None  # (epoch, accuracies) that the rate stands for

    def set(self, step: int, accuracies: Sequence[float] = ()) -> None:
        """The rate of `step`, counted from the beginning of the run; one held-out accuracy for each epoch before it."""
        epoch = step // self.steps
        if self.each_step:
            self._curve.step_update(step)
        elif (epoch, len(accuracies)) != self._set_for:
            self._of_epoch(epoch, accuracies)
            self._set_for = (epoch, len(accuracies))
        rates = [float(group["lr"]) for group in self._curve.optimizer.param_groups]
        factor = 1 + self._noise(epoch)
        for group, rate in zip(self.optimizer.param_groups, rates):
            group["lr"] = rate * factor

    def _of_epoch(self, epoch: int, accuracies: Sequence[float]) -> None:
        if self.waits:
            self._curve = self._new()
            for t, accuracy in enumerate(accuracies[:epoch], start=1):
                self._curve.step(t, accuracy)
        elif self.options.rate_set == "epoch" or epoch:
            self._curve.step(epoch if self.options.rate_set == "epoch" else epoch - 1)

    def _noise(self, epoch: int) -> float:
        o = self.options
        t = epoch - 1 if o.rate_set == "late" else epoch
        bounds = [share * o.epochs for share in o.lr_noise]
        if not bounds or t < bounds[0] or (len(bounds) == 2 and t >= bounds[1]):
            return 0.0
        if self.waits and t <= o.warmup_epochs:  # as timm: a warm-up before a plateau is quiet
            return 0.0
        return rate_noise(o.seed, t, o.lr_noise_pct, o.lr_noise_std)

    def _new(self) -> Any:
        """timm's curve, on an optimiser that is nothing but rates: the real one may be filled from a checkpoint."""
        from timm.scheduler import create_scheduler_v2

        o, constant = self.options, self.options.schedule == "constant"
        groups = [
            {"params": [torch.zeros(1)], **{key: group[key] for key in ("initial_lr", "lr_scale") if key in group}}
            for group in self.optimizer.param_groups
        ]
        for group in groups:
            group["lr"] = group["initial_lr"]
        curve, _ = create_scheduler_v2(
            torch.optim.SGD(groups, lr=o.peak_lr),
            sched="cosine" if constant else o.schedule,
            num_epochs=o.epochs,
            warmup_epochs=o.warmup_steps / self.steps if o.warmup_steps else o.warmup_epochs,  # type: ignore[arg-type]  # fractions are fine
            warmup_lr=o.warmup_lr,
            min_lr=o.peak_lr if constant else o.min_lr,
            decay_epochs=o.decay_epochs,  # type: ignore[arg-type]
            decay_rate=o.poly_power if o.schedule == "poly" else o.decay_rate,  # timm's name for both
            patience_epochs=o.patience_epochs,
            step_on_epochs=not self.each_step,
            updates_per_epoch=self.steps,
        )
        return curve
