"""The random-weights control: the same architecture, the same measure, weights that know nothing.

Where a figure is not far from the control's, it is a property of the architecture and not of what was learnt. The
engine makes a twin of the model and of each analysis that asks for it (`control='random'`), passes every batch through
both, and puts their tables together (`Analysis.with_control`); an analysis itself knows nothing of it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from weakref import WeakKeyDictionary

import pandas as pd
import torch
from torch import nn

from vitscope.analyses.base import Analysis
from vitscope.attention import convert_from_description
from vitscope.errors import VitscopeError
from vitscope.models import Model
from vitscope.models.class_vectors import Embedding, take_over
from vitscope.models.creation import create

SUFFIX = "_control"


def check_control(control: str | None) -> str | None:
    if control not in (None, "random"):
        raise VitscopeError(f"control={control!r} is not known: expected 'random' or nothing.")
    return control


def start_controls(model: Model, analyses: Iterable[Analysis], control: str | None = None) -> None:
    """Give every analysis that wants a control its twin; `control='random'` gives one to all that can have it."""
    for analysis in analyses:
        analysis.twin = None
        if analysis.controllable and (control or analysis.control):
            twin = analysis.fresh()
            twin.name, twin.control = f"{analysis.name} (control)", None  # type: ignore[misc]
            twin.setting = replace(analysis.setting, control=True)
            twin.start(shared_twin(model, analysis.setting.seed))
            analysis.twin = twin


def random_twin(model: Model, seed: int = 0) -> Model:
    """The same architecture with weights drawn as its builder draws them. The global random state is left alone.

    A head that is drawn as zeros (some families) gets small random weights: zeros have no ranks.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = _rebuilt(model)
        if module is None:
            module = copy.deepcopy(model.module)
            _draw(module)
        if "class_vectors" in model.source:
            take_over(module, model.module)
        for head in (getattr(module, "head", None), getattr(module, "head_dist", None)):
            if isinstance(head, nn.Linear) and head.weight.detach().std() < 1e-4:
                nn.init.trunc_normal_(head.weight, std=0.02)
    module.eval().to(model.device)
    source = {**model.source, "weights": f"random, seed {seed}"}
    twin = Model(module, f"{model.name} (random weights)", model.preprocess, source, classes=model.classes)
    twin.layout = model.layout  # with what was said of it at opening, such as the separators of a tokenizer
    return twin


def _rebuilt(model: Model) -> nn.Module | None:
    """Built anew where the model was opened by name, or has a configuration that says all."""
    if model.row.text:
        built: nn.Module = type(model.module)(copy.deepcopy(model.module.config))
        return built.to(next(model.module.parameters()).dtype)
    if "options" not in model.source:
        return None
    options = {**model.source["options"], "num_classes": model.num_classes}
    if isinstance(tower := getattr(model.module, "fc_norm", None), Embedding):
        options["num_classes"] = getattr(tower.projection, "out_features", 0)
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


def shared_twin(model: Model, seed: int = 0) -> Model:
    """The random twin of a model, made once."""
    twins = _TWINS.setdefault(model, {})
    if seed not in twins:
        twins[seed] = random_twin(model, seed)
    return twins[seed]


def beside(table: pd.DataFrame, control: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """The control's numbers as columns of their own, matched by the key columns."""
    values = [c for c in control.columns if c not in keys]
    renamed = control.rename(columns={c: c + SUFFIX for c in values})
    return table.merge(renamed, on=keys, how="left", validate="one_to_one")
