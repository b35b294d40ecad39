"""`vitscope lens`: where does a ViT know the class?"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from vitscope.analyses.request import AnalyzeOptions
from vitscope.cli.analyze import Words
from vitscope.cli.parsing import named, parse
from vitscope.cli.results import show
from vitscope.errors import VitscopeError

EXAMPLES = """\
  vitscope lens vit_tiny_patch16_224 --data path/to/imagenet --split val --control random --out runs/lens
  vitscope lens vit_tiny_patch16_224 --data path/to/ImageNetS919 --split validation \\
      --train path/to/ImageNetS919 --train-split test --out runs/lens
  vitscope lens vit_tiny_patch16_224 --data path/to/imagenet --tokens class
  vitscope lens vit_tiny_patch16_224 --data path/to/ImageNetS919 --split validation --parts relevance
  vitscope lens vit_tiny_patch16_224 --data path/to/ImageNetS919 --split validation --parts relevance \\
      --set relevance.block=3 relevance.attention_head=1 relevance.target=tabby
"""


@dataclass(frozen=True)
class LensOptions(Words):
    """Read every token in class space: identifiability, composition, memories, perturbations, probes, relevance.

    Stopped or killed, the same command goes on where it was. Several models give one report.
    """

    only: tyro.conf.Suppress[tuple[str, ...] | None] = None
    config: tyro.conf.Suppress[str | None] = None
    parts: Annotated[tuple[str, ...] | None, named("A,B")] = None
    """identifiability, composition, memories, lens, perturbation, probes, relevance, importance; none: all but the
    last two, of which relevance costs about a hundred forward passes per image (probes only with --train)"""
    tokens: Annotated[str, named("WHICH")] = "all"
    """all, class or image; for probes also positions: class,mean or 0-20"""
    head: Annotated[str, named("HEAD")] = "own"
    """own, mean, class or distillation: how the two heads of a distilled model are used"""
    variant: Annotated[str, named("VARIANT")] = "exact"
    """exact, or code for the published conventions"""
    control: Annotated[str | None, named("random")] = None
    """random: measure the same architecture with random weights, too, in columns of its own"""
    train: Annotated[str | None, named("DATA")] = None
    """images to train the probes on"""
    train_split: Annotated[str | None, named("SPLIT")] = None
    """their split"""


def main(arguments: Sequence[str]) -> None:
    request = as_request(parse(LensOptions, "lens", arguments, EXAMPLES))
    show(request.run(command=["vitscope", "lens", *arguments]))


def as_request(options: LensOptions) -> AnalyzeOptions:
    """The same as a request to `analyze`."""
    from vitscope.analyses.class_space.request import lens_analyses

    if options.only is not None or options.config is not None:
        raise VitscopeError("`vitscope lens` takes --parts; --only and --config belong to `vitscope analyze`.")
    parts = None
    if options.parts is not None:
        parts = [part.strip() for word in options.parts for part in word.split(",") if part.strip()]
    chosen = lens_analyses(
        parts,
        tokens=options.tokens,
        head=options.head,
        variant=options.variant,
        control=options.control,
        train=options.train,
        train_split=options.train_split,
    )
    given = {f"{name}.{key}": value for name, settings in chosen.items() for key, value in settings.items()}
    base = {field.name: getattr(options, field.name) for field in dataclasses.fields(AnalyzeOptions)}
    return AnalyzeOptions(**{**base, "only": tuple(chosen), "set": {**given, **options.set}})
