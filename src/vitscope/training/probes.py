"""Analyses during training: the same objects as in `analyze`, on the same images every time, in rows per epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import torch.distributed as dist

from vitscope.analyses.base import Analysis, Setting, everyone, tables_of
from vitscope.analyses.naming import with_options
from vitscope.analyses.one_pass import measure
from vitscope.analyses.selection import choose_analyses, start_analyses
from vitscope.errors import VitscopeError
from vitscope.models import Model
from vitscope.processes import Processes
from vitscope.runs import Run
from vitscope.tasks import task_of
from vitscope.training.options import TrainOptions
from vitscope.training.setup import probe_data

PREFIX = "probe_"


class Probes:
    """What is watched while a model learns. Tables `probe_<table>` begin with the columns epoch and split."""

    def __init__(self, options: TrainOptions, model: Model, processes: Processes) -> None:
        self.options, self.model, self.processes = options, model, processes
        watched = chosen_probes(options)
        self._optional = {column for analysis in watched for column in analysis.optional}
        self.data: dict[str, Any] = {
            split: probe_data(options, split, model) for split in options.probe_splits if options.probe
        }
        check_probes(options, model)

    def due(self, epoch: int) -> bool:
        """After `epoch` complete epochs? The untrained and the finished model always."""
        return bool(self.data) and (epoch % self.options.probe_every == 0 or epoch == self.options.epochs)

    def measure(self, epoch: int, run: Run) -> None:
        """Analyse the model as it is now. Rows of this epoch or later, left by a killed attempt, are replaced."""
        found: dict[str, list[pd.DataFrame]] = {}
        for split in self.data:
            for name, table in self._tables(split).items():
                table.insert(0, "epoch", epoch)
                table.insert(1, "split", split)
                found.setdefault(name, []).append(table)
        if self.processes.first:
            for name, tables in found.items():
                _append(run, PREFIX + name, epoch, tables, self._optional)

    def _tables(self, split: str) -> Mapping[str, pd.DataFrame]:
        """Every process measures its share; the sums are added up in their order. {} on all but the first."""
        data, processes = self.data[split], self.processes
        setting = Setting(
            classes=tuple(map(str, data.classes)),
            gallery=frozenset(),  # maps of single images belong to `analyze`
            images=len(data),
            rank=processes.rank,
            world=processes.world,
            seed=self.options.seed,
            task=task_of(data),
        )
        analyses = chosen_probes(self.options, setting)
        batches = data.batches(
            self.model.preprocess,
            self.options.look_size,
            rank=processes.rank,
            world=processes.world,
            workers=self.options.workers,
        )
        measure(self.model, batches, analyses, on_batch=lambda _: _forget_rows(analyses), data=data)
        shares = gather(processes, [analysis.sums for analysis in everyone(analyses)])
        if not processes.first:
            return {}
        tables: dict[str, pd.DataFrame] = {}
        for number, analysis in enumerate(everyone(analyses)):
            for sums in shares[1:]:
                other = analysis.fresh()
                other.sums = sums[number]
                analysis.merge(other)
        for analysis in analyses:
            for name, table in tables_of(analysis).items():
                if name in tables:
                    raise VitscopeError(f"Two of the probes {', '.join(self.options.probe)} write a table {name!r}.")
                tables[name] = table.copy()
        return tables


def chosen_probes(options: TrainOptions, setting: Setting | None = None) -> list[Analysis]:
    """New analyses as asked for. A name or an option that does not exist is an error."""
    if not options.probe:
        if options.probe_set:
            raise VitscopeError(f"probe_set {', '.join(options.probe_set)} without a probe: name it with --probe.")
        return []
    chosen = choose_analyses(with_options([a.name for a in choose_analyses(options.probe)], options.probe_set))
    if setting is not None:
        for analysis in chosen:
            analysis.setting = setting
    return chosen


def check_probes(options: TrainOptions, model: Model) -> None:
    """Refuse what cannot be measured, before an hour of training."""
    for split in options.probe_splits if options.probe else ():
        data = probe_data(options, split, model)
        analyses = chosen_probes(options, Setting(seed=options.seed, task=task_of(data)))
        start_analyses(analyses, model, data, explicit=True)


def gather(processes: Processes, mine: object) -> list:
    """What every process has, in their order, on every process."""
    if processes.world == 1:
        return [mine]
    everyone: list = [None] * processes.world
    dist.all_gather_object(everyone, mine, group=processes.group)
    return everyone


def _forget_rows(analyses: list[Analysis]) -> None:
    """Rows per image are for one look at a finished model; over many epochs they would pile up."""
    for analysis in analyses:
        analysis.rows.clear()


def _append(run: Run, name: str, epoch: int, tables: list[pd.DataFrame], optional: set[str]) -> None:
    before = run.table(name)
    kept = [] if before is None else [before[before["epoch"] < epoch]]
    table = pd.concat([*kept, *tables], ignore_index=True)
    run.write_table(name, table, allow_nan=[c for c in table if c in optional])
