"""A request for causes, as `vitscope causes` carries it out: which parts, with which options in common."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from vitscope.analyses.causes.pair_words import parse_pairs
from vitscope.analyses.options import CommaWords, Typed
from vitscope.analyses.request import StudyOptions, split_words
from vitscope.errors import VitscopeError, suggest
from vitscope.registry import ANALYSES

if TYPE_CHECKING:
    from vitscope.analyses.selection import Wanted

PARTS = ("attribution", "ablation", "patching")
ATTRIBUTION = "causes.attribution"


@dataclass(frozen=True)
class CausesOptions(StudyOptions):
    """Who did it? Split an answer over the parts of a model, switch parts off, exchange them between two inputs.

    Stopped or killed, the same command goes on where it was. Several models give one report.
    """

    batch_size: int = 16  # images per pass; three or four tensors of each block are kept for them
    parts: CommaWords | None = None  # attribution, ablation, patching; none: all, patching where --pairs are given
    pairs: Annotated[tuple[str, ...], Typed("PAIRS")] = ()
    """what an input is compared with: pgd@1/255 (any attack), corrupt:fog@3, class, mask, or swap (texts)"""
    method: Annotated[str, Typed("METHOD")] = "zero"  # of ablation: zero, or mean (a pass of its own over the data)
    tokens: Annotated[str, Typed("WHICH")] = "groups"
    """of the residual stream: groups (class, image, object, ...), or each, which takes a hundred times longer"""
    together: Annotated[tuple[str, ...], Typed("A+B")] = ()
    """parts that are switched off at once, such as 11.2+10.0 (heads) or attn.3+mlp.4, beside random ones"""
    paths: Annotated[tuple[str, ...], Typed("A>B")] = ()  # patching from head to head, such as '8.1>11.2:v'

    def parts_named(self) -> tuple[str, ...]:
        """What was asked for; or all that there are, patching where there are pairs."""
        known = [part for part in PARTS if f"causes.{part}" in ANALYSES.names()]
        asked = split_words(self.parts or ())
        for part in asked:
            if part not in known:
                raise VitscopeError(f"Causes have no part {part!r}.{suggest(part, known)} Known: {', '.join(known)}.")
        if not asked:
            return tuple(part for part in known if part != "patching" or self.pairs)
        return tuple(dict.fromkeys(asked))

    def by_analysis(self) -> dict[str, dict[str, Any]]:
        """{analysis: options}"""
        pairs = [parse_pairs(word).text for word in split_words(self.pairs)]
        parts = self.parts_named()
        for option, part in (("pairs", "patching"), ("paths", "patching"), ("together", "ablation")):
            if getattr(self, option) and part not in parts:
                raise VitscopeError(f"--{option} is for {part}, which is not among the parts: {', '.join(parts)}.")
        if "patching" in parts and not pairs:
            raise VitscopeError("Patching needs pairs: --pairs pgd@1/255, corrupt:fog@3, class, mask or swap.")
        options: dict[str, dict[str, Any]] = {
            "attribution": {},
            "ablation": {"method": self.method, "tokens": self.tokens, "together": [*split_words(self.together)]},
            "patching": {"pairs": pairs, "tokens": self.tokens, "paths": [*split_words(self.paths)]},
        }
        return {"accuracy": {}} | {f"causes.{part}": options[part] for part in parts}

    @property
    def explicit(self) -> bool | Collection[str]:
        """Attribution is for logits that are sums over parts: unless it was asked for, it may be left out."""
        return True if split_words(self.parts or ()) else {name for name in self.by_analysis() if name != ATTRIBUTION}

    def suited(self, wanted: Wanted | None, data: Any) -> Wanted | None:
        """Of texts, `accuracy` is `perplexity`."""
        from vitscope.tasks import task_of

        if isinstance(wanted, Mapping) and not task_of(data).one_class:
            return {task_of(data).evaluation if name == "accuracy" else name: o for name, o in wanted.items()}
        return wanted
