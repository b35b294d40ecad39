"""What a sweep will train: the grid of varied options times the seeds, each a run of its own with its own name."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from vitscope.errors import VitscopeError, suggest
from vitscope.sweeps.values import coerce, guess
from vitscope.training.options import TrainOptions
from vitscope.training.tracking import check_trackers

NOT_VARIED = {
    "out": "every run has a folder of its own",
    "seed": "give --seeds N",
    "overwrite": "it belongs to the whole sweep",
    "progress": "it changes nothing",
    "model_options": "name one of them, such as model_options.depth=4,7",
    "optimizer_options": "name one of them, such as optimizer_options.momentum=0,0.9",
    "probe_set": "it changes what is measured, not what is trained",
}
GROUPS = ("model_options", "optimizer_options")


@dataclass(frozen=True)
class PlannedRun:
    """One training of a sweep."""

    name: str  # of its folder
    settings: Mapping[str, Any]  # {varied option: its value here}
    options: TrainOptions

    @property
    def path(self) -> Path:
        return Path(self.options.out)


def parse_vary(words: Sequence[str]) -> dict[str, list[str]]:
    """['dropout=0.1,0.3', 'attention=softmax|rpc:layers=0,iterations=4'] -> {option: its values as typed}.

    Values are separated by commas, or, where one of them holds a comma, by '|'.
    """
    vary: dict[str, list[str]] = {}
    for word in words:
        name, equals, text = word.partition("=")
        name = name.strip().replace("-", "_")
        if not (name and equals and text):
            raise VitscopeError(f"--vary {word}: expected NAME=VALUE,VALUE,..., such as dropout=0.1,0.3,0.5.")
        values = [value.strip() for value in text.split("|" if "|" in text else ",")]
        twice = [value for value in values if values.count(value) > 1]
        if twice:
            raise VitscopeError(f"--vary {word}: the value {twice[0]!r} is there twice.")
        if name in vary:
            raise VitscopeError(f"--vary {name} is there twice: give all its values at once, separated by commas.")
        vary[name] = values
    return vary


def make_plan(
    options: TrainOptions, vary: Mapping[str, Sequence[Any]], seeds: int, folder: str | Path
) -> list[PlannedRun]:
    """Every combination of the values, with the seeds `options.seed`, +1, ...; names and values are checked.

    Values may be text, as typed, or what they mean.
    """
    if seeds < 1:
        raise VitscopeError(f"seeds={seeds} makes no sweep: expected at least 1.")
    model_names = model_option_names(options) if any(not n.startswith("optimizer_options.") for n in vary) else []
    axes = {name: [_value(name, value, model_names) for value in values] for name, values in vary.items()}
    for name, values in axes.items():
        if twice := [value for value in values if values.count(value) > 1]:
            raise VitscopeError(f"--vary {name}: the value {twice[0]!r} is there twice, in other words.")
    plan = []
    for combination in itertools.product(*axes.values()):
        settings = dict(zip(axes, combination))
        for seed in range(options.seed, options.seed + seeds):
            name = run_name(settings, seed)
            out = (Path(folder) / name).absolute()
            plan.append(PlannedRun(name, settings, _changed(options, settings, seed=seed, out=str(out))))
    return plan


def check_plan(plan: Sequence[PlannedRun]) -> None:
    """Build data, model and optimiser of every setting once: what cannot run is refused before anything starts."""
    from vitscope.training.probes import check_probes
    from vitscope.training.setup import build_model, build_optimizer, open_data
    from vitscope.training.texts import reads_text

    data: dict[tuple[Any, ...], Any] = {}
    checked: list[Mapping[str, Any]] = []
    for planned in plan:
        if planned.settings in checked:
            continue
        checked.append(planned.settings)
        o = planned.options
        try:
            check_trackers(o.track)
            key: tuple[Any, ...] = (o.data, str(o.root), o.train_split, o.test_split, o.share, o.batch_size)
            if reads_text(o.model):  # how texts are cut and numbered is said by these
                key = (*key, o.model, o.vocabulary, o.context, o.model_options.get("context"), str(o.weights))
            if key not in data:
                data[key] = open_data(o).train
            model = build_model(o, data[key])
            build_optimizer(o, model.module)
            check_probes(o, model)
        except VitscopeError as error:
            raise _of(planned.settings, error) from error


def check_values(options: TrainOptions, vary: Mapping[str, Sequence[str]]) -> None:
    """Refuse misspelt values of the options of `train` at once, without PyTorch. Those of models are judged later."""
    for name, values in vary.items():
        for value in values if name in get_type_hints(TrainOptions) else ():
            settings = {name: _value(name, value, ())}
            changed = _changed(options, settings)
            try:
                changed.check()
            except VitscopeError as error:
                raise _of(settings, error) from error


def _of(settings: Mapping[str, Any], error: VitscopeError) -> VitscopeError:
    """The error with the settings that it belongs to."""
    where = describe(settings)
    return type(error)(f"{where}: {error}" if where else str(error))


def describe(settings: Mapping[str, Any]) -> str:
    """'dropout=0.1, depth=7'; '' where nothing is varied."""
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def run_name(settings: Mapping[str, Any], seed: int) -> str:
    """A folder name that people can read: 'dropout-0.1_seed-0'. Values that are no file names get a short hash."""
    return "_".join([*(f"{name}-{_file_name(str(value))}" for name, value in settings.items()), f"seed-{seed}"])


def model_option_names(options: TrainOptions) -> list[str]:
    """What the model's constructor takes, found by building it without memory."""
    from vitscope.models.creation import option_names, sketch

    try:
        return option_names(options.model, sketch(options.model))
    except VitscopeError:  # an unknown model or option is explained where it is opened
        return []


def _value(name: str, value: Any, model_names: Sequence[str]) -> Any:
    """The value that is meant, or an error that suggests the nearest name or value."""
    if name in NOT_VARIED:
        raise VitscopeError(f"--vary {name}: {name} cannot be varied ({NOT_VARIED[name]}).")
    hints = get_type_hints(TrainOptions)
    if name in hints:
        return coerce(name, value, hints[name])
    group, _, inner = name.partition(".")
    if group == "model_options" and inner and model_names and inner not in model_names:
        raise VitscopeError(f"--vary {name}: the model has no option {inner!r}.{suggest(inner, model_names)}")
    if (group in GROUPS and inner) or name in model_names:
        return guess(value)
    known = [f.name for f in dataclasses.fields(TrainOptions) if f.name not in NOT_VARIED] + list(model_names)
    raise VitscopeError(
        f"--vary {name}: neither `vitscope train` nor the model has an option {name!r}.{suggest(name, known)} "
        "Options of the model and of the optimizer may also be named model_options.NAME and optimizer_options.NAME."
    )


def _changed(options: TrainOptions, settings: Mapping[str, Any], **others: Any) -> TrainOptions:
    changes: dict[str, Any] = dict(others)
    inner: dict[str, dict[str, Any]] = {group: dict(getattr(options, group)) for group in GROUPS}
    fields = {f.name for f in dataclasses.fields(TrainOptions)}
    for name, value in settings.items():
        group, _, key = name.partition(".")
        if name in fields:
            changes[name] = value
        elif key:
            inner[group][key] = value
        else:
            inner["model_options"][name] = value
    try:
        return replace(options, **{**changes, **inner})
    except VitscopeError as error:
        raise _of(settings, error) from error


def _file_name(text: str) -> str:
    safe = re.sub(r"[^A-Za-z0-9.+]+", "-", text).strip("-") or "none"
    if safe == text and len(safe) <= 40:
        return safe
    return f"{safe[:32]}-{hashlib.blake2b(text.encode(), digest_size=3).hexdigest()}"
