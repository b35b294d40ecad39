"""`evaluate`: models on clean images, on published out-of-distribution sets, and under corruption."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from vitscope.analyses.request import call
from vitscope.data import ImageData
from vitscope.data.segmentation.dataset import SegmentationData
from vitscope.data.text import TextData
from vitscope.errors import DataError, VitscopeError
from vitscope.models import Model
from vitscope.robustness.condition import CLEAN, CORRUPTED, Condition
from vitscope.robustness.corruptions.one_by_one import check_installed
from vitscope.robustness.evaluation.evaluate_options import EvaluateOptions
from vitscope.robustness.evaluation.shifted import ShiftedData
from vitscope.robustness.segmentation.conditions import SegmentationConditions
from vitscope.robustness.sets.registry import SetOptions, open_sets
from vitscope.robustness.text.changes import Change
from vitscope.robustness.text.conditions import TextConditions
from vitscope.runs import Run


def evaluate(
    model: Model | str | Path | nn.Module | Sequence[Any] | None = None,
    data: ImageData | str | Path | None = None,
    out: str | Path | None = None,
    *,
    options: EvaluateOptions | None = None,
    command: str | Sequence[str] | None = None,
    **given: Any,
) -> Run | list[Run]:
    """Measure how models break: accuracy and calibration per condition, each beside the clean images.

    model, out, command: as for `analyze`; a list of models gives a list of runs and one report.
    data: the clean images, from `load_data` or its first argument. Without them there is no column of differences.
    options, given: `EvaluateOptions`, whole or as keywords (ood={"A": folder}, corrupt="all", every=9); keywords win.

    Killed, the same call goes on; under torchrun the processes share the batches and merge exactly.
    """
    return call(EvaluateOptions.called_with(options, given, out), model, data, command=command)


def shifted_data(clean: ImageData | None, options: EvaluateOptions | None = None, **given: Any) -> ShiftedData:
    """All conditions that are asked for, as one set of pictures."""
    options = EvaluateOptions.called_with(options, given)
    folders, names, levels, read = options.asked()
    if options.elastic == "skip":
        names = tuple(name for name in names if name != "elastic_transform")
    check_installed(names)
    if isinstance(clean, SegmentationData):
        return corrupted_scenes(clean, names, levels, bool(folders), options)
    if not folders and not names:
        raise VitscopeError(
            "What shall the model be tried on? --ood A=DIR,R=DIR,C=DIR,O=DIR,V2=DIR,SKETCH=DIR names published sets, "
            "--corrupt all corrupts the images of --data, --labels DIR has label maps for them (of a segmenter)."
        )
    if clean is None and (names or "O" in folders):
        need = "--corrupt needs images to corrupt" if names else "ImageNet-O is told apart from clean images"
        raise VitscopeError(f"{need}: give --data, for example --data path/to/imagenet --split val.")
    if clean is not None and all(label < 0 for label in clean.labels):
        raise DataError(
            f"None of the {len(clean):,} images of {clean.name} has a label, so nobody can say which answers are "
            "right. Put the images into class folders, one folder per class; label maps for a segmenter: --labels DIR."
        )
    conditions = [Condition(CLEAN, clean)] if clean is not None else []
    conditions += open_sets(folders, SetOptions(options.ood_images, options.seed, options.strict, read, levels))
    if clean is not None:
        conditions += [Condition(CORRUPTED, clean, name, level) for name in names for level in levels]
    request = {
        "clean": clean.describe() if clean is not None else None,
        "ood": {letter: str(folder) for letter, folder in folders.items()},
        "ood_images": options.ood_images,
        "corrupt": list(names),
        "severities": list(levels),
        "c_corruptions": list(read) if "C" in folders else [],
    }
    return ShiftedData(conditions, options.seed, request)


def corrupted_scenes(
    clean: SegmentationData, names: Sequence[str], levels: Sequence[int], sets: bool, options: EvaluateOptions
) -> Any:
    """Pictures with label maps, as they are and under each corruption: `SegmentationConditions`."""
    if sets:
        raise VitscopeError("--ood names sets of images with one class each: --corrupt all corrupts these ones.")
    if not names:
        raise VitscopeError("elastic_transform is left out, and nothing else is asked for: add a corruption.")
    request: dict[str, Any] = {
        "ood": {},
        "ood_images": None,
        "corrupt": list(names),
        "severities": list(levels),
        "c_corruptions": [],
    }
    if options.elastic != "move":
        request["elastic"] = options.elastic
    return SegmentationConditions(clean, [(name, level) for name in names for level in levels], options.seed, **request)


def changed_texts(clean: Any, changes: Sequence[Change]) -> Any:
    """Texts as they are, and after each change, as one set of data: `TextConditions`."""
    texts = getattr(clean, "texts", clean)  # of windows: what they were cut from
    if not isinstance(texts, TextData):
        raise DataError(f"{clean.name} are no texts of `load_data`: --swap and --noise change the words of texts.")
    return TextConditions(texts, changes)
