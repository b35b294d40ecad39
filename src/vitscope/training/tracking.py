"""Curves sent to Accelerate's trackers (Weights & Biases, TensorBoard, ...) besides the run folder.

The run folder is the record; a tracker is a convenience. A tracker that cannot be started is an error before training,
one that fails later becomes a remark in the report, and training goes on.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vitscope.errors import VitscopeError, suggest
from vitscope.runs import Run
from vitscope.runs.files import atomic_write, make_folder

if TYPE_CHECKING:
    from accelerate import Accelerator

    from vitscope.training.options import TrainOptions

_PACKAGES = {"comet_ml": "comet-ml", "tensorboard": "'vitscope[track]'", "wandb": "'vitscope[track]'"}


def check_trackers(names: tuple[str, ...]) -> None:
    """Names that Accelerate knows and whose packages are installed; an error says what to install."""
    if not names:
        return
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

    known = [str(name) for name in LOGGER_TYPE_TO_CLASS]
    ready = [str(name) for name in get_available_trackers()]
    for name in names:
        if name not in known:
            raise VitscopeError(f"There is no tracker {name!r}.{suggest(name, known)} Known: {', '.join(known)}.")
        if name not in ready:
            package = _PACKAGES.get(name, name)
            raise VitscopeError(f"The tracker {name!r} needs a package: pip install {package} (or leave --track out).")


class Tracking:
    """`tracking.log(values, step)` on the first process; nothing where no tracker was asked for."""

    def __init__(self, options: TrainOptions, accelerator: Accelerator, run: Run) -> None:
        self._options, self._accelerator, self._run = options, accelerator, run
        self.on = False

    def start(self) -> None:
        """On the first process."""
        options, accelerator, run = self._options, self._accelerator, self._run
        if not options.track:
            return
        name = options.track_name or run.path.name
        offline = {"mode": "offline"} if options.track_offline else {}
        wandb = {"name": name, "entity": options.track_entity or None, "dir": str(run.path), **offline}
        wandb |= {"id": self._identity(), "resume": "allow"}  # a resumed training goes on in the same W&B run
        accelerator.project_configuration.logging_dir = str(run.path / "tracking")
        accelerator.log_with = list(options.track)
        try:
            accelerator.init_trackers(options.track_project, _flat(run.config), {"wandb": wandb})
        except Exception as error:  # each tracker has exceptions of its own; none may be taken for a bug of training
            raise VitscopeError(
                f"The tracker(s) {', '.join(options.track)} could not be started: {type(error).__name__}: {error}. "
                "Keys come from the environment (e.g. WANDB_API_KEY); --track-offline needs none."
            ) from error
        self.on = True

    def _identity(self) -> str:
        """The run's name at W&B, drawn once and kept in the run folder."""
        file = self._run.path / "tracking" / "wandb_id"
        if not file.is_file():
            make_folder(file.parent)
            atomic_write(file, uuid.uuid4().hex[:12])
        return file.read_text()

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._guarded(lambda: self._accelerator.log(dict(values), step=step))

    def close(self) -> None:
        # not Accelerate's end_training: it would also end the group of processes
        self._guarded(lambda: [tracker.finish() for tracker in self._accelerator.trackers])
        self.on = False

    def _guarded(self, call: Any) -> None:
        if not self.on:
            return
        try:
            call()
        except Exception as error:
            self._run.log_warning(
                f"A tracker failed and was left behind ({type(error).__name__}: {error}). Training went on; this run "
                "folder has everything."
            )
            self.on = False


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{'options': {'lr': 1}} -> {'options.lr': 1}; TensorBoard takes numbers and words only."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, (bool, int, float, str)) else str(value)
    return flat
