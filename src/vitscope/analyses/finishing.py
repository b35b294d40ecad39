"""All shares are counted: sums are added up, rows merged, tables and headline figures written."""

from __future__ import annotations

import copy
import resource
import shutil
import sys
from collections.abc import Sequence
from typing import Any

from vitscope.analyses.base import Analysis, everyone
from vitscope.analyses.chance import chance_remark
from vitscope.analyses.results import write_results
from vitscope.analyses.rows import merge_rows, rows_folder
from vitscope.analyses.share import Share
from vitscope.analyses.state import State, load_state, restore_sums
from vitscope.data import Data
from vitscope.errors import DataError, RunError
from vitscope.processes import Processes
from vitscope.runs import Run


def put_together(run: Run, analyses: Sequence[Analysis], data: Data, share: Share, processes: Processes) -> None:
    """On rank 0, after all are done: add up the sums, merge the rows, write tables and headline figures."""
    run.check_writable()
    states = [share.state, *(_other_state(run, rank) for rank in range(1, processes.world))]
    for state in states[1:]:
        for analysis in everyone(analyses):
            other = copy.copy(analysis)
            other.twin = None  # is another of `everyone`
            other.sums = {key: value.clone() for key, value in analysis.sums.items()}  # to be filled
            restore_sums(state, [other])
            analysis.merge(other)
    items = share.setting.task.words.items
    images, skipped = sum(s.images for s in states), sum(s.skipped for s in states)
    if images + skipped != len(data):
        raise RunError(
            f"Of {len(data):,} {items} {images:,} were counted and {skipped:,} skipped. The saved state in "
            f"{run.state_dir} does not belong to this data; start again with --overwrite."
        )
    if images == 0:
        merge_rows(rows_folder(run.state_dir), run.tables_dir, [state.rows for state in states])
        raise DataError(f"None of the {len(data):,} {items} could be read; {run.tables_dir / 'skipped.csv'} says why.")
    if skipped:
        run.log_warning(f"{skipped:,} of {len(data):,} {items} could not be read and were left out: table 'skipped'.")
    write_results(run, analyses, states)
    for right, counted in (a.answers() or (0, 0) for a in analyses):
        if remark := chance_remark(share.model, data, right, counted):
            run.log_warning(remark)
    run.write_timing({"analyze": _timing(states, images, share, processes)})
    run.finish()
    shutil.rmtree(run.state_dir, ignore_errors=True)  # all of it is in the tables now


def _other_state(run: Run, rank: int) -> State:
    state = load_state(run.state_dir, rank)
    if state is None or not state.done:
        raise RunError(
            f"The state of process {rank} is not in {run.state_dir}. All processes must see the same run folder: "
            "choose one on a shared file system with --out."
        )
    return state


def _timing(states: Sequence[State], images: int, share: Share, processes: Processes) -> dict[str, Any]:
    seconds = max(s.seconds for s in states)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {
        "seconds": round(seconds, 3),
        "images_per_second": round(images / max(seconds, 1e-9), 2),
        "processes": processes.world,
        "device": str(share.model.device),
        "peak_memory_bytes": peak,
    }
