"""Do a run again from what it saved, and refuse if what it was made from has changed since."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitscope.errors import RunError, VitscopeError
from vitscope.runs.config import difference
from vitscope.runs.request import AnalyzeOptions
from vitscope.runs.run import Run

_PLACES = ("path", "run_path", "source", "root", "list_file")  # where things lie now may differ; what they are may not


def rerun(run: str | Path | Run, out: str | Path | None = None, *, overwrite: bool = False, **how: Any) -> Run:
    """Do a run again. `out` is by default a folder beside it, NAME-rerun; the run's own folder resumes it.

    how: options that change no result, such as workers, device or progress.
    """
    old = run if isinstance(run, Run) else Run.open(run)
    place = str(out) if out is not None else f"{old.path}-rerun"
    if old.kind == "analyze":
        return _analyze(old, dict(out=place, overwrite=overwrite, **how))
    if old.kind == "train":
        from vitscope.training import TrainOptions, train

        return train(TrainOptions.from_config(old.config["options"], out=place, overwrite=overwrite, **how))
    raise VitscopeError(f"{old.path} is a run of kind {old.kind!r}, which cannot be repeated from its configuration.")


def _analyze(old: Run, changes: Mapping[str, Any]) -> Run:
    directory = old.environment.get("directory")
    options = AnalyzeOptions.from_config(old.config, Path(directory) if directory else None)
    options = dataclasses.replace(options, **changes)
    data = options.load()
    _check_same(old, "data", data.describe())
    models = options.open()
    _check_same(old, "model", models[0].source)
    return options.run(data, models, command=["vitscope", "rerun", str(old.path), "--out", str(options.out)])[0]


def _check_same(old: Run, what: str, now: Mapping[str, Any]) -> None:
    if lines := difference(old.config[what], now, _PLACES):
        raise RunError(
            f"The {what} is not what it was in {old.path} (then -> now):\n"
            + "\n".join(f"  {line}" for line in lines)
            + f"\nTo take it as it is now: vitscope analyze --config {old.path / 'config.yaml'} --out FOLDER."
        )
