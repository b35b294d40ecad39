"""One process's share of a run: its batches, its saved state, its way back to it after a kill."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from vitscope.analyses.base import Analysis, Setting, everyone
from vitscope.analyses.one_pass import OnePass, evaluating, forget_control_rows
from vitscope.analyses.results import write_results
from vitscope.analyses.rows import RowWriter, rows_folder
from vitscope.analyses.state import State, load_state, restore_sums, save_state
from vitscope.data import Data
from vitscope.data.batch import Batch
from vitscope.errors import RunError
from vitscope.interrupt import Interrupted, StopRequest, deferred_signals
from vitscope.models import Model
from vitscope.runs import Run


class Share:
    """What this process has counted so far. `restore`, then `finish`, which may be killed and called again."""

    def __init__(self, run: Run, model: Model, analyses: Sequence[Analysis], setting: Setting, save_every: float):
        self.run, self.model, self.analyses, self.setting = run, model, list(analyses), setting
        self.save_every = save_every  # seconds
        self.one_pass = OnePass(model, analyses)
        self.rows = RowWriter(rows_folder(run.state_dir), setting.rank)
        self.state = State(world=setting.world)
        self._since = self._saved = time.monotonic()

    def restore(self) -> None:
        """Go back to the last saved state, or to the beginning if there is none."""
        state = load_state(self.run.state_dir, self.setting.rank)
        if state is not None:
            restore_sums(state, everyone(self.analyses))
            self.state = state
        self.rows.cut(self.state.rows)
        self.state.sums = {}  # they live in the analyses
        for analysis in everyone(self.analyses):
            analysis.begin()

    def finish(self, data: Data, batch_size: int, workers: int, bar: tqdm) -> None:
        """Count what is not yet counted. Stops cleanly, with a saved state, on Ctrl-C and SIGTERM."""
        if self.state.done:
            return
        setting = self.setting
        batches = iter(
            data.batches(
                self.model.preprocess,
                batch_size,
                rank=setting.rank,
                world=setting.world,
                start=self.state.next_batch,
                workers=workers,
            )
        )
        self._since = self._saved = time.monotonic()
        with deferred_signals() as stop, evaluating(self.model.module):
            while True:
                try:
                    batch = next(batches, None)
                except BaseException as error:  # between two batches the sums are whole: nothing is lost
                    self._stop_here(stop, error)
                    raise
                if batch is None:
                    break
                self.count(batch)
                bar.update(len(batch) + len(batch.skipped))
                if stop.made:
                    self._stop_here(stop)
                if time.monotonic() - self._saved >= self.save_every:
                    self.save()
            self.state.done = True
            self.save()

    def count(self, batch: Batch) -> None:
        """One forward pass; sums, rows and counters move on together."""
        self.one_pass(batch)
        self.run.check_writable()  # a pass takes a while: the folder may be another process's by now
        for analysis in self.analyses:
            for table, frames in analysis.rows.items():
                self.rows.append(table, frames)
            analysis.rows.clear()
        forget_control_rows(self.analyses)
        if batch.skipped:
            rows = [(s.index, s.path, s.reason) for s in batch.skipped]
            self.rows.append("skipped", [pd.DataFrame(rows, columns=["image", "path", "reason"])])
        batch.outputs = None
        self.state.images += len(batch)
        self.state.skipped += len(batch.skipped)
        self.state.next_batch = batch.number + 1

    def save(self) -> None:
        """Bring everything to disk. The state file comes last: what it mentions is there."""
        self.run.check_writable()
        for analysis in everyone(self.analyses):
            analysis.flush()
        self.state.rows = self.rows.lengths()
        now = time.monotonic()
        self.state.seconds += now - self._since
        self._since = self._saved = now
        save_state(self.run.state_dir, self.setting.rank, self.state, everyone(self.analyses))
        if self.setting.world == 1 and self.state.images and not self.state.done:
            write_results(self.run, self.analyses, [self.state], so_far=True)
        self._saved = time.monotonic()

    def _stop_here(self, stop: StopRequest, cause: BaseException | None = None) -> None:
        self.save()
        if stop.made:
            items = self.setting.task.words.items
            raise Interrupted(
                f"Stopped after {self.state.images:,} of {self.setting.images:,} {items}. What was measured is saved "
                f"in {self.run.path}; the same command again goes on from there."
            ) from cause


def check_world(state_dir: Path, world: int) -> None:
    """Refuse to go on with another number of processes: the batches would be dealt out differently."""
    for path in sorted(state_dir.glob("rank*.safetensors")):
        state = load_state(state_dir, int(path.stem.removeprefix("rank")))
        if state is not None and state.world != world:
            begun = f"torchrun --nproc_per_node {state.world}" if state.world > 1 else "a single process"
            raise RunError(
                f"This run was begun by {state.world} process(es) and cannot go on with {world}. "
                f"Start it with {begun} again, or from the beginning with --overwrite."
            )
