"""What an analysis is: it names the points it needs and turns batches into tidy tables.

An analysis keeps sums, never activations. Everything it accumulates lives in `self.sums`, a dict of float64 or int64
tensors on the CPU that are only ever *added to*. From that alone follow, with no further code: saving, exact resume
after a kill, and exact merge across processes. What a bootstrap needs per image goes through `self.emit` and is
appended to disk by the engine.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor

from vitscope.errors import VitscopeError, suggest

if TYPE_CHECKING:
    import pandas as pd

    from vitscope.data.batch import Batch
    from vitscope.models import Model


@dataclass(frozen=True)
class Figure:
    """A headline number: a value never travels without its unit and the number of images behind it."""

    value: float
    unit: str  # '%', 'nats', 'px', ...
    n: int  # images
    note: str = ""  # protocol: which images, which variant


class Analysis(ABC):
    """Subclass, decorate with `@register_analysis("name")`, and it exists everywhere: API, command line, report.

    Options are the keyword arguments of `__init__`; call `super().__init__()` there. They must be plain values
    (they are saved in config.yaml), each stored under its own name on `self`.
    """

    name: ClassVar[str] = ""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.rows: dict[str, list[pd.DataFrame]] = {}  # drained by the engine after every batch

    def needs(self, model: Model) -> Sequence[str]:
        """Globs of the point names wanted, e.g. `["blocks.*.attn.hook_pattern"]`."""
        return []

    def start(self, model: Model) -> None:  # noqa: B027
        """Allocate `self.sums` for this model. Raise VitscopeError if the model cannot be analysed."""

    def update(self, block: int, points: Mapping[str, Tensor], batch: Batch) -> None:  # noqa: B027
        """Called as soon as a block is complete. Keys of `points` are full point names; do not keep the tensors.

        Points outside the blocks (`hook_embed`, `ln_final.hook_normalized`) arrive with block -1 and block L.
        """

    def end_batch(self, batch: Batch) -> None:  # noqa: B027
        """Called once per batch after the forward pass; `batch.logits` is there now."""

    def merge(self, other: Analysis) -> None:
        """Add another process's sums to ours."""
        for key, value in other.sums.items():
            if key in self.sums:
                self.sums[key] = self.sums[key] + value
            else:
                self.sums[key] = value.clone()

    def tables(self) -> dict[str, pd.DataFrame]:
        """Tidy tables by name: one row per observation, no lists in cells. Call any number of times."""
        return {}

    def summary(self) -> dict[str, Figure]:
        """Headline figures by name."""
        return {}

    def options(self) -> dict[str, Any]:
        """What `__init__` was given, for config.yaml."""
        import inspect

        names = [p for p in inspect.signature(type(self).__init__).parameters if p not in ("self", "args", "kwargs")]
        return {n: getattr(self, n) for n in names}

    def emit(self, table: str, rows: pd.DataFrame) -> None:
        """Append per-image rows to `tables/<table>.csv`. The first column must be `image` (Batch.indices)."""
        self.rows.setdefault(table, []).append(rows)

    def add(self, key: str, value: Tensor) -> None:
        """`self.sums[key] += value`, in the accumulator's dtype."""
        acc = self.sums[key]
        acc += value.detach().to("cpu", acc.dtype)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.options().items())})"


_ANALYSES: dict[str, type[Analysis]] = {}
A = TypeVar("A", bound=type[Analysis])


def register_analysis(name: str) -> Callable[[A], A]:
    """Class decorator: make an analysis known under `name` (`accuracy`, `kpca.spectrum`)."""

    def register(cls: A) -> A:
        cls.name = name
        _ANALYSES[name] = cls
        return cls

    return register


def _discover() -> None:
    """Import every module of this package once: a new file is a new analysis."""
    import importlib
    import pkgutil

    import vitscope.analyses as package

    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)


def list_analyses() -> list[str]:
    _discover()
    return sorted(_ANALYSES)


def create_analysis(name: str, **options: Any) -> Analysis:
    _discover()
    if name not in _ANALYSES:
        raise VitscopeError(
            f"There is no analysis {name!r}.{suggest(name, _ANALYSES)} Known: {', '.join(sorted(_ANALYSES))}."
        )
    try:
        return _ANALYSES[name](**options)
    except TypeError as error:
        raise VitscopeError(f"Analysis {name!r} does not take these options: {options} ({error}).") from error


def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """An accumulator."""
    return torch.zeros(shape, dtype=dtype)
