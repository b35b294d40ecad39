"""Is key-value agreement more than chance? Against a class drawn at random, and of right against wrong answers.

* null: the same rate for another class than the true one, drawn for each image from (seed, image). `variant="code"`
  draws among all classes, the true one included, as published.
* right against wrong: the class token agrees (1) or not (0) in each image. Shuffling which images are right, as
  published, leaves all sums as they are but one: how many of the n agreeing images are among the right ones. Over all
  shuffles that number is hypergeometric, so the permutation test need not be drawn (it is Fisher's exact test):

      p = P(X >= x),   X ~ Hypergeometric(N images, n agreeing, R right)

  Published: p = r/300, r the number among 300 shuffles with a *larger* difference; its expectation is P(X > x).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from vitscope.statistics.intervals import newcombe
from vitscope.statistics.permutation import SHUFFLES


def drawn_classes(images: Iterable[int], labels: Tensor, classes: int, seed: int, other: bool = True) -> Tensor:
    """(B,) int64: for each image a class at random, the same whatever its company; another than its label if `other`.

    Where there is but one class, it is the label.
    """
    drawn = []
    for image, label in zip(images, labels.tolist()):
        generator = torch.Generator().manual_seed((seed * 1_000_003 + int(image) * 2_654_435_761 + 1) % 2**63)
        if other and classes > 1:
            number = int(torch.randint(0, classes - 1, (1,), generator=generator))
            drawn.append(number + (number >= label))
        else:
            drawn.append(int(torch.randint(0, classes, (1,), generator=generator)))
    return torch.tensor(drawn, dtype=torch.int64)


@dataclass(frozen=True)
class Outcome:
    """Agreement of rightly minus that of wrongly classified images, in [-1, 1]."""

    difference: float
    low: float  # 95 % interval (Newcombe 1998, from two Wilson intervals)
    high: float
    p: float  # one-sided: right images agree more
    p_published: float


def outcome_test(right_hits: int, right: int, wrong_hits: int, wrong: int) -> Outcome:
    """Right against wrong, from how many images agree (`hits`) among how many; both kinds must occur."""
    from scipy.stats import hypergeom

    low, high = newcombe(right_hits, right, wrong_hits, wrong)
    chance = hypergeom(right + wrong, right_hits + wrong_hits, right)
    larger = float(chance.sf(right_hits))
    p = min(1.0, larger + float(chance.pmf(right_hits)))
    return Outcome(right_hits / right - wrong_hits / wrong, low, high, p, round(SHUFFLES * larger) / SHUFFLES)
