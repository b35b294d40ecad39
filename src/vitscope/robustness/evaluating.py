"""`evaluate`: models on clean images, on published out-of-distribution sets, and under corruption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitscope.errors import DataError, VitscopeError
from vitscope.robustness.condition import CLEAN, CORRUPTED, Condition
from vitscope.robustness.corruptions import COMMON, SEVERITIES, parse_corruptions, parse_severities
from vitscope.robustness.sets.registry import SetOptions, check_folders, open_sets, parse_sets

if TYPE_CHECKING:
    from torch import nn

    from vitscope.data import ImageData
    from vitscope.models import Model
    from vitscope.robustness.evaluation.shifted import ShiftedData
    from vitscope.runs import Run

KIND = "evaluate"


def evaluate(
    model: Model | str | Path | nn.Module | Sequence[Any],
    data: ImageData | str | Path | None = None,
    out: str | Path | None = None,
    *,
    ood: Mapping[str, str | Path] | str | Sequence[str] | None = None,
    corrupt: str | Sequence[str] = (),
    severities: str | Sequence[int | str] = SEVERITIES,
    c_corruptions: str | Sequence[str] = COMMON,
    ood_images: int | None = None,
    split: str | None = None,
    images: int | None = None,
    every: int = 1,
    strict: bool = False,
    seed: int = 0,
    **how: Any,
) -> Run | list[Run]:
    """Measure how models break: accuracy and calibration per condition, each beside the clean images.

    model: as for `analyze`; a list gives a list of runs and one report.
    data: the clean images, from `load_data` or its first argument. Without them there is no column of differences.
    ood: {letter: folder} of published sets: A, R, C, O, V2, SKETCH.
    corrupt: 'all', families or names of corruptions that are applied to `data` on the fly, at the model's input size.
    severities: of `corrupt` and of ImageNet-C, 1 to 5. c_corruptions: folders of ImageNet-C to read.
    ood_images: this many images of each set and of each corruption of ImageNet-C.
    how: options of `analyze`: weights, device, report, batch_size, workers, gallery, save_every, overwrite, progress.

    Killed, the same call goes on; under torchrun the processes share the batches and merge exactly.
    """
    from vitscope.analyses import analyze
    from vitscope.data import load_data
    from vitscope.robustness.evaluation.analysis import Evaluation

    if isinstance(data, str | Path):
        data = load_data(data, split, images=images, every=every, seed=seed, strict=strict)
    elif split is not None or images is not None or every != 1:
        raise VitscopeError(
            "`split`, `images` and `every` choose among data that are named: give them to load_data instead."
        )
    shifted = shifted_data(
        data,
        ood=ood,
        corrupt=corrupt,
        severities=severities,
        c_corruptions=c_corruptions,
        ood_images=ood_images,
        strict=strict,
        seed=seed,
    )
    return analyze(model, shifted, [Evaluation()], out, seed=seed, kind=KIND, **how)


@dataclass(frozen=True)
class Asked:
    """What the models shall be tried on, as it was meant."""

    folders: Mapping[str, Path]  # of published sets
    corrupt: Sequence[str]
    severities: Sequence[int]
    c_corruptions: Sequence[str]

    @classmethod
    def parse(
        cls,
        ood: Mapping[str, str | Path] | str | Sequence[str] | None,
        corrupt: str | Sequence[str],
        severities: str | Sequence[int | str],
        c_corruptions: str | Sequence[str],
    ) -> Asked:
        """From words; a misspelt one is answered without PyTorch."""
        folders = parse_sets(ood)
        check_folders(folders)
        return cls(folders, parse_corruptions(corrupt), parse_severities(severities), parse_corruptions(c_corruptions))


def shifted_data(
    clean: ImageData | None,
    *,
    ood: Mapping[str, str | Path] | str | Sequence[str] | None = None,
    corrupt: str | Sequence[str] = (),
    severities: str | Sequence[int | str] = SEVERITIES,
    c_corruptions: str | Sequence[str] = COMMON,
    ood_images: int | None = None,
    strict: bool = False,
    seed: int = 0,
) -> ShiftedData:
    """All conditions that are asked for, as one set of pictures."""
    from vitscope.robustness.corruptions.one_by_one import check_installed
    from vitscope.robustness.evaluation.shifted import ShiftedData

    asked = Asked.parse(ood, corrupt, severities, c_corruptions)
    folders, names, levels, read = asked.folders, asked.corrupt, asked.severities, asked.c_corruptions
    check_installed(names)
    if not folders and not names:
        raise VitscopeError(
            "What shall the model be tried on? --ood A=DIR,R=DIR,C=DIR,O=DIR,V2=DIR,SKETCH=DIR names published sets, "
            "--corrupt all corrupts the images of --data."
        )
    if clean is None and (names or "O" in folders):
        need = "--corrupt needs images to corrupt" if names else "ImageNet-O is told apart from clean images"
        raise VitscopeError(f"{need}: give --data, for example --data path/to/imagenet --split val.")
    if clean is not None and all(label < 0 for label in clean.labels):
        raise DataError(
            f"None of the {len(clean):,} images of {clean.name} has a label, so nobody can say which answers are "
            "right. Put the images into class folders, one folder per class."
        )
    conditions = [Condition(CLEAN, clean)] if clean is not None else []
    conditions += open_sets(folders, SetOptions(ood_images, seed, strict, read, levels))
    if clean is not None:
        conditions += [Condition(CORRUPTED, clean, name, level) for name in names for level in levels]
    request = {
        "clean": clean.describe() if clean is not None else None,
        "ood": {letter: str(folder) for letter, folder in folders.items()},
        "ood_images": ood_images,
        "corrupt": list(names),
        "severities": list(levels),
        "c_corruptions": list(read) if "C" in folders else [],
    }
    return ShiftedData(conditions, seed, request)
