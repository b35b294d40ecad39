"""The losses of the latest steps, left where they were computed until somebody has to know them.

To read one number from a GPU is to wait for all that it was told to do; to add numbers of several processes is to wait
for the slowest of them. So a training looks at its losses every few steps and not at every one, and learns with the
same look whether another process was asked to stop.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from vitscope.processes import Processes
from vitscope.training.probes import gather

STEPS = 10  # between two looks, at most
SECONDS = 1.0  # between two looks, about: who asks a training of slow steps to stop does not wait for ten of them


class Watch:
    """`note` every step, `look` when it is `due`. All processes look at the same steps."""

    def __init__(self, device: torch.device, processes: Processes) -> None:
        self.processes = processes
        # one process on a CPU has nothing to wait for and nobody to ask: it looks at every step
        self.longest = 1 if device.type == "cpu" and processes.world == 1 else STEPS
        self.gap = 1  # steps until the next look
        self._steps: list[tuple[Tensor, int | Tensor]] = []  # since the last look: (2 + k,) on the device, answers
        self.wide = torch.float32 if device.type == "mps" else torch.float64  # counts of pixels need the room
        self._looked = time.monotonic()

    def note(self, pieces: Sequence[tuple[Tensor, Tensor]], counted: int | Tensor) -> None:
        """Loss and right answers of each piece of a step, summed, and how many were compared; nothing is read.

        Right answers: a number, or (1 + k,) with what else the task adds up.
        """
        rows = [torch.cat([part.reshape(-1).to(self.wide) for part in piece]) for piece in pieces]
        self._steps.append((torch.stack(rows).sum(0), counted))

    def due(self, stop: bool) -> bool:
        """Is it time? One process alone stops as soon as it is asked to; several have to agree on the step."""
        return len(self._steps) >= self.gap or (stop and self.processes.world == 1)

    def look(self, stop: bool) -> tuple[list[list[float]], bool]:
        """(loss, right, all answers, *more) of each step since the last look, over all processes; is anyone to stop?

        All processes call it together. The sums of a step are taken in the order of the processes, in float64.
        """
        values = torch.stack([row for row, _ in self._steps]).tolist()  # (steps, 2 + k): here the host waits
        mine = [(*value[:2], int(counted), *value[2:]) for value, (_, counted) in zip(values, self._steps)]
        everyone = gather(self.processes, (mine, stop, time.monotonic() - self._looked))
        steps = [[sum(column) for column in zip(*rows)] for rows in zip(*(rows for rows, _, _ in everyone))]
        slowest = max(seconds for _, _, seconds in everyone)
        self.gap = max(1, min(self.longest, int(SECONDS * len(mine) / max(slowest, 1e-9))))
        self._steps, self._looked = [], time.monotonic()
        return steps, any(asked for _, asked, _ in everyone)
