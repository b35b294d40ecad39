"""What an analysis is: it names the points it needs and turns batches into tidy tables.

An analysis keeps sums, never activations. Everything it accumulates lives in `self.sums`, a dict of float64 or int64
tensors on the CPU that are only ever *added to*. From that alone follow, with no further code: saving, exact resume
after a kill, and exact merge across processes. What a bootstrap needs per image goes through `self.emit` and is
appended to disk by the engine.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pandas as pd
import torch
from torch import Tensor

from vitscope.data import Data
from vitscope.data.batch import Batch
from vitscope.lazy import renamed
from vitscope.models import Model
from vitscope.registry import ANALYSES, option_names
from vitscope.tasks import Classification, Task


@dataclass(frozen=True)
class Headline:
    """A headline number: a value never travels without its unit and the number of images behind it."""

    value: float
    unit: str  # '%', 'nats', 'px', ...
    n: int  # images
    note: str = ""  # protocol: which images, which variant


__getattr__ = renamed(__name__, {"Figure": "Headline"})  # figures are drawings now


@dataclass(frozen=True)
class Setting:
    """What the engine tells an analysis about the run it is part of. The defaults serve a loop of one's own."""

    classes: tuple[str, ...] = ()  # names of the data's classes, by label
    gallery: frozenset[int] = frozenset(range(8))  # images (Batch.indices) whose maps are shown in the report
    images: int | None = None  # how many images this process will see
    folder: Path | None = None  # the run folder
    rank: int = 0  # of this process
    world: int = 1  # processes that share the work
    seed: int = 0  # for whatever is drawn at random
    task: Task = field(default_factory=Classification)  # what is compared with what
    control: bool = False  # this one looks at the random twin of the model, beside another that looks at the model


class Analysis:
    """Subclass, decorate with `@register_analysis("name")`, and it exists everywhere: API, command line, report.

    Options are the keyword arguments of `__init__`; call `super().__init__()` there. They must be plain values
    (they are saved in config.yaml), each stored under its own name on `self`. An `__init__` with `**common` hands those
    of the class above on, and has them, too.
    """

    name: ClassVar[str] = ""
    default: ClassVar[bool] = True  # part of `analyze(...)` when no analyses are named
    optional: ClassVar[tuple[str, ...]] = ()  # columns where NaN says "undefined"; elsewhere it is an error
    uses_labels: ClassVar[bool] = False  # compares labels with logits: data and head must agree on the classes
    tasks: ClassVar[
        tuple[str, ...]
    ] = ()  # what it is about; with data of another task it is no part of the default set
    controllable: ClassVar[bool] = True  # can it look at random weights beside the model's own?
    control: str | None = None  # 'random': the engine measures the random twin of the model, too

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__signature__ = _with_common(cls)  # type: ignore[attr-defined]

    def __init__(self) -> None:
        self.setting = Setting()  # replaced by the engine before `start`
        self.sums: dict[str, Tensor] = {}
        self.rows: dict[str, list[pd.DataFrame]] = {}  # drained by the engine after every batch
        self.remarks: list[str] = []  # set in `start`: what a reader of the results must know; the report shows them
        self.twin: Analysis | None = None  # the same analysis of the random twin, where the engine has a control

    def needs(self, model: Model) -> Sequence[str]:
        """Globs of the point names wanted, e.g. `["blocks.*.attn.hook_pattern"]`."""
        return []

    def start(self, model: Model) -> None:
        """Allocate `self.sums` for this model. Raise VitscopeError if the model cannot be analysed."""

    def check_data(self, data: Data) -> None:
        """Raise UnsuitableDataError if these images cannot be analysed. Called after `start`, before a run begins."""

    def prepare(self, data: Data, model: Model) -> None:
        """Called once by the engine before the first batch, for what must be known of the data beforehand.

        Model-free, and the same in every process. Whoever calls `measure` himself calls this too.
        """

    def begin(self) -> None:
        """Called once before the first batch, after the sums of an interrupted run were put back.

        For analyses that write files of their own: cut them back here to what the sums say was written.
        """

    def flush(self) -> None:
        """Called before the sums are saved: bring files of one's own to disk."""

    def update(self, block: int, points: Mapping[str, Tensor], batch: Batch) -> None:
        """Called as soon as a block is complete, with those of its points that `needs` asked for, by full name.

        The tensors are the model's own: do not keep them and do not change them in place.
        Points outside the blocks (`hook_embed`, `ln_final.hook_normalized`) arrive with block -1 and block L.
        """

    def end_batch(self, batch: Batch) -> None:
        """Called once per batch after the forward pass; `batch.logits` is there now, and `twin` has seen the batch."""

    def concerns(self, batch: Batch) -> bool:
        """Does it look at any image of this batch? Where it does not, its twin is spared a pass."""
        return True

    def merge(self, other: Analysis) -> None:
        """Add another process's sums to ours, and those of its control to those of ours."""
        if self.twin is not None and other.twin is not None:
            self.twin.merge(other.twin)
        for key, value in other.sums.items():
            if key in self.sums:
                self.sums[key] = self.sums[key] + value
            else:
                self.sums[key] = value.clone()

    def tables(self) -> dict[str, pd.DataFrame]:
        """Tidy tables by name: one row per observation, no lists in cells. Call any number of times."""
        return {}

    def with_control(
        self, own: Mapping[str, pd.DataFrame], control: Mapping[str, pd.DataFrame]
    ) -> dict[str, pd.DataFrame]:
        """Own tables and those of the control as one set: by default the latter are called NAME_control."""
        return dict(own) | {f"{name}_control": table for name, table in control.items()}

    def summary(self) -> dict[str, Headline]:
        """Headline figures by name."""
        return {}

    def answers(self) -> tuple[int, int] | None:
        """(right, counted) of the images as they are, where it counts them: near chance, the engine remarks it."""
        return None

    def options(self) -> dict[str, Any]:
        """What `__init__` was given, for config.yaml."""
        return {name: getattr(self, name) for name in option_names(type(self))}

    def fresh(self) -> Analysis:
        """A new one with the same options and nothing counted."""
        return type(self)(**self.options())

    def emit(self, table: str, rows: pd.DataFrame) -> None:
        """Append per-image rows to `tables/<table>.csv`. The first column must be `image` (Batch.indices)."""
        self.rows.setdefault(table, []).append(rows)

    def add(self, key: str, value: Tensor) -> None:
        """`self.sums[key] += value`, in the accumulator's dtype."""
        acc = self.sums[key]
        acc += value.detach().to("cpu", acc.dtype)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.options().items())})"


def tables_of(analysis: Analysis) -> dict[str, pd.DataFrame]:
    """The tables of an analysis, and with them those of its control where there is one."""
    tables = analysis.tables()
    return tables if analysis.twin is None else analysis.with_control(tables, analysis.twin.tables())


def everyone(analyses: Iterable[Analysis]) -> list[Analysis]:
    """The analyses and their twins: all whose sums are saved, restored and merged."""
    return [one for a in analyses for one in (a, a.twin) if one is not None]


A = TypeVar("A", bound=type[Analysis])


def register_analysis(name: str) -> Callable[[A], A]:
    """Class decorator: make an analysis known under `name` (`accuracy`, `kpca.spectrum`)."""
    return ANALYSES.named(name)


list_analyses = ANALYSES.names


def create_analysis(name: str, **options: Any) -> Analysis:
    """An analysis by its registered name, or by `package.module:Class` for one outside this package."""
    return ANALYSES.create(name, options)


def _with_common(cls: type[Analysis]) -> inspect.Signature:
    """What a class takes: the parameters of its `__init__` and, where that has `**common`, those of the class above."""
    own = list(inspect.signature(cls.__init__).parameters.values())[1:]
    if not own or own[-1].kind is not inspect.Parameter.VAR_KEYWORD:
        return inspect.Signature(own)
    above = inspect.signature(cls.__mro__[1]).parameters.values()
    common = [p for p in above if p.name not in {q.name for q in own}]
    return inspect.Signature([p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*common, *own[:-1])])


def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """An accumulator."""
    return torch.zeros(shape, dtype=dtype)
