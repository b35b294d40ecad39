"""One run of a sweep, as it is carried out in a process of its own, here or on a node of a cluster."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitscope.runs import lock_holder
from vitscope.training.options import TrainOptions

PATIENCE = 1.0  # seconds between two looks at a folder that another process is writing


class Resumable:
    """A job that goes on from its last saved state."""

    def __call__(self) -> Any:
        raise NotImplementedError

    def checkpoint(self) -> Any:
        """SLURM's time is up: submitit hands in the same job again."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


@dataclass(frozen=True)
class Job(Resumable):
    """Train and draw the report, exactly as `vitscope train` does. Submitit pickles it by reference."""

    options: TrainOptions
    threads: int
    command: Sequence[str] | None  # that started the sweep, for environment.json

    def __call__(self) -> str:
        import torch

        from vitscope.report import build_report
        from vitscope.training import train

        torch.set_num_threads(self.threads)
        # A sweep that was killed leaves its running jobs behind: whoever comes second waits, and finds the run done.
        while Path(self.options.out).is_dir() and lock_holder(Path(self.options.out)):
            time.sleep(PATIENCE)
        run = train(self.options, command=self.command)
        build_report(run)
        return str(run.path)
