"""The random-weights control: the same architecture, the same measure, weights that know nothing.

Where a figure is not far from the control's, it is a property of the architecture and not of what was learned.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import nn

from vitscope.analyses.base import Analysis
from vitscope.errors import VitscopeError

if TYPE_CHECKING:
    import pandas as pd

    from vitscope.data.batch import Batch
    from vitscope.models import Model

SUFFIX = "_control"
PREFIX = "control."  # of the twin's sums among ours


class ControlledAnalysis(Analysis):
    """An analysis with an option `control`: 'random' measures the random twin, too, in a pass of its own.

    `start` of a subclass ends with `start_control`, its `update` with `enlist_control`, its `end_batch` with
    `run_controls`; `tables` begins with `link_control` and puts the `own_tables` of the twin beside its own.
    """

    def __init__(self, control: str | None = None) -> None:
        super().__init__()
        if control not in (None, "random"):
            raise VitscopeError(f"control={control!r} is not known: expected 'random' or nothing.")
        self.control = control
        self._twin: ControlledAnalysis | None = None  # the same analysis of the random twin
        self._twin_model: Model | None = None

    def own_tables(self) -> dict[str, pd.DataFrame]:
        raise NotImplementedError

    def start_control(self, model: Model) -> None:
        if self.control:
            self._twin_model = shared_twin(model, self.setting.seed)
            self._twin = type(self)(**{**self.options(), "control": None})
            self._twin.setting = self.setting
            self._twin.start(self._twin_model)
            self.sums |= {PREFIX + key: value for key, value in self._twin.sums.items()}

    def begin(self) -> None:
        self.link_control()

    def link_control(self) -> None:
        """The twin adds to our sums: after a resume or a merge they are other tensors than before."""
        if self._twin is not None:
            self._twin.sums = {k.removeprefix(PREFIX): v for k, v in self.sums.items() if k.startswith(PREFIX)}

    def enlist_control(self, batch: Batch) -> None:
        """Ask for a pass of the twin over this batch; one pass serves all analyses."""
        if self._twin is not None and self._twin_model is not None:
            waiting = vars(batch).setdefault(SLOT, {}).setdefault(id(self._twin_model), (self._twin_model, []))[1]
            if self._twin not in waiting:
                waiting.append(self._twin)


def random_twin(model: Model, seed: int = 0) -> Model:
    """The same architecture with weights drawn as its builder draws them. The global random state is left alone.

    A head that is drawn as zeros (some families) gets small random weights: zeros have no ranks.
    """
    from vitscope.models import Model as ModelClass

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = _rebuilt(model)
        if module is None:
            module = copy.deepcopy(model.module)
            _draw(module)
        for head in (getattr(module, "head", None), getattr(module, "head_dist", None)):
            if isinstance(head, nn.Linear) and head.weight.detach().std() < 1e-4:
                nn.init.trunc_normal_(head.weight, std=0.02)
    module.eval().to(model.device)
    source = {**model.source, "weights": f"random, seed {seed}"}
    return ModelClass(module, f"{model.name} (random weights)", model.preprocess, source, classes=model.classes)


def _rebuilt(model: Model) -> nn.Module | None:
    """Built anew where the model was opened by name."""
    from vitscope.attention import convert_from_description
    from vitscope.models.creation import create

    if "options" not in model.source:
        return None
    options = {**model.source["options"], "num_classes": model.num_classes}
    module = create(str(model.source["name"]), **options)
    return convert_from_description(module, model.source.get("attention"))


def _draw(module: nn.Module) -> None:
    """timm's own scheme for ViTs, in place: normal weights of deviation 0.02, zero biases, norms and scales as new."""
    done: set[int] = set()
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv2d):
            nn.init.trunc_normal_(part.weight, std=0.02)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif "norm" in type(part).__name__.lower() and callable(getattr(part, "reset_parameters", None)):
            part.reset_parameters()  # type: ignore[operator]
        else:
            continue
        done.update(id(p) for p in part.parameters(recurse=False))
    for name, parameter in module.named_parameters():
        if id(parameter) not in done and "gamma" not in name:  # LayerScale keeps the size it has
            nn.init.trunc_normal_(parameter, std=0.02)


_TWINS: WeakKeyDictionary[Model, dict[int, Model]] = WeakKeyDictionary()
SLOT = "_control"  # where analyses put their controls on a batch


def shared_twin(model: Model, seed: int = 0) -> Model:
    """The random twin of a model, made once."""
    twins = _TWINS.setdefault(model, {})
    if seed not in twins:
        twins[seed] = random_twin(model, seed)
    return twins[seed]


def run_controls(batch: Batch) -> None:
    """One extra forward pass of each twin for all analyses that asked; does nothing when it was done already."""
    from vitscope.analyses.one_pass import OnePass

    logits = batch.logits
    for twin, analyses in vars(batch).pop(SLOT, {}).values():
        OnePass(twin, analyses)(batch)
        for analysis in analyses:
            analysis.rows.clear()  # per-image rows are the model's own
    batch.logits = logits


def beside(table: pd.DataFrame, control: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """The control's numbers as columns of their own, matched by the key columns."""
    values = [c for c in control.columns if c not in keys]
    renamed = control.rename(columns={c: c + SUFFIX for c in values})
    return table.merge(renamed, on=keys, how="left", validate="one_to_one")
