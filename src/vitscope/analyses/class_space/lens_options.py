"""The whole lens in one request: which analyses, with which options in common.

analyze(model, data, lens_analyses(control="random", train="path/to/ImageNetS919", train_split="test"))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from vitscope.analyses.options import CommaWords, Typed, with_values
from vitscope.analyses.request import StudyOptions, split_words
from vitscope.errors import VitscopeError, suggest

NAMES = {
    "identifiability": "class_space.identifiability",
    "composition": "class_space.composition",
    "memories": "class_space.memories",
    "lens": "class_space.lens",
    "perturbation": "perturbation",
    "probes": "probes",
    "relevance": "relevance",
    "importance": "importance",
}
ONE_PASS = ("identifiability", "composition", "memories", "lens")  # together about 2.5 forward passes per image


@dataclass(frozen=True)
class LensOptions(StudyOptions):
    """Read every token in class space: identifiability, composition, memories, perturbations, probes, relevance.

    Stopped or killed, the same command goes on where it was. Several models give one report.
    """

    parts: CommaWords | None = None
    """identifiability, composition, memories, lens, perturbation, probes, relevance, importance; none: all but the
    last two, of which relevance costs about a hundred forward passes per image (probes only with --train)"""
    tokens: Annotated[str, Typed("WHICH")] = "all"  # all, class or image; for probes also positions: class,mean or 0-20
    head: Annotated[str, Typed("HEAD")] = "own"
    """own, mean, class or distillation: how the two heads of a distilled model are used"""
    variant: Annotated[str, Typed("VARIANT")] = "exact"  # exact, or code for the published conventions
    train: Annotated[str | None, Typed("DATA")] = None  # images to train the probes on
    train_split: Annotated[str | None, Typed("SPLIT")] = None  # their split

    def parts_named(self) -> tuple[str, ...]:
        """Those of one pass, the perturbations, and the probes where they can be trained; or what was asked for."""
        for part in split_words(self.parts or ()):
            if part not in NAMES:
                raise VitscopeError(f"The lens has no part {part!r}.{suggest(part, NAMES)} Known: {', '.join(NAMES)}.")
        if self.parts is not None:
            return tuple(dict.fromkeys(split_words(self.parts)))
        perturbation = ["perturbation"] if self.tokens != "class" else []
        return (*ONE_PASS, *perturbation, *(["probes"] if self.train is not None else []))

    def by_analysis(self) -> dict[str, dict[str, Any]]:
        """{analysis: options}. `tokens` chooses what the one-pass parts project and which positions are probed."""
        common = {"head": self.head, "variant": self.variant, "control": self.control}
        found: dict[str, dict[str, Any]] = {"accuracy": {}}
        for part in self.parts_named():
            options: dict[str, Any] = dict(common)
            if part == "importance":
                del options["control"]  # which memories matter in random weights says nothing
            if part in ONE_PASS or part == "perturbation":
                options["tokens"] = self.tokens
            elif part == "probes":
                options |= {"train": self.train, "train_split": self.train_split, "tokens": self.tokens}
            elif part == "relevance" and self.variant == "code":
                options["steps"] = 0
            found[NAMES[part]] = options
        return found


def lens_analyses(parts: Sequence[str] | None = None, **given: Any) -> dict[str, dict[str, Any]]:
    """{analysis: options} for `analyze`, by the `parts`, `tokens`, `head`, ... and `control` of LensOptions."""
    return with_values(LensOptions(parts=None if parts is None else tuple(parts)), given).by_analysis()
