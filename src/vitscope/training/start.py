"""Fine-tuning: the weights of another training put into the model that is to learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitscope.attention import convert_from_description, describe_attention
from vitscope.errors import WeightsError
from vitscope.models import Model, Preprocess, open_model
from vitscope.models.creation import check_at_hand
from vitscope.models.fitting import fit, fits, in_order
from vitscope.models.learnt_lens import without_lenses
from vitscope.models.naming import is_trained
from vitscope.models.published import check_arguments
from vitscope.models.weights import check_finite, check_types, load_into, read_weights, sha256
from vitscope.training.options import TrainOptions


def start_from(options: TrainOptions, settings: Mapping[str, Any], classes: Sequence[str] = ()) -> Model:
    """The model of the options with `options.weights`, fitted to it. `source` says what had to be changed.

    `classes` are those of the data: a head that learnt the same ones in another order is put into theirs.

    Weights with softmax attention are put in before the model is converted to `options.attention`, which takes over
    their projections; weights that were trained with that attention are put in afterwards.
    """
    start = _read(options)
    state, moved = _in_order(without_lenses(start.state), start.classes, list(classes))
    build = partial(open_model, options.model, "random", seed=options.seed, **settings)
    model = build()
    check_types(model.module.state_dict(), state, str(options.weights))  # before anything is resampled
    fitted, changes = fit(state, model.module)
    if not options.attention or fits(fitted, model.module):
        load_into(model.module, fitted, str(options.weights))
        if options.attention:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(options.seed)
                convert_from_description(model.module, options.attention)
            changes.append(f"attention converted to {options.attention}")
    else:
        model = build(attention=options.attention)
        fitted, changes = fit(state, model.module)
        load_into(model.module, fitted, str(options.weights))
    check_finite(model.module, str(options.weights))
    stated = [*settings, *(["attention"] if options.attention else [])]
    check_arguments(model.module, start.state, start.arguments, str(options.weights), stated)
    if options.evaluate and changes:
        raise WeightsError(f"{options.weights} cannot be evaluated as it is on {options.data}: {'; '.join(changes)}.")
    changes += moved
    source = {"name": options.model, **start.origin, **({"fitted": changes} if changes else {})}
    if options.attention:
        source["attention"] = describe_attention(model.module)
    if model.row.text:  # the vocabulary is that of the data
        return Model(model.module, options.model, model.preprocess, source, start.remarks)
    recipe, size = start.preprocess or model.preprocess, model.preprocess.input_size
    return Model(model.module, options.model, _for_size(recipe, size), source, start.remarks)


def _for_size(recipe: Preprocess, size: tuple[int, int, int]) -> Preprocess:
    """The same preprocessing for another input size; other channels get the mean of what there was."""
    if size[0] == recipe.input_size[0]:
        return replace(recipe, input_size=size)
    mean, std = ((sum(values) / len(values),) * size[0] for values in (recipe.mean, recipe.std))
    return replace(recipe, input_size=size, mean=mean, std=std)


@dataclass(frozen=True)
class _Start:
    """Given weights, and what is known of them."""

    state: dict[str, Tensor]
    origin: dict[str, Any]  # what a run records
    preprocess: Preprocess | None = None
    classes: list[str] | None = None  # those that they learned
    remarks: Sequence[str] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of the training


def check_weights_at_hand(options: TrainOptions) -> None:
    """Refuse options of a file that would fetch weights, of the model or of its teacher."""
    names = [options.model] if str(options.weights) == "pretrained" else []
    if options.teacher and options.teacher_weights is None and not is_trained(options.teacher):
        names.append(options.teacher)
    for name in names:
        check_at_hand(name)


def _read(options: TrainOptions) -> _Start:
    path = Path(str(options.weights))
    if str(options.weights) == "pretrained":
        model = open_model(options.model)
        return _Start(model.module.state_dict(), {"weights": "timm pretrained"}, model.preprocess)
    if is_trained(path):
        model = open_model(path, use_ema=options.use_ema)
        source = {key: model.source[key] for key in ("run", "weights", "sha256")}
        return _Start(model.module.state_dict(), source, model.preprocess, model.classes, model.notes)
    file = read_weights(path, options.use_ema)
    origin = {"weights": path.name, "sha256": sha256(path), **file.origin}
    return _Start(file.state, origin, remarks=file.remarks(path), arguments=file.arguments)


def _in_order(
    state: dict[str, Tensor], learned: list[str] | None, classes: list[str]
) -> tuple[dict[str, Tensor], list[str]]:
    """The heads' rows in the order of the data's classes, where the weights learnt just these."""
    if learned is None or learned == classes or sorted(learned) != sorted(classes) or len(set(classes)) < len(classes):
        return state, []
    rows = [learned.index(name) for name in classes]
    return in_order(state, rows), ["rows of the head put into the order of the data's classes"]
