"""What `evaluate` is asked for, in plain values: typed on the command line, or repeated from a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vitscope.analyses.request import ANALYZED, AnalyzeOptions, place_of
from vitscope.errors import VitscopeError
from vitscope.robustness.evaluating import KIND, Asked, shifted_data
from vitscope.runs.shape import check_saved

if TYPE_CHECKING:
    from vitscope.analyses.selection import Wanted
    from vitscope.data import ImageData

# the configuration of a run, as it is saved; the clean images are checked as those of `analyze`
CONDITIONS = {
    "name?": str, "split?": str, "n?": int, "num_classes?": int, "fingerprint?": str, "clean": ({}, None),
    "ood": {str: str}, "ood_images": (int, None), "corrupt": [str], "severities": [int], "c_corruptions": [str],
}  # fmt: skip
EVALUATED = {**ANALYZED, "data": CONDITIONS}


@dataclass(frozen=True)
class EvaluateOptions(AnalyzeOptions):
    """How do models break? Published out-of-distribution sets, corruptions of any images, calibration.

    Stopped or killed, the same command goes on where it was. Several models give one report.
    """

    kind: ClassVar[str] = KIND
    needs_data: ClassVar[bool] = False

    ood: tuple[str, ...] = ()  # published sets: A=DIR,R=DIR,C=DIR,O=DIR,V2=DIR,SKETCH=DIR
    ood_images: int | None = None  # this many of each set, and of each corruption of ImageNet-C; none: all
    corrupt: tuple[str, ...] = ()  # corruptions applied to --data on the fly: all, noise, blur, weather, digital, names
    severities: tuple[str, ...] = ("1-5",)  # of --corrupt and of ImageNet-C
    c_corruptions: tuple[str, ...] = ("all",)  # folders of ImageNet-C to read; mCE needs all

    def check(self) -> None:
        super().check()
        Asked.parse(self.ood, self.corrupt, self.severities, self.c_corruptions)

    def load(self) -> ImageData:
        """All that the models are tried on, the clean images first."""
        return shifted_data(
            super().load() if self.data else None,
            ood=self.ood,
            corrupt=self.corrupt,
            severities=self.severities,
            c_corruptions=self.c_corruptions,
            ood_images=self.ood_images,
            strict=self.strict,
            seed=self.seed,
        )

    def analyses(self) -> Wanted:
        from vitscope.robustness.evaluation.analysis import Evaluation

        if self.only or self.set or self.save:
            raise VitscopeError("`vitscope evaluate` takes no --only, --set and --save: they belong to `analyze`.")
        return [Evaluation()]


def options_of_run(config: Mapping[str, Any], directory: Path | None) -> EvaluateOptions:
    """The request behind the configuration of a run, for `vitscope rerun`."""
    check_saved(config, EVALUATED)
    data = config["data"]
    base: dict[str, Any] = {"source": "", "split": None, "root": None, "images": None, "per_class": None}
    clean = {**base, "list_file": None, "share": 1.0, "masks": False, **(data["clean"] or {})}
    plain = AnalyzeOptions.from_config({**config, "data": clean, "analyses": {}}, directory)
    values = {f.name: getattr(plain, f.name) for f in dataclasses.fields(plain) if f.name not in ("only", "set")}
    return EvaluateOptions(
        **values,
        ood=tuple(f"{letter}={place_of(folder, directory)}" for letter, folder in data["ood"].items()),
        ood_images=data["ood_images"],
        corrupt=tuple(data["corrupt"]),
        severities=tuple(map(str, data["severities"])),
        c_corruptions=tuple(data["c_corruptions"]) or ("all",),
    )
