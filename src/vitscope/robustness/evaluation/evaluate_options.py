"""What `evaluate` is asked for, in plain values: typed, called with, read from YAML, or repeated from a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from vitscope.analyses.options import Typed
from vitscope.analyses.request import Request
from vitscope.analyses.saved_request import ANALYZED, IMAGES, options_of_run, place_of
from vitscope.errors import VitscopeError
from vitscope.robustness.corruptions import parse_corruptions, parse_severities
from vitscope.robustness.sets.registry import check_folders, parse_sets
from vitscope.runs.shape import check_saved

if TYPE_CHECKING:
    from vitscope.analyses.selection import Wanted
    from vitscope.data import ImageData
    from vitscope.robustness.text.changes import Change

# the configuration of a run, as it is saved; the clean images are checked as those of `analyze`
CONDITIONS = {
    "name?": str, "split?": str, "n?": int, "num_classes?": int, "fingerprint?": str, "clean": ({}, None),
    "ood": {str: str}, "ood_images": (int, None), "corrupt": [str], "severities": [int], "c_corruptions": [str],
    "elastic?": str,
}  # fmt: skip
EVALUATED = {**ANALYZED, "data": CONDITIONS}
CHANGES = {"swap?": bool, "swap_share?": float, "swap_word?": str, "swap_unknown?": str, "noise?": float}
EVALUATED_TEXTS = {**ANALYZED, "data": {**IMAGES, **CHANGES}}
PATCHES = "segmentation.lens"
OF_CHANGES = tuple(name.removesuffix("?") for name in CHANGES)
OodFolders = Annotated[tuple[str, ...] | Mapping[str, Any], Typed("A=DIR,R=DIR,...", kind=tuple[str, ...])]


@dataclass(frozen=True)
class EvaluateOptions(Request):
    """How do models break? Published out-of-distribution sets, corruptions of any images, calibration.

    Stopped or killed, the same command goes on where it was. Several models give one report.
    """

    kind: ClassVar[str] = "evaluate"
    needs_data: ClassVar[bool] = False
    still_free: ClassVar[Mapping[str, Any]] = {"strict": False}  # the published sets are read strictly, too

    ood: OodFolders = ()
    """published sets by letter: A, R, C, O, V2, SKETCH, each in the layout in which it is distributed"""
    ood_images: int | None = None  # this many of each set, and of each corruption of ImageNet-C; none: all
    corrupt: Annotated[tuple[str, ...], Typed("all|NAME,...")] = ()
    """corruptions applied to --data on the fly: all, a family (noise, blur, weather, digital) or names"""
    severities: Annotated[tuple[str, ...], Typed("1-5")] = ("1-5",)
    """of --corrupt and of ImageNet-C, such as 3 or 1,3,5"""
    c_corruptions: Annotated[tuple[str, ...], Typed("NAME,...")] = ("all",)
    """folders of ImageNet-C to read; mCE needs all 15"""
    elastic: Literal["move", "skip"] = "move"  # elastic_transform moves label maps along, or is not tried
    swap: bool = False  # of texts: words of every line become another one, as published for WikiText-103
    swap_share: float = 0.015  # of a line's words, at least one; 0 changes nothing
    swap_word: str = "AAA"  # what they become
    swap_unknown: Literal["keep", "swap"] = "keep"  # is <unk> left alone, or a word like any other?
    noise: float | None = None  # of texts: this share of the letters becomes a neighbour on the keyboard, such as 0.02
    lens: bool = False
    """of changed texts: what changes in which block behind a changed word; of label maps: where patches lose a class"""

    def __post_init__(self) -> None:
        for name in ("ood", "corrupt", "severities", "c_corruptions"):
            value = getattr(self, name)
            if isinstance(value, str):
                object.__setattr__(self, name, (value,))
            elif name == "severities" and isinstance(value, list | tuple):
                object.__setattr__(self, name, tuple(map(str, value)))  # 3 means '3'
        super().__post_init__()

    @classmethod
    def _of_run(cls, config: Mapping[str, Any], directory: Path | None) -> dict[str, Any]:
        if config.get("task") and "clean" not in config["data"]:  # a task that has an evaluation of its own
            check_saved(config, EVALUATED_TEXTS)
            data = dict(config["data"])
            changes = {name: data.pop(name) for name in OF_CHANGES if name in data}
            changes["lens"] = "swapped.lens" in config["analyses"]
            return {**options_of_run({**config, "data": data}, directory), **changes}
        check_saved(config, EVALUATED)
        data = config["data"]
        base: dict[str, Any] = {"source": "", "split": None, "root": None, "images": None, "per_class": None}
        clean = {**base, "list_file": None, "share": 1.0, "masks": False, **(data["clean"] or {})}
        return {
            **options_of_run({**config, "data": clean}, directory),
            "ood": {letter: place_of(folder, directory) for letter, folder in data["ood"].items()},
            **{name: data[name] for name in ("ood_images", "corrupt", "severities")},
            "c_corruptions": data["c_corruptions"] or ("all",),
            "elastic": data.get("elastic", "move"),
            "lens": PATCHES in config["analyses"],
        }

    def asked(self) -> tuple[dict[str, Path], tuple[str, ...], tuple[int, ...], tuple[str, ...]]:
        """Folders of sets, corruptions, severities, folders of ImageNet-C; a misspelt word is answered at once."""
        folders = parse_sets(self.ood)
        check_folders(folders)
        corrupt, read = parse_corruptions(self.corrupt), parse_corruptions(self.c_corruptions)
        return folders, corrupt, parse_severities(self.severities), read

    def check(self) -> None:
        super().check()
        self.asked()
        self.changes()

    def changes(self) -> list[Change]:
        """What is done to texts."""
        from vitscope.robustness.text.changes import Typos, WordSwap

        plain = type(self)()
        named = [name for name in OF_CHANGES[1:4] if getattr(self, name) != getattr(plain, name)]
        if named and not self.swap:
            flag = named[0].replace("_", "-")
            raise VitscopeError(f"{named[0]} says how words are swapped: give swap=True (--swap --{flag} ...), too.")
        found: list[Change] = []
        if self.swap:
            found.append(WordSwap(self.swap_share, self.swap_word, self.swap_unknown, self.seed))
        if self.noise is not None:
            found.append(Typos(self.noise, self.seed))
        if self.lens and not found and not self.corrupt:
            raise VitscopeError(
                "lens lays changed texts or pictures beside clean ones: say what changes them (--swap or --noise for "
                "texts, --corrupt for pictures with label maps)."
            )
        return found

    def load(self, data: ImageData | None = None) -> ImageData:
        """All that the models are tried on, the clean images first."""
        from vitscope.robustness.evaluating import changed_texts, shifted_data

        if self.unit is None and (self.stride or self.joined or self.bos or self.windows):
            return replace(self, unit="windows").load(data)
        changes = self.changes()
        clean = super().load(data) if data is not None or self.data else None
        if clean is not None and self.own_evaluation(clean):
            # perplexity is that of windows unless something else is asked for
            if data is None and not self.unit and hasattr(clean, "unit"):
                return replace(self, unit="windows").load()
            return changed_texts(clean, changes) if changes else clean
        if changes and clean is not None and len(clean.classes) and hasattr(clean, "documents"):
            raise VitscopeError(
                f"--swap and --noise measure perplexity, and the texts of {clean.name} have classes: what a changed "
                "word does to these is not measured. Give texts without classes, such as --data pydoc."
            )
        if changes:
            raise VitscopeError("--swap and --noise change texts, and there are none: try --data pydoc --swap.")
        return shifted_data(clean, self)

    def own_evaluation(self, data: Any) -> str:
        """The analysis that is the evaluation of a task, where neither sets nor corruptions are asked for."""
        from vitscope.tasks import task_of

        whole = hasattr(data, "place")  # the conditions of a task that knows what to do with them
        return "" if (self.ood or self.corrupt) and not whole else task_of(data).evaluation

    def analyses(self) -> Wanted:
        from vitscope.robustness.evaluation.analysis import Evaluation

        return [Evaluation()]

    def suited(self, wanted: Wanted | None, data: Any) -> Wanted | None:
        if getattr(data, "changes", ()):
            return ["swapped.perplexity", *(["swapped.lens"] if self.lens else [])]
        own = self.own_evaluation(data)
        if self.lens and own != "segmentation":
            raise VitscopeError(f"lens reads changed texts or patches, and {data.name} has one class per image.")
        return [own, *([PATCHES] if self.lens else [])] if own else wanted
