"""Carry out the runs of a sweep through submitit: processes on this machine, or jobs of a SLURM cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitscope.errors import VitscopeError
from vitscope.runs import Run
from vitscope.sweeps.job import Job
from vitscope.sweeps.plan import PlannedRun

LOOK = {"local": 0.2, "slurm": 2.0}  # seconds between two looks at the jobs
LOCAL_MINUTES = 10 * 365 * 24 * 60  # submitit wants a limit; on this machine there is none
GRACE, MISSING = 30.0, "_vitscope_missing_since"  # seconds that a job may be in neither the queue nor done
SLURM_MINUTES = 24 * 60  # `--slurm time=MINUTES` changes it; at its end a job is handed in again and goes on


@dataclass(frozen=True)
class Failure:
    """A run that did not finish: the last line of its log, and where the log is."""

    reason: str
    log: Path


def finished(planned: PlannedRun) -> bool:
    return (planned.path / "run.json").exists() and Run.open(planned.path).status == "finished"


def choose_cluster(cluster: str) -> str:
    """'auto' is SLURM where one answers, else this machine."""
    if cluster == "slurm" and shutil.which("sbatch") is None:
        raise VitscopeError("There is no SLURM here (no command sbatch): use --cluster local.")
    if cluster == "auto":
        return "slurm" if _slurm_answers() else "local"
    return cluster


def _slurm_answers() -> bool:
    """Its commands may be installed where no cluster runs."""
    if shutil.which("sbatch") is None or shutil.which("sinfo") is None:
        return False
    try:
        answer = subprocess.run(["sinfo", "--noheader"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0 and bool(answer.stdout.strip())


def divided_threads(workers: int) -> int:
    """Threads for each of so many processes on this machine."""
    return max(1, len(os.sched_getaffinity(0)) // workers)


def carry_out(
    plan: Sequence[PlannedRun],
    logs: Path,
    *,
    cluster: str,
    workers: int,
    threads: int,
    slurm: Mapping[str, Any],
    command: Sequence[str] | None,
    on_done: Callable[[PlannedRun, Failure | None], None],
) -> dict[str, Failure]:
    """Run what is not finished, at most `workers` at a time; {name: failure} of those that failed."""
    pending = [planned for planned in plan if not finished(planned)]
    if not pending:
        return {}
    executor = _executor(logs, cluster, workers, threads, slurm)
    waiting = [(p, Job(p.options, threads, command)) for p in pending]
    running: list[tuple[PlannedRun, Any]] = []
    failures: dict[str, Failure] = {}
    try:
        if cluster == "slurm":  # one array: SLURM itself keeps to `workers`
            jobs = executor.submit_array([job for _, job in waiting])
            running, waiting = [(p, job) for (p, _), job in zip(waiting, jobs)], []
        while waiting or running:
            while waiting and len(running) < workers:
                planned, work = waiting.pop(0)
                running.append((planned, executor.submit(work)))
            queued = _queue() if cluster == "slurm" else None
            for planned, job in list(running):
                if _done(job, queued):
                    running.remove((planned, job))
                    failure = None if finished(planned) else _failure(job)
                    if failure is not None:
                        failures[planned.name] = failure
                    on_done(planned, failure)
            if running:
                time.sleep(LOOK[cluster])
    except KeyboardInterrupt:
        for _, job in running:  # each saves its state; a second start goes on from there
            job.cancel()
        raise
    return failures


def _executor(logs: Path, cluster: str, workers: int, threads: int, slurm: Mapping[str, Any]) -> Any:
    try:
        import submitit
    except ImportError as error:
        raise VitscopeError("A sweep needs submitit: pip install 'vitscope[sweep]'.") from error
    import torch

    if cluster == "local":
        executor = submitit.AutoExecutor(folder=logs, cluster="local")
        # submitit hides the GPUs that are not asked for
        executor.update_parameters(timeout_min=LOCAL_MINUTES, gpus_per_node=torch.cuda.device_count())
        return _Submission(executor)
    executor = submitit.AutoExecutor(folder=logs, cluster="slurm")
    settings: dict[str, Any] = {
        "name": "vitscope",
        "timeout_min": SLURM_MINUTES,
        "cpus_per_task": threads,
        "slurm_array_parallelism": workers,
    }
    try:
        executor.update_parameters(**settings, **{f"slurm_{name}": value for name, value in slurm.items()})
    except (NameError, ValueError) as error:
        raise VitscopeError(f"--slurm: {error}") from error
    return _Submission(executor)


@dataclass(frozen=True)
class _Submission:
    executor: Any

    def submit(self, job: Job) -> Any:
        return self.executor.submit(job)

    def submit_array(self, jobs: Sequence[Job]) -> list[Any]:
        with self.executor.batch():
            return [self.executor.submit(job) for job in jobs]


def _queue() -> set[str]:
    """Ids of the jobs that SLURM still knows as waiting or running. (sacct wants accounting, which not all have.)"""
    try:
        answer = subprocess.run(
            ["squeue", "--noheader", "--array", "--format=%A %F_%K"], capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return {"?"}
    return set(answer.stdout.split()) if answer.returncode == 0 else {"?"}


def _done(job: Any, queued: set[str] | None) -> bool:
    if queued is None:
        return bool(job.done())
    if job.paths.result_pickle.exists():
        return True
    if "?" in queued or job.job_id in queued:
        job.__dict__.pop(MISSING, None)
        return False
    # between sbatch and squeue, and between a job's end and its result on a shared disk, some time may pass
    return time.monotonic() - job.__dict__.setdefault(MISSING, time.monotonic()) > GRACE


def _failure(job: Any) -> Failure:
    log = Path(job.paths.stderr)
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    told = [line.strip() for line in lines if line.strip() and not line.startswith("submitit")]
    return Failure(told[-1] if told else "the process died without a word", log)
