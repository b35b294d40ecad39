"""What can be opened, and what each model can do: a table per version of timm, read without importing timm or torch."""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import astuple, dataclass, fields
from importlib import metadata
from pathlib import Path

from vitscope import __version__
from vitscope.errors import VitscopeError
from vitscope.runs.files import atomic_write

SHIPPED = Path(__file__).with_name("catalog.json")  # of the timm that constraints.txt names; `make catalog` writes it


@dataclass(frozen=True)
class ModelRow:
    """One line of `vitscope models`."""

    name: str
    supported: bool
    family: str = ""
    input: str = ""  # channels x height x width, or text
    blocks: int = 0
    heads: int = 0
    width: int = 0
    tokens: str = ""  # class + register + image; of a text, at most
    pretrained: int = 0  # number of tags with weights
    class_space: bool = False
    remark: str = ""  # why it is refused, or why there is no class space


def list_models(pattern: str = "", supported: bool = True) -> list[ModelRow]:
    """Rows for every matching name; `supported=False` includes the refused ones with their reason."""
    return [row for row in iter_models(pattern) if row.supported or not supported]


def iter_models(pattern: str = "") -> Iterator[ModelRow]:
    """Rows of the names that contain `pattern` or match it as a glob."""
    rows = read_table()
    for row in _examine_once() if rows is None else rows:
        if pattern in row.name or fnmatch.fnmatchcase(row.name, pattern):
            yield row


def candidate_names(pattern: str = "") -> list[str]:
    """Names of transformers that contain `pattern` or match it as a glob."""
    return [row.name for row in iter_models(pattern)]


def read_table() -> list[ModelRow] | None:
    """The rows for the installed timm, from the package or the user's cache; None where they are still to be made."""
    version = timm_version()
    for file in (SHIPPED, cache_file(version)):
        with suppress(OSError, ValueError, TypeError, LookupError, RecursionError):  # absent, damaged: made again
            table = json.loads(file.read_text(encoding="utf-8"))
            if table["timm"] == version:
                return [_row(values) for values in table["rows"]]
    return None


def as_text(rows: Iterable[ModelRow], version: str) -> str:
    """A table as JSON with one row per line, so that a difference between two versions can be read."""
    lines = ",\n".join(json.dumps(astuple(row), ensure_ascii=False) for row in rows)
    columns = json.dumps([field.name for field in fields(ModelRow)])
    return f'{{"timm": {json.dumps(version)}, "columns": {columns}, "rows": [\n{lines}\n]}}\n'


def timm_version() -> str:
    try:
        return metadata.version("timm")
    except metadata.PackageNotFoundError:  # a checkout of timm on the path, which pip never saw
        import timm

        return timm.__version__


def cache_file(version: str) -> Path:
    """Where the table of another timm is kept. What opens depends on vitscope's version, too."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "vitscope"
    return folder / f"models-vitscope-{__version__}-timm-{version}.json"


def _examine_once() -> list[ModelRow]:
    """Examine every model of the installed timm, and keep the table for the next time where that is possible."""
    from vitscope.models.examine import examine_all

    version = timm_version()
    file = cache_file(version)
    rows = examine_all(f"The models of timm {version} are examined once; {file} keeps the table.")
    with suppress(VitscopeError):  # a cache that cannot be written costs time, nothing else
        atomic_write(file, as_text(rows, version))
    return rows


def _row(values: list[object]) -> ModelRow:
    if [type(value).__name__ for value in values] != [field.type for field in fields(ModelRow)]:
        raise ValueError(f"not a row of the table of models: {values}")
    return ModelRow(*values)  # type: ignore[arg-type]
