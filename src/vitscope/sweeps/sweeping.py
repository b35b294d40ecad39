"""`sweep`: plan, run what is missing, average over seeds, draw one report. Called again it goes on where it was."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from vitscope.runs import Run, atomic_write
from vitscope.runs.config import dump_yaml
from vitscope.sweeps.execution import Failure, carry_out, check_submitit, choose_cluster, default_threads, finished
from vitscope.sweeps.plan import PlannedRun, check_plan, make_plan
from vitscope.sweeps.tables import sweep_tables
from vitscope.training.options import TrainOptions

logger = logging.getLogger("vitscope")
KIND = "sweep"
MANY = 64  # jobs of an array that SLURM runs at the same time if nobody says how many


def sweep(
    options: TrainOptions,
    vary: Mapping[str, Sequence[Any]],
    *,
    seeds: int = 3,
    workers: int | None = None,
    threads: int | None = None,
    cluster: str = "auto",
    slurm: Mapping[str, Any] | None = None,
    command: Sequence[str] | None = None,
) -> Run:
    """Train every combination of `vary` with `seeds` seeds; the run folders are in `options.out`/runs.

    workers: runs at the same time (this machine: 1; SLURM: 64). threads: of each run; OMP_NUM_THREADS, or else the
    cores of this machine are divided between the workers. cluster: 'local', 'slurm' or 'auto'. slurm: parameters of
    submitit's SlurmExecutor. Runs that fail are listed in the table `sweep_runs` with their logs, and the next call
    tries them again.
    """
    from vitscope.report import build_report

    where = choose_cluster(cluster)
    most = workers or (1 if where == "local" else MANY)
    each = threads or default_threads(where, most)
    out = Path(options.out)
    plan = make_plan(options, vary, seeds, out / "runs")
    if options.overwrite or not all(map(finished, plan)):
        check_submitit()
    check_plan(plan)
    config = {
        "label": f"sweep of {', '.join(vary)}" if vary else f"{seeds} seeds",
        "data": {"name": options.data},
        "options": options.to_config(),
        "vary": {name: list(values) for name, values in vary.items()},
        "seeds": seeds,
    }
    # a sweep may be extended by values and seeds; anything else would mix runs that are not alike
    free = ("label", "vary", "seeds", "options.workers", "options.device", "options.root")
    run = Run.create(out, config, kind=KIND, overwrite=options.overwrite, command=command, free=free)
    with run:
        atomic_write(run.path / "config.yaml", dump_yaml(run.config))
        logs = (out / "logs" / datetime.now().strftime("%Y%m%d-%H%M%S")).absolute()
        with _bar(plan, options.progress) as bar:

            def on_done(planned: PlannedRun, failure: Failure | None) -> None:
                bar.update()
                if failure is not None:
                    _say(f"{planned.name} failed: {failure.reason} (log: {failure.log})", options.progress)

            how: dict[str, Any] = {"cluster": where, "workers": most, "threads": each, "slurm": slurm or {}}
            failures = carry_out(plan, logs, **how, command=command, on_done=on_done)
        for name, table in sweep_tables(plan, failures).items():
            # a run that failed has no figures, one seed no interval
            run.write_table(name, table, allow_nan=[str(c) for c in table if table[c].dtype.kind == "f"])
        if not failures:
            run.finish()
    build_report(run)
    return run


def failed_runs(run: Run) -> list[str]:
    """'name: reason (log)' of every run that failed in the last attempt."""
    table = run.table("sweep_runs")
    if table is None:
        return []
    rows = table[table["status"] == "failed"].to_dict("records")
    return [f"{row['run']}: {row['reason']} (log: {run.path / row['log']})" for row in rows]


def _bar(plan: Sequence[PlannedRun], shown: bool) -> Any:
    from tqdm import tqdm

    done = sum(map(finished, plan))
    return tqdm(total=len(plan), initial=done, desc="sweep", unit=" runs", dynamic_ncols=True, disable=not shown)


def _say(text: str, shown: bool) -> None:
    from tqdm import tqdm

    logger.warning(text)
    if shown:
        tqdm.write(text, file=sys.stderr)
