"""From what a user names to the analyses that run, with the reasons why some cannot."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch

from vitscope.analyses.attention_facts import check_points
from vitscope.analyses.base import Analysis, create_analysis, list_analyses
from vitscope.analyses.naming import members
from vitscope.analyses.patches.truth import grid_of
from vitscope.data import Data
from vitscope.data.segmentation.dataset import SegmentationData
from vitscope.data.transforms import plan
from vitscope.errors import UnlabelledError, UnsuitableDataError, UnsupportedModelError, VitscopeError
from vitscope.models import Model
from vitscope.tasks import task_of

Wanted = Iterable["str | Analysis"] | Mapping[str, Mapping[str, Any]]


def choose_analyses(wanted: Wanted | None, save: Sequence[str] = ()) -> list[Analysis]:
    """Names, `{name: options}` (as in config.yaml) or analyses -> new analyses. None: all that run by default."""
    chosen: list[Analysis]
    if wanted is None:
        chosen = [a for a in map(create_analysis, list_analyses()) if a.default]
    elif isinstance(wanted, Mapping):
        named = {str(name): options or {} for group, options in wanted.items() for name in members(group)}
        chosen = [create_analysis(name, **options) for name, options in named.items()]
    else:
        wanted = [wanted] if isinstance(wanted, str | Analysis) else wanted
        wanted = [name for item in wanted for name in (members(item) if isinstance(item, str) else [item])]
        chosen = [create_analysis(a) if isinstance(a, str) else a.fresh() for a in wanted]
    if save:
        chosen = [a for a in chosen if a.name != "save"] + [create_analysis("save", points=list(save))]
    names = [a.name for a in chosen]
    if "" in names:
        raise VitscopeError(
            f"{type(chosen[names.index('')]).__name__} has no name: decorate it with @register_analysis."
        )
    if doubled := sorted({n for n in names if names.count(n) > 1}):
        raise VitscopeError(f"Analysis {doubled[0]!r} is asked for twice; its tables would overwrite each other.")
    if not chosen:
        raise VitscopeError(f"No analysis is asked for. Known: {', '.join(list_analyses())}.")
    return chosen


def start_analyses(
    analyses: Sequence[Analysis], model: Model, data: Data, *, explicit: bool | Collection[str]
) -> tuple[list[Analysis], list[str]]:
    """Start each for this model -> (those that run, why the others do not).

    An analysis that the user named and that cannot run is an error. One that is only part of the default set is left
    out with a remark: `vitscope analyze` of a model without a head should still show its attention. What is about
    another task (perplexity, for pictures) is left out without one. explicit: were they named, all or these?
    """
    running, remarks, task = [], [], task_of(data)
    for analysis in analyses:
        check_init(analysis)
        named = explicit if isinstance(explicit, bool) else analysis.name in explicit
        if analysis.tasks and task.name not in analysis.tasks and not named:
            continue
        try:
            check_classes(analysis, data)  # before `start`, which is about the model
            analysis.start(model)
            check_sums(analysis)
            check_points(model, analysis.needs(model))
            if analysis.uses_labels:
                task.check(model, data)
            analysis.check_data(data)
            check_sizes(analysis, model, data)
        except (UnsupportedModelError, UnlabelledError, UnsuitableDataError) as error:
            if named:
                raise
            remarks.append(f"Analysis {analysis.name!r} was left out: {error}")
            continue
        running.append(analysis)
    if not running:
        raise UnsupportedModelError("No analysis can run here. " + " ".join(remarks))
    return running, remarks


def check_init(analysis: Analysis) -> None:
    """Raise where an `__init__` of one's own left out that of `Analysis`."""
    if missing := vars(Analysis()).keys() - vars(analysis).keys():
        raise VitscopeError(
            f"{type(analysis).__name__} lacks {', '.join(sorted(missing))}: begin its __init__ with super().__init__()."
        )


def check_sums(analysis: Analysis) -> None:
    """Raise where something to be added up is no tensor: it could not be saved, nor merged."""
    for key, value in analysis.sums.items():
        if not isinstance(value, torch.Tensor):
            raise VitscopeError(
                f"{type(analysis).__name__}.sums[{key!r}] is of type {type(value).__name__}; expected a tensor, such "
                "as zeros(1) of vitscope.analyses."
            )


def check_classes(analysis: Analysis, data: Data) -> None:
    """Raise where an analysis is made for another task, or looks for a class of each item where items have none."""
    task = task_of(data)
    if analysis.tasks and task.name not in analysis.tasks:
        raise UnsuitableDataError(
            f"{analysis.name} is made for {', '.join(analysis.tasks)}, and {data.name} is for {task.name}."
        )
    if analysis.uses_labels and not task.one_class:
        raise UnsuitableDataError(
            f"{analysis.name} looks for the class of each {task.words.item}, and {data.name} has none ({task.name})."
        )


def check_sizes(analysis: Analysis, model: Model, data: Data) -> None:
    """Raise where it looks inside, and whole pictures have other patches than it is made for, or several windows."""
    own = getattr(model.layout, "grid", None)
    if own is None or not isinstance(data, SegmentationData) or not analysis.needs(model):
        return
    for size in data.sizes():
        seen = plan(size, model.preprocess.whole()).resized
        model.check_whole(torch.empty(0, 3, *seen))
        if data.task not in analysis.tasks and (grid := grid_of(seen, model)) != own:
            raise UnsuitableDataError(
                f"{analysis.name} is made for the model's {own[0]}x{own[1]} patches, and a picture of {data.name} has "
                f"{grid[0]}x{grid[1]}. A model with the image_size of the pictures has as many."
            )
