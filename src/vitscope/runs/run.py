"""A run is a folder: what was asked (config.yaml), where (environment.json), what came out (tables, figures)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitscope.errors import NumericalError, RunError
from vitscope.options import check_finite
from vitscope.registry import DISPLAYS, outside_modules
from vitscope.runs.config import difference, dump_yaml, load_yaml, plain
from vitscope.runs.environment import describe_environment
from vitscope.runs.files import as_json, atomic_write, make_folder, remove, remove_leftovers
from vitscope.runs.lock import LOCK_NAME, FolderLock, lock_holder
from vitscope.runs.shape import misfit, read_json

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1  # of the folder; raised when an older folder can no longer be read or resumed

# All that a run may put into its folder. `overwrite` removes these and leaves a user's own notes alone.
OWNED = (
    "config.yaml", "environment.json", "summary.json", "timing.json", "warnings.json", "model.json", "report.html",
    "tables", "figures", "images", "state", "checkpoints", "activations", "tracking", "wandb",
)  # fmt: skip
SKIPPED_COLUMNS = ["image", "path", "reason"]

# What is read again of the files in a run folder: see `shape`.
_MADE = {
    "time?": str, "command?": str, "directory?": str, "world_size?": int, "versions?": {str: str}, "git?": ({}, None),
}  # fmt: skip
SHAPES: dict[str, Mapping[Any, Any]] = {
    "run.json": {"kind?": str, "status?": str, "created?": str},
    "environment.json": {**_MADE, "resumed?": [_MADE]},
    "summary.json": {str: {"value": float, "unit": str, "n": int, "note?": str}},
    "timing.json": {},
    "warnings.json": {"warnings?": [str]},
}
ELSEWHERE = "Choose another folder with --out, or replace that run with --overwrite (in Python: out=, overwrite=True)."
LOST = "Put it back from a copy, or make the run again with --overwrite."


class Run:
    """Make one with `Run.create` (to write) or `Run.open` (to read). As a context manager it lets go of the lock."""

    def __init__(self, path: Path, config: dict[str, Any], *, lock: FolderLock | None = None, writable: bool = False):
        self.path = path
        self.config = config
        self._lock = lock
        self._writable = writable
        self.tables_dir = path / "tables"
        self.figures_dir = path / "figures"
        self.checkpoints_dir = path / "checkpoints"
        self.images_dir = path / "images"  # thumbnails of the gallery, `<image>.png`
        self.state_dir = path / "state"  # accumulators and parts of an unfinished run

    @classmethod
    def create(
        cls,
        path: str | Path,
        config: Mapping[str, Any],
        *,
        kind: str,
        overwrite: bool = False,
        command: str | Sequence[str] | None = None,
        lock: bool = True,
        free: Sequence[str] = (),
    ) -> Run:
        """A new run folder, or, to resume it, the run in `path` if that is of the same kind and configuration.

        `free` names configuration keys that do not change results (`workers`, `device`) and may differ on a resume.
        Under torchrun only rank 0 creates the run; after a barrier the other ranks pass `lock=False`, which checks and
        writes nothing and gives them the paths. They, too, notice when the lock is lost.
        """
        path, resolved = Path(path), dict(plain(config))
        check_finite(resolved, "config")
        if modules := outside_modules(resolved):  # code that is not ours: needed to read, draw or repeat this run
            resolved["modules"] = modules
        make_folder(path)
        if not lock:
            return cls(path, resolved, lock=FolderLock(path, watch=True), writable=True)
        if _look(path) == "foreign":
            raise RunError(
                f"The folder {path} is not empty and is not a run of vitscope. "
                "Choose a new or empty folder with --out (--overwrite never deletes foreign files)."
            )
        run = cls(path, resolved, lock=FolderLock(path), writable=True)
        try:
            if _look(path) == "run" and not overwrite:  # looked at again: another process may just have finished
                run._resume(kind, command, free)
            else:
                run._begin(kind, command)
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """Read a run. Takes no lock, so a run that is still being written can be looked at."""
        path = Path(path)
        if not path.is_dir():
            raise RunError(f"There is no run folder {path}.")
        if _look(path) != "run":
            inside = sorted(p.parent.name for p in path.glob("*/run.json"))
            hint = f" It holds the runs {', '.join(inside)}: name one of them." if inside else ""
            raise RunError(f"{path} is not a run of vitscope: it has no run.json and config.yaml.{hint}")
        _check_format(path)
        for name in SHAPES:  # a damaged file is told now, not after a page is drawn
            _read(path, name)
        return cls(path, load_yaml(path / "config.yaml"))

    def _begin(self, kind: str, command: str | Sequence[str] | None) -> None:
        # run.json comes first and says 'new' until config.yaml stands: a kill in between leaves a folder that
        # is recognised and begun again, never one that is half of the old run.
        marker = {"format": FORMAT, "kind": kind, "status": "new", "created": _now()}
        atomic_write(self.path / "run.json", as_json(marker))
        for name in OWNED:
            remove(self.path / name)
        remove_leftovers(self.path)
        atomic_write(self.path / "environment.json", as_json(describe_environment(self.config, command)))
        atomic_write(self.path / "config.yaml", dump_yaml(self.config))
        atomic_write(self.path / "run.json", as_json({**marker, "status": "unfinished"}))

    def _resume(self, kind: str, command: str | Sequence[str] | None, free: Sequence[str]) -> None:
        _check_format(self.path, offer_overwrite=True)
        lines = difference(load_yaml(self.path / "config.yaml"), self.config, [*free, "modules"])
        if self.kind != kind:
            lines.insert(0, f"kind of run: {self.kind!r} -> {kind!r}")
        if lines:
            raise RunError(
                f"{self.path} holds a run of another configuration (there -> asked for):\n"
                + "\n".join(f"  {line}" for line in lines)
                + f"\n{ELSEWHERE}"
            )
        if self.status == "finished":
            return  # nothing will be computed, so there is nothing to record
        remove_leftovers(self.path)
        environment = self.environment
        environment.setdefault("resumed", []).append(describe_environment(self.config, command))
        atomic_write(self.path / "environment.json", as_json(environment))
        atomic_write(self.path / "config.yaml", dump_yaml(self.config))

    # what it is

    @property
    def label(self) -> str:
        """The name by which reports call it: the model's."""
        model = self.config.get("model")
        name = model.get("name") if isinstance(model, Mapping) else model
        return str(self.config.get("label") or name or self.path.resolve().name)

    @property
    def kind(self) -> str:
        return str(_read(self.path, "run.json").get("kind", ""))

    @property
    def created(self) -> str:
        """ISO time, UTC."""
        return str(_read(self.path, "run.json").get("created", ""))

    @property
    def status(self) -> str:
        """'finished' or 'unfinished'."""
        return "finished" if _read(self.path, "run.json").get("status") == "finished" else "unfinished"

    @property
    def writer(self) -> dict[str, Any] | None:
        """{pid, host, since} of the process that is writing this folder now, if there is one."""
        return lock_holder(self.path)

    @property
    def environment(self) -> dict[str, Any]:
        return _read(self.path, "environment.json")

    @property
    def summary(self) -> dict[str, dict[str, Any]]:
        """{name: {value, unit, n, note}}"""
        return _read(self.path, "summary.json")

    @property
    def timing(self) -> dict[str, Any]:
        return _read(self.path, "timing.json")

    @property
    def warnings(self) -> list[str]:
        return list(_read(self.path, "warnings.json").get("warnings", []))

    @property
    def skipped(self) -> pd.DataFrame:
        """Images that could not be read: image, path, reason."""
        import pandas as pd

        table = self.table("skipped")
        return pd.DataFrame(columns=SKIPPED_COLUMNS) if table is None else table

    def table(self, name: str) -> pd.DataFrame | None:
        from vitscope.runs.tables import check_name, read_csv

        path = self.tables_dir / f"{check_name(name)}.csv"
        return read_csv(path) if path.exists() else None

    def list_tables(self) -> list[str]:
        return sorted(p.stem for p in self.tables_dir.glob("*.csv"))

    # writing

    def write_table(self, name: str, table: pd.DataFrame, *, allow_nan: Collection[str] = ()) -> Path:
        """Write tables/NAME.csv. NaN is an error outside the columns in `allow_nan`."""
        from vitscope.runs.tables import check_name, check_table, to_csv

        self.check_writable()
        check_table(check_name(name), table, allow_nan)
        return atomic_write(self.tables_dir / f"{name}.csv", to_csv(table))

    def write_summary(self, figures: Mapping[str, Any]) -> None:
        """Headline figures by name, merged with those that are there."""
        self.check_writable()
        new: dict[str, Any] = {}
        for name, figure in figures.items():
            entry = plain(figure, f"summary.{name}")
            missing = {"value", "unit", "n"} - set(entry)
            if missing:
                raise RunError(f"Summary figure {name!r} lacks {', '.join(sorted(missing))}.")
            value = entry["value"]
            if value is None or (isinstance(value, float) and not math.isfinite(value)):
                raise NumericalError(f"Summary figure {name!r} is {value}; leave it out where it has no value.")
            new[name] = entry
        if wrong := misfit(new, SHAPES["summary.json"]):
            raise RunError(f"The summary cannot be written: {wrong}.")
        atomic_write(self.path / "summary.json", as_json({**self.summary, **new}))

    def write_timing(self, timing: Mapping[str, Any]) -> None:
        """Seconds, images per second, memory: apart from the tables, so that those are identical from run to run."""
        self.check_writable()
        atomic_write(self.path / "timing.json", as_json({**self.timing, **plain(timing, "timing")}))

    def write_skipped(self, skipped: Iterable[tuple[int, str, str]]) -> None:
        """Replace tables/skipped.csv: (number, path, reason) in the order of the data; no file where there are none."""
        import pandas as pd

        rows = sorted(set(skipped))
        if rows:
            self.write_table("skipped", pd.DataFrame(rows, columns=SKIPPED_COLUMNS))
        else:
            self.check_writable()
            remove(self.tables_dir / "skipped.csv")

    def log_warning(self, text: str) -> None:
        """Something the reader of the report should know. The same text is kept once."""
        self.check_writable()
        warnings = self.warnings
        if text not in warnings:
            atomic_write(self.path / "warnings.json", as_json({"warnings": [*warnings, text]}))

    def finish(self) -> None:
        """Declare the run complete."""
        self.check_writable()
        marker = _read(self.path, "run.json")
        atomic_write(self.path / "run.json", as_json({**marker, "status": "finished", "finished": _now()}))

    def close(self) -> None:
        """Let go of the lock. The run can still be read."""
        self._writable = False
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def check_writable(self) -> None:
        """Raise RunError unless this process may write here, and still has the lock that says so."""
        if not self._writable:
            raise RunError(f"{self!r} was opened for reading. Use Run.create(path, config, kind=...) to write.")
        if self._lock is not None:
            self._lock.check()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, label={self.label!r}, {self.status})"

    def _repr_html_(self) -> str:
        return str(DISPLAYS.get("run")(self))  # which lives in the room `report`


def _look(path: Path) -> str:
    """'empty', 'run', 'begun' (killed while it was being created) or 'foreign'."""
    names = {p.name for p in path.iterdir()}
    if "run.json" in names:
        return "run" if "config.yaml" in names and not _new(path) else "begun"
    return "empty" if not {n for n in names if n != LOCK_NAME and not n.endswith(".tmp")} else "foreign"


def _new(path: Path) -> bool:
    try:
        return _read(path, "run.json").get("status") == "new"
    except RunError:  # a damaged run is a run: to be refused, or overwritten
        return False


def _check_format(path: Path, offer_overwrite: bool = False) -> None:
    found = _read(path, "run.json").get("format")
    if found == FORMAT:
        return
    age = "a newer" if isinstance(found, int) and found > FORMAT else "an older"
    hint = f" {ELSEWHERE}" if offer_overwrite else ""
    raise RunError(
        f"{path} was written by {age} version of vitscope (folder format: {found} -> {FORMAT}), "
        f"which this version does not read.{hint or ' Run it again, or use that version.'}"
    )


def _read(path: Path, name: str) -> dict[str, Any]:
    """One of the JSON files of a run folder, {} where it is absent."""
    remedy = "Delete it to read the run without it." if name != "run.json" else LOST
    return read_json(path / name, SHAPES[name], remedy)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
