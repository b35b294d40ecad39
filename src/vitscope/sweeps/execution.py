"""Carry out work through submitit: processes on this machine, or jobs of a SLURM cluster. First the runs of a sweep."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from vitscope.errors import VitscopeError
from vitscope.interrupt import Interrupted, deferred_signals
from vitscope.runs import Run
from vitscope.sweeps.job import Job
from vitscope.sweeps.plan import PlannedRun

T = TypeVar("T")
LOOK = {"local": 0.2, "slurm": 2.0}  # seconds between two looks at the jobs
LOCAL_MINUTES = 10 * 365 * 24 * 60  # submitit wants a limit; on this machine there is none
GRACE, MISSING = 30.0, "_vitscope_missing_since"  # seconds that a job may be in neither the queue nor done
FAREWELL = 10.0  # seconds that a run on this machine has to save its state before it is ended without one
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


def check_submitit(who: str = "A sweep") -> None:
    """Said before a folder or a process is made."""
    if importlib.util.find_spec("submitit") is None:
        raise VitscopeError(f"{who} needs submitit: pip install 'vitscope[sweep]'.")


def default_threads(cluster: str, workers: int) -> int:
    """Threads of each run where nobody says how many: OMP_NUM_THREADS, which every process here obeys otherwise.

    Without it the cores of this machine divided between so many processes, and 1 on SLURM.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # OpenMP takes a list, one number per nesting
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    return max(1, len(os.sched_getaffinity(0)) // workers) if cluster == "local" else 1


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
    """Run what is not finished, at most `workers` at a time; {name: failure} of those that failed.

    Told to stop (Ctrl-C, SIGTERM), it ends the runs on this machine and raises `Interrupted`.
    """
    pending = [planned for planned in plan if not finished(planned)]
    if not pending:
        return {}
    failures: dict[str, Failure] = {}

    def done(planned: PlannedRun, job: Any) -> None:
        failure = None if finished(planned) else failure_of(job)
        if failure is not None:
            failures[planned.name] = failure
        on_done(planned, failure)

    attend(
        make_executor(logs, cluster, workers, threads, slurm),
        [(planned, Job(planned.options, threads, command)) for planned in pending],
        cluster=cluster,
        workers=workers,
        on_done=done,
        so_far=lambda: f"{sum(map(finished, plan))} of {len(plan)} runs are finished",
    )
    return failures


def attend(
    executor: Any,
    work: Sequence[tuple[T, Callable[[], Any]]],
    *,
    cluster: str,
    workers: int,
    on_done: Callable[[T, Any], None],
    so_far: Callable[[], str],
) -> None:
    """Hand in what is to be done, at most `workers` at a time, and wait; `on_done` gets what it was and its job.

    Told to stop (Ctrl-C, SIGTERM), it ends what runs on this machine and raises `Interrupted`, with `so_far`.
    """
    waiting, running = list(work), list[tuple[T, Any]]()
    with deferred_signals() as stop:
        if cluster == "slurm":  # one array: SLURM itself keeps to `workers`
            with executor.batch():
                running, waiting = [(what, executor.submit(job)) for what, job in waiting], []
        while (waiting or running) and not stop.made:
            while waiting and len(running) < workers and not stop.made:
                what, job = waiting.pop(0)
                running.append((what, executor.submit(job)))
            queued = _queue() if cluster == "slurm" else None
            for what, job in list(running):
                if _done(job, queued):
                    running.remove((what, job))
                    on_done(what, job)
            if running and not stop.made:
                time.sleep(LOOK[cluster])
        if stop.made:
            jobs = [job for _, job in running]
            left = _leave(jobs, stop.by) if cluster == "slurm" else _end(jobs)
            raise Interrupted(f"Stopped: {so_far()}.{left} The same command again goes on from here.")


def _end(jobs: Sequence[Any]) -> str:
    """End runs on this machine and wait for them: each is asked to save its state first, as `vitscope train` does."""
    for job in jobs:
        with suppress(ProcessLookupError):  # submitit names a job here after the process that watches over it
            os.kill(int(job.job_id), signal.SIGTERM)
    deadline = time.monotonic() + FAREWELL
    while not all(job.done() for job in jobs) and time.monotonic() < deadline:
        time.sleep(LOOK["local"])
    for job in jobs:
        if not job.done():  # it is not in its training loop, where signals are heard, and has nothing to save
            job.cancel()  # once: a second signal would keep submitit from killing
    while not all(job.done() for job in jobs):
        time.sleep(LOOK["local"])
    return ""


def _leave(jobs: Sequence[Any], signal_number: int) -> str:
    """On SLURM Ctrl-C cancels the jobs. A SIGTERM does not: login shells and their processes end for many reasons."""
    if signal_number == signal.SIGINT:
        for job in jobs:
            job.cancel()
        return " Its jobs were cancelled."
    names = sorted({job.job_id.partition("_")[0] for job in jobs})
    return f" Its jobs stay with SLURM (`scancel {' '.join(names)}` ends them)." if names else ""


def make_executor(logs: Path, cluster: str, workers: int, threads: int, slurm: Mapping[str, Any]) -> Any:
    """submitit's, for processes on this machine or for jobs of SLURM."""
    import submitit
    import torch

    if cluster == "local":
        executor = submitit.AutoExecutor(folder=logs, cluster="local")
        # submitit hides the GPUs that are not asked for
        executor.update_parameters(timeout_min=LOCAL_MINUTES, gpus_per_node=torch.cuda.device_count())
        return executor
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
    return executor


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


def failure_of(job: Any) -> Failure:
    """The last words of a job."""
    log = Path(job.paths.stderr)
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    told = [line.strip() for line in lines if line.strip() and not line.startswith("submitit")]
    return Failure(told[-1] if told else "the process died without a word", log)
