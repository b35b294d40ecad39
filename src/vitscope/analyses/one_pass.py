"""One forward pass per batch for all analyses together.

The points that any analysis needs are captured once; each block's are handed round as soon as the block is complete
and freed before the next. Ten analyses therefore cost one forward plus their own algebra, and no more memory than the
greediest of them needs for one block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from vitscope.analyses.base import Analysis, everyone
from vitscope.analyses.control import shared_twin, start_controls
from vitscope.capture import Cache
from vitscope.data import Data
from vitscope.data.batch import Batch
from vitscope.errors import NumericalError
from vitscope.models import Model
from vitscope.tasks.words import PICTURES


class OnePass:
    """What all analyses together want from a model, and the forward pass that gives it to them."""

    def __init__(self, model: Model, analyses: Sequence[Analysis]) -> None:
        self.model = model
        self.analyses = list(analyses)
        # Each analysis sees only what it asked for itself: its result must not depend on its company.
        self.wanted = [frozenset(_resolve(model, a.needs(model))) for a in analyses]
        self.names = _resolve(model, sorted(frozenset().union(*self.wanted)))
        self.items = next((a.setting.task.words.items for a in self.analyses), PICTURES.items)
        self.watched = [a for a in self.analyses if a.twin is not None]
        twins = [a.twin for a in self.watched if a.twin is not None]
        self.control = OnePass(shared_twin(model, twins[0].setting.seed), twins) if twins else None

    def __call__(self, batch: Batch) -> None:
        """Forward one batch, update every analysis. `batch.logits` is filled."""
        if len(batch) == 0:  # every image of it was unreadable
            return
        inputs = self.model.place(batch.inputs)

        def on_block(block: int, points: Cache) -> None:
            for analysis, wanted in zip(self.analyses, self.wanted):
                if mine := points.only(wanted):
                    analysis.update(block, mine, batch)

        with torch.no_grad():
            batch.outputs = self.model.stream(inputs, self.names, on_block)
            _check_finite(batch, self.items)
            if self.control is not None and any(analysis.concerns(batch) for analysis in self.watched):
                self.control(replace(batch, outputs=None, shared={}))
            for analysis in self.analyses:
                analysis.end_batch(batch)
            batch.shared.clear()

    def __repr__(self) -> str:
        return f"OnePass({len(self.analyses)} analyses, {len(self.names)} points)"


def measure(
    model: Model,
    batches: Iterable[Batch],
    analyses: Sequence[Analysis],
    *,
    on_batch: Callable[[Batch], None] | None = None,
    data: Data | None = None,
) -> None:
    """Start the analyses and feed them every batch: the core of `analyze`, without a run folder.

    The model is put into eval mode for the time of the call and every submodule gets its own mode back. Rows that an
    analysis emits stay in `analysis.rows`; over many images, let `on_batch` take them away. `data`: what the batches
    are of, for analyses that look at it beforehand.
    """
    for analysis in analyses:
        analysis.start(model)
    start_controls(model, analyses)
    for analysis in analyses if data is not None else ():
        analysis.prepare(data, model)  # type: ignore[arg-type]
    for analysis in everyone(analyses):
        analysis.begin()
    one_pass = OnePass(model, analyses)
    with evaluating(model.module):
        for batch in batches:
            one_pass(batch)
            forget_control_rows(analyses)
            if on_batch is not None:
                on_batch(batch)
            batch.outputs = None


def forget_control_rows(analyses: Iterable[Analysis]) -> None:
    """Rows per image are the model's own; an analysis that shows those of its twin has taken them by now."""
    for analysis in analyses:
        if analysis.twin is not None:
            analysis.twin.rows.clear()


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Eval mode inside the block; afterwards each submodule is in the mode it was in, frozen ones included."""
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for submodule, training in modes:
            submodule.training = training


def _resolve(model: Model, globs: Sequence[str]) -> list[str]:
    return model.resolve_points(globs) if globs else []


def _check_finite(batch: Batch, items: str) -> None:
    assert batch.logits is not None
    sums = batch.logits.sum(tuple(range(1, batch.logits.ndim)))  # (B,)
    if sums.isfinite().all():  # quicker than to look at each logit; a sum may overflow
        return
    bad = ~batch.logits.isfinite().flatten(1).all(1).cpu()  # (B,)
    if bad.any():
        paths = [batch.paths[i] for i in bad.nonzero().flatten().tolist()]
        more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
        raise NumericalError(
            f"The logits of {len(paths)} of {len(batch)} {items} in batch {batch.number} are NaN or infinite "
            f"({', '.join(paths[:3])}{more}). If it is all of them, look for NaN in the weights or for a precision "
            f"that overflows; if it is a few, look at those {items}."
        )
