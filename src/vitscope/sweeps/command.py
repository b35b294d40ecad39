"""One command of vitscope as a job of SLURM: on one node or several, with one process or many that share the run."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from vitscope.errors import VitscopeError
from vitscope.sweeps.execution import attend, check_submitit, choose_cluster, default_threads, failure_of, make_executor
from vitscope.sweeps.job import Resumable


@dataclass(frozen=True)
class CommandJob(Resumable):
    """`python -m vitscope WORDS` in the folder where it was typed. Submitit pickles it by reference."""

    words: tuple[str, ...]
    folder: str
    threads: int

    def __call__(self) -> int:
        """The exit code. Where SLURM starts several tasks they find each other as under torchrun."""
        os.chdir(self.folder)
        os.environ["OMP_NUM_THREADS"] = os.environ.get("SLURM_CPUS_PER_TASK") or str(self.threads)
        if int(os.environ.get("SLURM_NTASKS", "1")) > 1:
            from submitit.helpers import TorchDistributedEnvironment

            TorchDistributedEnvironment().export(overwrite=True)
        sys.argv = ["vitscope", *self.words]
        try:
            runpy.run_module("vitscope", run_name="__main__", alter_sys=True)
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        return 0


def run_on_slurm(words: Sequence[str], out: str | None, slurm: Mapping[str, Any]) -> str:
    """Hand in a command, wait for it, and return what it printed. Logs lie beside its run folder.

    slurm: parameters of submitit's SlurmExecutor, such as nodes=2 tasks_per_node=4 gpus_per_node=4.
    """
    choose_cluster("slurm")
    check_submitit("--cluster slurm")
    threads = default_threads("slurm", 1)
    place = Path(out) if out else Path("runs") / str(words[0])
    logs = (place.parent / f"{place.name}.slurm" / datetime.now().strftime("%Y%m%d-%H%M%S")).absolute()
    job = CommandJob(tuple(words), str(Path.cwd()), threads)
    said: list[str] = []

    def done(_: None, handed_in: Any) -> None:
        results = Path(handed_in.paths.result_pickle)
        if not results.exists() or any(handed_in.results()):  # one exit code per task
            failure = failure_of(handed_in)
            raise VitscopeError(f"The job failed: {failure.reason} (log: {failure.log})")
        lines = Path(handed_in.paths.stdout).read_text(errors="replace").splitlines()
        said.extend(line for line in lines if not line.startswith("submitit"))

    executor = make_executor(logs, "slurm", 1, threads, slurm)
    attend(executor, [(None, job)], cluster="slurm", workers=1, on_done=done, so_far=lambda: "the job is not finished")
    return "".join(f"{line}\n" for line in said)
