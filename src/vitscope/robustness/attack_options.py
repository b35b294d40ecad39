"""A request to attack, as `vitscope attack`, `vitscope.attack` and `vitscope rerun` carry it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vitscope.analyses.options import CommaWords, Typed
from vitscope.analyses.request import Request, split_words
from vitscope.analyses.saved_request import ANALYZED, options_of_run
from vitscope.errors import VitscopeError
from vitscope.registry import ATTACKS
from vitscope.robustness.epsilons import parse_epsilons
from vitscope.runs.shape import check_saved

if TYPE_CHECKING:
    from vitscope.analyses.selection import Wanted
    from vitscope.data import ImageData
    from vitscope.models import Model

STUDY = ("norm", "steps", "cumulative", "protocol", "normalise", "lens", "lens_eps")  # as they are, beside the attacks
SAVED = {"attacks": {str: ({}, None)}, "eps": [str], **{f"{name}?": Any for name in STUDY}}
ATTACKED = {**ANALYZED, "analyses": {"attack?": SAVED, "segmentation.attack?": SAVED}}  # the configuration of a run
# what an attack on more than one class per item takes
OF_PIXELS = ("attacks", "eps", "norm", "steps", "normalise", "lens", "lens_eps")


@dataclass(frozen=True)
class AttackOptions(Request):
    """Attack models: accuracy against the attacker's budget, in pixels of [0, 1] and against the true labels.

    Stopped or killed, the same command goes on where it was. Several models give one report.
    """

    batch_size: int = 32  # images per pass; a backward pass keeps activations, about 15 MB per image of ViT-Tiny
    attacks: CommaWords = ("fgsm,pgd",)
    """noise, fgsm, pgd, spsa, sparse-l1; with the extra `attacks` also autoattack, apgd-ce, square, cw, hopskipjump"""
    eps: Annotated[tuple[str, ...], Typed("EPS")] = ("1/255..6/255",)
    """budgets of pixels in [0, 1]: 4/255, 1/255,2/255 or 1/255..6/255"""
    norm: Annotated[str, Typed("NORM")] = "linf"  # what a budget bounds: linf, l2 or l1
    steps: int | None = None  # steps of every attack that has steps; none: each one's own
    set: Annotated[Mapping[str, Any], Typed("ATTACK.OPTION=VALUE")] = field(default_factory=dict)
    """options of attacks, e.g. pgd.restarts=5"""
    cumulative: bool = False
    """leave images alone that a smaller budget has fooled: quicker, without the accuracy of each budget by itself"""
    protocol: Annotated[str, Typed("PROTOCOL")] = "pixels"
    """pixels; or published, to compare with published figures: normalised space, not clipped, the model's answers"""
    normalise: Annotated[str, Typed("WHERE")] = "auto"
    """where pixels are normalised: auto (as timm says), outside or inside the model"""
    lens: Annotated[bool | tuple[str, ...], Typed(kind=bool)] = False
    """look at clean and attacked images block by block: where is the decision lost?"""
    lens_eps: Annotated[str | None, Typed("EPS")] = None  # the budget at which the lens looks; none: the smallest

    @classmethod
    def _of_run(cls, config: Mapping[str, Any], directory: Path | None) -> dict[str, Any]:
        values = options_of_run(config, directory)
        check_saved(config, ATTACKED)
        study = dict(next(iter(config["analyses"].values())))
        attacks = study.pop("attacks")
        given = {f"{name}.{key}": value for name, options in attacks.items() for key, value in (options or {}).items()}
        return {**values, **study, "attacks": tuple(attacks), "set": given}

    def check(self) -> None:
        for name in split_words(self.attacks):
            ATTACKS.check_name(name)
        self.chosen()
        parse_epsilons(self.eps, self.norm)
        super().check()

    def chosen(self) -> dict[str, dict[str, Any]]:
        """{attack: options} from --attacks a,b and --set a.option=value, by name or by address."""
        called = ATTACKS.called if self.set else str
        names = [called(name) for name in split_words(self.attacks)]
        chosen: dict[str, dict[str, Any]] = {name: {} for name in names}
        if len(chosen) < len(names):
            raise VitscopeError(f"--attacks {','.join(names)}: an attack is named twice.")
        for path, value in self.set.items():
            name, _, option = path.rpartition(".")
            name = called(name)
            if name not in chosen:
                raise VitscopeError(
                    f"{path}={value}: expected ATTACK.OPTION=VALUE, such as pgd.restarts=5, for one of the attacks "
                    f"that run ({', '.join(chosen)})."
                )
            chosen[name][option] = value
        return chosen

    def study(self) -> dict[str, Any]:
        """The options of the analysis `attack`."""
        return {"attacks": self.chosen(), "eps": [*self.eps], **{name: getattr(self, name) for name in STUDY}}

    def analyses(self) -> Wanted:
        from vitscope.robustness.attack_study import AttackStudy

        return [AttackStudy(**self.study())]

    def suited(self, wanted: Wanted | None, data: Any) -> Wanted | None:
        """A task whose items are not of one class each has an attack of its own."""
        from vitscope.robustness.attack_lens import DEFAULT_LENS
        from vitscope.tasks import task_of

        if not (own := task_of(data).attack):
            return wanted
        (study,) = wanted or self.analyses()
        given, plain = study.options(), type(study)().options()  # type: ignore[union-attr]
        if more := [name for name in given if name not in OF_PIXELS and given[name] != plain[name]]:
            raise VitscopeError(f"{more[0]} is for items of one class each, and {data.name} has more: leave it out.")
        if given["lens"] and given["lens"] != list(DEFAULT_LENS):
            raise VitscopeError(f"{data.name} has one lens, that on patches: say lens=True (--lens), without names.")
        return {own: {**{name: given[name] for name in OF_PIXELS}, "lens": bool(given["lens"])}}

    def load(self, data: ImageData | None = None) -> ImageData:
        from vitscope.robustness.attacking import check_labels

        found = super().load(data)
        check_labels(found)
        return found

    def ready(self, model: Model) -> Model:
        """With bare pixels where it normalises inside."""
        from vitscope.robustness.target import normalised_where

        return normalised_where(model, self.normalise)[0]
