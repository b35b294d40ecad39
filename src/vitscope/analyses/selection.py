"""From what a user names to the analyses that run, with the reasons why some cannot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vitscope.analyses.base import Analysis, create_analysis, list_analyses
from vitscope.analyses.naming import members
from vitscope.errors import DataError, UnsuitableDataError, UnsupportedModelError, VitscopeError

if TYPE_CHECKING:
    from vitscope.data import ImageData
    from vitscope.models import Model


class UnlabelledError(DataError):
    """An analysis compares predictions with labels, and there are none."""


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
    analyses: Sequence[Analysis], model: Model, data: ImageData, *, explicit: bool
) -> tuple[list[Analysis], list[str]]:
    """Start each for this model -> (those that run, why the others do not).

    An analysis that the user named and that cannot run is an error. One that is only part of the default set is left
    out with a remark: `vitscope analyze` of a model without a head should still show its attention.
    """
    from vitscope.analyses.attention_facts import check_points

    running, remarks = [], []
    for analysis in analyses:
        try:
            analysis.start(model)
            check_points(model, analysis.needs(model))
            if analysis.uses_labels:
                check_classes(model, data)
            analysis.check_data(data)
        except (UnsupportedModelError, UnlabelledError, UnsuitableDataError) as error:
            if explicit:
                raise
            remarks.append(f"Analysis {analysis.name!r} was left out: {error}")
            continue
        running.append(analysis)
    if not running:
        raise UnsupportedModelError("No analysis can run here. " + " ".join(remarks))
    return running, remarks


def check_classes(model: Model, data: ImageData) -> None:
    """Labels only mean something to a head with the same classes."""
    if all(label < 0 for label in data.labels):
        raise UnlabelledError(
            f"None of the {len(data):,} images of {data.name} has a label. Put them into class folders; "
            "`vitscope analyze --only attention` needs no labels."
        )
    data.check_head(model.num_classes, model.name)


def match_classes(model: Model, data: ImageData) -> tuple[ImageData, str | None]:
    """Data whose labels count the head's classes, and a remark where names do not vouch for that.

    A model that knows the names of its classes is asked by name; a head of ImageNet's classes knows none.
    """
    mine, theirs = model.classes, list(data.classes)
    if mine is None:
        return data, _assumed_order(model, data)
    if mine == theirs or len(mine) != len(theirs):  # other numbers of classes: `check_classes`
        return data, None
    if len(set(mine)) == len(mine) and set(mine) == set(theirs):
        remark = (
            f"The model learned the classes in the order {_some(mine)}, the data has them in the order "
            f"{_some(theirs)}: labels follow their names."
        )
        return data.ordered_as(mine), remark
    return data, (
        f"The model was trained on classes called {_some(mine)}; those of the data are called {_some(theirs)}. They "
        "are compared by number."
    )


def _assumed_order(model: Model, data: ImageData) -> str | None:
    """Nothing but their order connects 1,000 classes without WordNet names with an ImageNet head."""
    from vitscope.data import synsets

    if model.num_classes != synsets.NUM_CLASSES or data.num_classes != synsets.NUM_CLASSES:
        return None
    if synsets.count_known(data.class_ids) == synsets.NUM_CLASSES:
        return None
    return (
        f"The 1,000 classes of {data.name} are not named by WordNet ids: {_some(data.classes)}, {data.classes[-1]} are "
        "taken for the classes 0, 1, 2, ..., 999 of the head, in this order."
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(str, names[:3])) + (", ..." if len(names) > 3 else "")
