"""What all class-space analyses have in common: the projector, the chosen tokens, shared readings, the control."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pandas as pd
from torch import Tensor

from vitscope.analyses.attention_facts import check_points
from vitscope.analyses.base import Analysis, zeros
from vitscope.analyses.class_space.projection import Heads, Projector
from vitscope.analyses.class_space.ranks import check_variant, ties_of
from vitscope.analyses.class_space.sharing import Readings, shared_readings
from vitscope.analyses.class_space.tokens import Selection, Tokens
from vitscope.analyses.control import SUFFIX, beside, check_control
from vitscope.data.batch import Batch
from vitscope.models import Model
from vitscope.statistics.clusters import COUNTS, FIELDS, Kind, Mean, cluster_sums, ratio

POINTS = ("resid_post", "attn_out", "mlp_out")
HOOKS = tuple(f"hook_{point}" for point in POINTS)


def with_control(*columns: str) -> tuple[str, ...]:
    """Columns and those that the control puts beside them, for `Analysis.optional`."""
    return (*columns, *(column + SUFFIX for column in columns))


def with_rows(tables: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Without tables that have no row: no image had a label, or the masks that they need."""
    return {name: table for name, table in tables.items() if len(table)}


class ClassSpaceAnalysis(Analysis):
    """Subclasses implement `start_sums`, `read`, `sum_up` and `tables`; here is what they share.

    `read` notes a few numbers per token while a block runs; `sum_up` adds those of all blocks at once when the batch
    ends: a few operations on large tensors instead of hundreds on small ones.

    tokens: all, class or image - which tokens are projected. head: how a distilled model's two heads are used.
    variant: 'exact', or 'code' for the published conventions. control: 'random' measures a random twin, too.
    """

    default = False  # asked for by name: it costs more than the forward pass itself
    uses_labels = True
    keys: ClassVar[Mapping[str, list[str]]] = {}  # table -> key columns, by which the control is put beside it

    def __init__(
        self,
        tokens: Tokens = "all",
        head: Heads = "own",
        variant: str = "exact",
        control: str | None = None,
    ) -> None:
        super().__init__()
        self.control = check_control(control)
        check_variant(variant)
        self.tokens, self.head, self.variant = tokens, head, variant

    @property
    def seed(self) -> int:
        return self.setting.seed

    # for subclasses

    def select(self, model: Model) -> Selection:
        return Selection(model.layout, self.tokens)

    def start_sums(self, model: Model) -> None:
        raise NotImplementedError

    def read(self, block: int, points: Mapping[str, Tensor], readings: Readings) -> None:
        raise NotImplementedError

    def sum_up(self, readings: Readings, batch: Batch) -> None:
        raise NotImplementedError

    # the contract

    def needs(self, model: Model) -> list[str]:
        return ["blocks.0.hook_resid_pre", *(f"blocks.*.hook_{point}" for point in POINTS)]

    def start(self, model: Model) -> None:
        self.projector = Projector(model, self.head)
        self.selection = self.select(model)
        self.layout = model.layout
        self.groups = self.selection.groups()
        check_points(model, self.needs(model))
        self._readings: Readings | None = None  # of the batch that is under way
        self.start_sums(model)

    def update(self, block: int, points: Mapping[str, Tensor], batch: Batch) -> None:
        if 0 <= block < self.layout.blocks:
            self._readings = shared_readings(self.projector, self.selection, ties_of(self.variant), batch)
            self.read(block, points, self._readings)

    def end_batch(self, batch: Batch) -> None:
        if self._readings is not None:
            self.sum_up(self._readings, batch)
            self._readings = None

    def with_control(
        self, own: Mapping[str, pd.DataFrame], control: Mapping[str, pd.DataFrame]
    ) -> dict[str, pd.DataFrame]:
        """The control's numbers as columns beside the model's, in the tables that have keys to match them by."""
        both = [name for name in self.keys if name in own and name in control]
        matched = {name: beside(own[name], control[name], list(self.keys[name])) for name in both}
        return {name: matched.get(name, table) for name, table in own.items()}

    # sums over clusters

    def start_clusters(self, name: str, values: int, *leading: int, groups: int | None = None) -> None:
        """groups: how many, where they are not the kinds of tokens."""
        g = len(self.groups) if groups is None else groups
        self.sums[f"{name}.counts"] = zeros(*leading, len(COUNTS), g)
        self.sums[f"{name}.values"] = zeros(*leading, len(FIELDS), values, g)

    def add_clusters(self, name: str, where: Any, values: Tensor, members: Tensor) -> None:
        """Values (..., V, B, n) of tokens with group members (B, G, n), at index `where` of the leading dimensions."""
        counts, fields = cluster_sums(values, members)
        self.sums[f"{name}.counts"][where].add_(counts)
        self.sums[f"{name}.values"][where].add_(fields)

    def mean_of(self, name: str, where: Any, value: int, group: int, kind: Kind = "number") -> Mean | None:
        """None where no token was seen."""
        sums = dict(zip(COUNTS, self.sums[f"{name}.counts"][where][:, group].tolist()))
        if sums["n"] == 0:
            return None
        sums |= zip(FIELDS, self.sums[f"{name}.values"][where][:, value, group].tolist())
        return ratio(sums, kind)
