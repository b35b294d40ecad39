"""`vitscope attack`: how easily do models break?"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from vitscope.analyses.request import AnalyzeOptions
from vitscope.cli.analyze import Words
from vitscope.cli.parsing import named, parse
from vitscope.cli.results import show
from vitscope.errors import VitscopeError

EXAMPLES = """\
  vitscope attack vit_tiny_patch16_224 --data path/to/imagenet --attacks fgsm,pgd --eps 1/255..6/255 --out runs/attack
  vitscope attack runs/softmax runs/rpc --data mnist5k --attacks noise,fgsm,pgd --eps 8/255,16/255,32/255 --steps 40
  vitscope attack runs/softmax --data mnist5k --attacks pgd --eps 16/255 --set pgd.restarts=5 pgd.momentum=0.9
  vitscope attack runs/softmax --data mnist5k --norm l2 --attacks pgd,cw --eps 0.5..3:0.5
  vitscope attack runs/softmax --data mnist5k --norm l1 --attacks sparse-l1 --eps 5,10,20
  vitscope attack vit_tiny_patch16_224 --data path/to/imagenet --attacks pgd --eps 1/255 --lens
  vitscope attack vit_tiny_patch16_224 --data path/to/imagenet --attacks autoattack --eps 4/255 --every 10 --cumulative
  vitscope attack vit_tiny_patch16_224 --data path/to/imagenet --attacks fgsm,pgd --protocol published
  torchrun --nproc_per_node 2 -m vitscope attack vit_tiny_patch16_224 --data path/to/imagenet --out runs/attack
"""


@dataclass(frozen=True)
class AttackOptions(Words):
    """Attack models: accuracy against the attacker's budget, in pixels of [0, 1] and against the true labels.

    Stopped or killed, the same command goes on where it was. Several models give one report.
    """

    only: tyro.conf.Suppress[tuple[str, ...] | None] = None
    config: tyro.conf.Suppress[str | None] = None
    save: tyro.conf.Suppress[tuple[str, ...]] = ()
    batch_size: int = 32
    """images per pass; a backward pass keeps activations"""
    attacks: Annotated[tuple[str, ...], named("A,B")] = ("fgsm,pgd",)
    """noise, fgsm, pgd, spsa, sparse-l1; with the extra `attacks` also autoattack, apgd-ce, square, cw, hopskipjump"""
    eps: Annotated[tuple[str, ...], named("EPS")] = ("1/255..6/255",)
    """budgets of pixels in [0, 1]: 4/255, 1/255,2/255 or 1/255..6/255"""
    norm: Annotated[str, named("NORM")] = "linf"
    """what a budget bounds: linf, l2 or l1"""
    steps: int | None = None
    """steps of every attack that has steps; none: each one's own"""
    set: Annotated[Mapping[str, Any], named("ATTACK.OPTION=VALUE")] = dataclasses.field(default_factory=dict)
    """options of attacks, e.g. pgd.restarts=5"""
    cumulative: bool = False
    """leave images alone that a smaller budget has fooled: quicker, without the accuracy of each budget by itself"""
    protocol: Annotated[str, named("PROTOCOL")] = "pixels"
    """pixels; or published, to compare with published figures: normalised space, not clipped, the model's answers"""
    normalise: Annotated[str, named("WHERE")] = "auto"
    """where pixels are normalised: auto (as timm says), outside or inside the model"""
    lens: bool = False
    """look at clean and attacked images block by block: where is the decision lost?"""
    lens_eps: Annotated[str | None, named("EPS")] = None
    """the budget at which the lens looks; none: the smallest"""


def main(arguments: Sequence[str]) -> None:
    options = parse(AttackOptions, "attack", arguments, EXAMPLES)
    from vitscope.robustness.epsilons import UnitError

    try:
        show(as_request(options).run(command=["vitscope", "attack", *arguments]))
    except UnitError as error:
        raise VitscopeError(f"{error} The command is then:\n  {corrected(arguments, error.instead)}") from error


def as_request(options: AttackOptions) -> AnalyzeOptions:
    """The same as a request to `analyze`, with bare pixels where the model normalises inside."""
    from vitscope.robustness.request import AttackRequest

    if options.only is not None or options.config is not None or options.save:
        raise VitscopeError("`vitscope attack` takes --attacks; --only, --config and --save belong to `analyze`.")
    mine = {f.name: getattr(options, f.name) for f in dataclasses.fields(AttackOptions)}
    base = {f.name: mine[f.name] for f in dataclasses.fields(AnalyzeOptions)}
    attacks = attack_options(options.attacks, options.set)
    study = {k: mine[k] for k in ("norm", "steps", "cumulative", "protocol", "normalise", "lens", "lens_eps")}
    chosen = {"attacks": attacks, "eps": list(options.eps), **study}
    return AttackRequest(**base | {"only": ("attack",), "set": {f"attack.{k}": v for k, v in chosen.items()}})


def attack_options(words: Sequence[str], given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """{attack: options} from --attacks a,b and --set a.option=value."""
    names = [name.strip() for word in words for name in word.split(",") if name.strip()]
    chosen: dict[str, dict[str, Any]] = {name: {} for name in names}
    if len(chosen) < len(names):
        raise VitscopeError(f"--attacks {','.join(names)}: an attack is named twice.")
    for path, value in given.items():
        name, _, option = path.rpartition(".")
        if name not in chosen:
            raise VitscopeError(
                f"{path}={value}: expected ATTACK.OPTION=VALUE, such as pgd.restarts=5, for one of the attacks that "
                f"run ({', '.join(chosen)})."
            )
        chosen[name][option] = value
    return chosen


def corrected(arguments: Sequence[str], eps: str) -> str:
    """The user's command with other epsilons."""
    words, skip = ["vitscope", "attack"], False
    for word in arguments:
        if word == "--eps" or word.startswith("--eps="):
            words += ["--eps", eps] if "--eps" not in words else []
            skip = True
        elif not skip or word.startswith("-"):
            words.append(word)
            skip = False
    return shlex.join(words)
