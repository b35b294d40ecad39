"""Do a run again from what it saved, and refuse if what it was made from has changed since."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitscope.analyses.options import with_values
from vitscope.analyses.request import AnalyzeOptions, Request
from vitscope.analyses.saved_request import ANALYZED, place_of
from vitscope.errors import RunError, VitscopeError
from vitscope.outside import import_remembered, only_named, reading
from vitscope.robustness.attack_options import AttackOptions
from vitscope.robustness.evaluation.evaluate_options import EVALUATED, EVALUATED_TEXTS, EvaluateOptions
from vitscope.runs.config import difference
from vitscope.runs.run import Run
from vitscope.runs.shape import check_saved
from vitscope.tasks import task_of

# where things lie now may differ; what they are may not
_PLACES = ("path", "run_path", "folder", "source", "root", "list_file")


def rerun(
    run: str | Path | Run, out: str | Path | None = None, *, overwrite: bool = False, trust: bool = False, **how: Any
) -> Run:
    """Do a run again. `out` is by default a folder beside it, NAME-rerun; the run's own folder resumes it.

    trust: import the code outside of vitscope that the folder names; a folder may come from anyone.
    how: options that change no result, such as workers, device or progress.
    """
    with only_named(trust=trust):
        return _rerun(run, out, overwrite, how)


def _rerun(run: str | Path | Run, out: str | Path | None, overwrite: bool, how: Mapping[str, Any]) -> Run:
    old = run if isinstance(run, Run) else Run.open(run)
    repeat = {"analyze": _analyze, "evaluate": _analyze, "train": _train}.get(old.kind)
    if repeat is None:
        raise VitscopeError(f"{old.path} is a run of kind {old.kind!r}, which cannot be made from its configuration.")
    reading(old.path)
    if problems := import_remembered(old.config, old.path):
        raise RunError("\n".join(problems))
    place = str(out) if out is not None else f"{old.path}-rerun"
    command = ["vitscope", "rerun", str(old.path), "--out", place]
    return repeat(old, command, {"out": place, "overwrite": overwrite, **how})


def _analyze(old: Run, command: list[str], changes: Mapping[str, Any]) -> Run:
    options = with_values(_request(old), changes)
    data = options.load()
    task = task_of(data)
    if task.one_class:  # before a model is fetched
        _check_same(old, "data", old.config["data"], data.describe())
    models = options.open()
    if not task.one_class:  # where windows begin, the tokenizer says
        _check_same(old, "data", old.config["data"], task.match(models[0], data)[0].describe())
    _check_same(old, "model", old.config["model"], models[0].source)
    return options.run(data, models, command=command)[0]


def _request(old: Run) -> Request:
    with _of_file(old):
        if old.kind == "evaluate":
            check_saved(old.config, EVALUATED_TEXTS if old.config.get("task") else EVALUATED)
            return EvaluateOptions.from_config(old.config, _started_in(old))
        check_saved(old.config, ANALYZED)
        if list(old.config["analyses"]) == ["attack"]:
            return AttackOptions.from_config(old.config, _started_in(old))
        return AnalyzeOptions.from_config(old.config, _started_in(old))


@contextmanager
def _of_file(run: Run) -> Iterator[None]:
    """Errors inside are those of the run's configuration, and say so."""
    try:
        yield
    except VitscopeError as error:
        raise RunError(f"{run.path / 'config.yaml'}: {error}") from error


def _train(old: Run, command: list[str], changes: Mapping[str, Any]) -> Run:
    from vitscope.training import TrainOptions, train
    from vitscope.training.options import TRAINED
    from vitscope.training.setup import open_data

    with _of_file(old):
        check_saved(old.config, {**TRAINED, "data": {"name?": str, "train": {}, "test": {}}})
        saved, directory = dict(old.config["options"]), _started_in(old)
        places = ("data", "root", "weights", "teacher", "teacher_weights", "vocabulary")
        saved |= {name: place_of(saved[name], directory) for name in places if isinstance(saved.get(name), str)}
        options = TrainOptions.from_config(saved, **changes)
    data = open_data(options)
    for part, images in (("train", data.train), ("test", data.test)):
        _check_same(old, f"{part} data", old.config["data"][part], images.describe())
    return train(options, command=command)


def _started_in(run: Run) -> Path | None:
    directory = run.environment.get("directory")
    return Path(directory) if directory else None


def _check_same(run: Run, what: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    if lines := difference(then, now, _PLACES):
        raise RunError(
            f"The {what} of {run.path} is not what it was (then -> now):\n"
            + "\n".join(f"  {line}" for line in lines)
            + f"\nTo take it as it is now: vitscope {run.kind} --config {run.path / 'config.yaml'} --out FOLDER."
        )
