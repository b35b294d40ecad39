"""`analyze`: models, data and analyses in; run folders with tables and a report out.

One forward pass per batch serves all analyses. The state is saved now and then, so that the same call goes on where a
killed one stopped; processes started by torchrun share the batches, and their sums are added up at the end.
"""

from __future__ import annotations

import hashlib
import logging
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from vitscope.analyses.base import Analysis, Setting
from vitscope.analyses.control import check_control, shared_twin, start_controls
from vitscope.analyses.finishing import put_together
from vitscope.analyses.gallery import Gallery, choose_gallery
from vitscope.analyses.options import EngineOptions
from vitscope.analyses.request import AnalyzeOptions, call
from vitscope.analyses.selection import Wanted, choose_analyses, start_analyses
from vitscope.analyses.share import Share, check_world
from vitscope.data import Data
from vitscope.data.dealing import batch_size_of, dealt_images
from vitscope.data.own import check_whole
from vitscope.errors import VitscopeError
from vitscope.models import Model
from vitscope.processes import Processes
from vitscope.runs import Run
from vitscope.tasks import task_of

logger = logging.getLogger("vitscope")
# a resumed run may find the same weights (by their hash) elsewhere
PLACES = ("model.path", "model.run_path", "model.folder")


def analyze(
    model: Model | str | Path | nn.Module | Sequence[Any] | None = None,
    data: Data | str | Path | None = None,
    analyses: Wanted | None = None,
    out: str | Path | None = None,
    *,
    options: AnalyzeOptions | None = None,
    command: str | Sequence[str] | None = None,
    kind: str = AnalyzeOptions.kind,
    explicit: bool | None = None,
    **given: Any,
) -> Run | list[Run]:
    """Look inside one or more models in one pass over the data.

    model: an opened Model, anything that `open_model` takes, or a list of these (the result is then a list of runs).
    data: from `load_data`, or its first argument.
    analyses: names, Analysis objects, or {name: options}; None takes all that run by default.
    out: the run folder; for several models the folder of their run folders. `report.html` is written there.
    options, given: `AnalyzeOptions`, whole or as keywords (split="val", batch_size=16, save=["*"]); keywords win.
    command: how the user called it, for environment.json.
    kind: what the run is called; a study that passes its own data through this engine gives its own name.
    explicit: is an analysis that cannot run here an error? None: if `analyses` are given. Otherwise it is left out.

    Called again with the same arguments after a kill it goes on; on a finished run it returns that run at once.
    Raises `Interrupted` (a KeyboardInterrupt) after Ctrl-C, with the state saved.
    """
    request = AnalyzeOptions.called_with(options, given, out)
    wanted = None if analyses is None else choose_analyses(analyses, request.save)
    if analyses is not None and (request.only is not None or request.set):
        raise VitscopeError("`analyses` are given, and `only` or `set` as well: choose one way to name them.")
    return call(request, model, data, wanted, command=command, kind=kind, explicit=explicit)


def analyze_below(
    folder: Path, name: str, model: Model, data: Data, analysis: Analysis, batch_size: int, seed: int
) -> Path:
    """A pass that an analysis needs of its own: a run below the state of that in `folder`, resumed and shared alike."""
    place = folder / "state" / name
    progress = sys.stderr.isatty()  # the outer bar stands still meanwhile; a log file needs no second one
    how: dict[str, Any] = {"batch_size": batch_size, "seed": seed, "save_every": 600.0, "progress": progress}
    analyze(model, data, [analysis], place, report=False, gallery=0, **how)
    return place


def analyze_models(
    models: Iterable[Model],
    data: Data,
    analyses: Wanted | None,
    options: EngineOptions,
    *,
    several: bool = False,
    explicit: bool | Collection[str] = True,
    **how: Any,
) -> list[Run]:
    """One run per model, and their report. The next model is opened when the last is done.

    several: do the runs lie in folders below `out`? explicit: is an analysis that cannot run here an error?
    how: `command` and `kind` of the runs.
    """
    check_control(options.control)
    check_whole(data)
    processes = Processes.join()
    labels: list[str] = []
    runs = []
    folder = Path(options.out) if options.out is not None else None
    for model in models:
        labels.append(unique_label(model.name, labels))
        chosen = choose_analyses(analyses)
        place = run_folder(folder, labels[-1], data.name, several)
        runs.append(analyze_one(model, data, chosen, place, options, processes, labels[-1], explicit=explicit, **how))
    if options.report:
        page = (folder or Path("runs") / _file_name(data.name)) if several else runs[0].path
        processes.first_decides(lambda: _draw(runs, page / "report.html"))
    return runs


def analyze_one(
    model: Model,
    data: Data,
    analyses: Sequence[Analysis],
    out: Path,
    options: EngineOptions,
    processes: Processes,
    label: str,
    *,
    explicit: bool | Collection[str],
    command: str | Sequence[str] | None,
    kind: str,
) -> Run:
    """One model: start or resume its run, count this process's share, and put the shares together."""
    task = task_of(data)
    data, order = task.match(model, data)
    together = batch_size_of(data, options.batch_size)
    setting = Setting(
        classes=tuple(map(str, data.classes)),
        gallery=getattr(data, "gallery", partial(choose_gallery, data.labels))(options.gallery),
        images=dealt_images(len(data), together, processes.rank, processes.world, data.shards),
        folder=out,
        rank=processes.rank,
        world=processes.world,
        seed=options.seed,
        task=task,
    )
    for analysis in analyses:
        analysis.setting = setting
    running, remarks = start_analyses(analyses, model, data, explicit=explicit)
    start_controls(model, running, options.control)
    remarks += list(dict.fromkeys(f"{a.name.partition('.')[0]}: {text}" for a in running for text in a.remarks))
    config = resolved_config(model, data, running, options, label)
    run: Run | None = None

    def begin() -> bool:
        """Rank 0 alone makes or re-opens the folder -> is there anything left to do?"""
        nonlocal run
        run = Run.create(out, config, kind=kind, overwrite=options.overwrite, command=command, free=PLACES)
        if run.status == "finished":
            return False
        check_world(run.state_dir, processes.world)
        for remark in [*model.notes, *data.warnings, *remarks, order]:
            if remark:
                run.log_warning(remark)
        return True

    told = len(data.warnings)
    try:
        unfinished = processes.first_decides(begin)
        if run is None:
            run = Run.create(out, config, kind=kind, lock=False)
        if not unfinished:
            _say(f"{out} is complete: nothing to compute.", options, processes)
            return run
        gallery = Gallery(run, setting, model)  # first: its rows of a table come before those that a lens adds
        share = Share(run, model, [gallery, *running], setting, options.save_every)
        for analysis in running:
            known = list(analysis.remarks)
            analysis.prepare(data, model)
            if analysis.twin is not None:
                analysis.twin.prepare(data, shared_twin(model, setting.seed))
            for text in analysis.remarks:
                if text not in known and processes.first:
                    run.log_warning(f"{analysis.name.partition('.')[0]}: {text}")
        share.restore()
        with _progress_bar(share, options, processes) as bar:
            share.finish(data, together, options.workers, bar)
        for remark in data.warnings[told:]:  # what came up while batches were made
            run.log_warning(remark)
        processes.barrier()
        processes.first_decides(lambda: put_together(run, running, data, share, processes))
        return run
    finally:
        if run is not None:
            run.close()


def resolved_config(
    model: Model, data: Data, analyses: Sequence[Analysis], options: EngineOptions, label: str
) -> dict[str, Any]:
    """Everything that decides the tables."""
    return {
        "label": label,
        "model": model.source,
        "weights_digest": weights_digest(model.module),
        **({"edits": edits} if (edits := model.active_edits()) else {}),
        "preprocess": model.preprocess.to_dict(),
        "data": data.describe(),
        **({"task": task} if (task := task_of(data).describe()) else {}),
        "analyses": {a.name: a.options() for a in analyses},
        "batch_size": options.batch_size,
        "seed": options.seed,
        "gallery": options.gallery,
        **({"control": options.control} if options.control else {}),
    }


def weights_digest(module: nn.Module) -> str:
    """A hash of all parameters and buffers: a run must not go on with weights that were changed meanwhile."""
    digest = hashlib.blake2b(digest_size=16)
    for name, value in module.state_dict().items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()


def _say(text: str, options: EngineOptions, processes: Processes) -> None:
    """A line for the user, where the progress bar would be."""
    logger.info(text)
    if options.progress and processes.first:
        tqdm.write(text, file=sys.stderr)


def _progress_bar(share: Share, options: EngineOptions, processes: Processes) -> Any:
    name = share.run.label + (f" (process 0 of {processes.world})" if processes.world > 1 else "")
    return tqdm(
        total=share.setting.images,
        initial=share.state.images + share.state.skipped,
        desc=name,
        unit=f" {share.setting.task.words.items}",
        dynamic_ncols=True,
        smoothing=0.1,
        disable=not (options.progress and processes.first),
    )


def _draw(runs: list[Run], page: Path) -> None:
    from vitscope.report import build_report  # with matplotlib

    build_report(runs, page)


def run_folder(out: Path | None, label: str, data: str, several: bool) -> Path:
    """One model: `out` itself; several: `out/<label>`. By default below `runs/`, named after data and model."""
    if not several:
        return out if out is not None else Path("runs") / f"{_file_name(data)}-{_file_name(label)}"
    return (out if out is not None else Path("runs") / _file_name(data)) / _file_name(label)


def unique_label(name: str, taken: Sequence[str]) -> str:
    """The model's name, with a number where two models share it."""
    label, number = name, 2
    while label in taken:
        label, number = f"{name} ({number})", number + 1
    return label


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", text).strip("-.") or "run"
