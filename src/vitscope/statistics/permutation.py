"""Is a difference between two kinds of tokens more than chance? A randomisation test whose unit is the image.

Every image gives one number d_i: the mean over its class-labelled tokens minus the mean over its context tokens. If the
labels mean nothing, d_i is as likely to be -d_i. So the signs are flipped at random, image by image, and the sum is
compared with the one observed:

    p = (r + 1) / (n + 1),   r = number of the n random sign patterns with a sum at least as large

(Phipson & Smyth 2010: a p of 0 cannot come from a finite number of permutations.) Shuffling tokens between images, as
published, treats the tokens of one image as independent and calls anything significant; `pooled_test` is that test.

The signs of an image are a function of (seed, image), so the sums over images can be streamed, resumed and merged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

SHUFFLES = 300  # of the published test


def image_signs(images: Iterable[int], permutations: int, seed: int) -> Tensor:
    """(B, P) float64 of +-1, the same for an image whatever its company."""
    rows = []
    for image in images:
        generator = torch.Generator().manual_seed((seed * 1_000_003 + int(image) * 2_654_435_761) % 2**63)
        rows.append(torch.randint(0, 2, (permutations,), generator=generator, dtype=torch.int8))
    if not rows:
        return torch.zeros(0, permutations, dtype=torch.float64)
    return torch.stack(rows).double() * 2 - 1


def p_greater(observed: Tensor, permuted: Tensor) -> Tensor:
    """Observed (...), permuted (P, ...) -> one-sided p (...). Ties count against us, to rounding."""
    return _p(observed, permuted)


def p_two_sided(observed: Tensor, permuted: Tensor) -> Tensor:
    return _p(observed.abs(), permuted.abs())


def _p(observed: Tensor, permuted: Tensor) -> Tensor:
    # A pattern of signs that equals the observed one up to rounding of the sum is a tie, hence the slack.
    slack = 1e-9 * permuted.abs().amax(0).clamp(min=1e-300)
    as_large = (permuted >= observed - slack).sum(0)
    return (as_large + 1).double() / (permuted.shape[0] + 1)


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down correction: the chance of any false alarm among all tests stays below the level.

    S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6 (1979).
    """
    order = sorted(range(len(p)), key=lambda i: p[i])
    corrected, largest = [0.0] * len(p), 0.0
    for place, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p) - place) * p[i]))
        corrected[i] = largest
    return corrected


def group_difference(values: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over `first` minus mean over `second`, per image: values (..., B, n), members (B, n) -> (..., B) and valid.

    Images that lack one of the two have no difference; theirs is 0 and not valid (B,).
    """
    a, b = first.sum(-1), second.sum(-1)  # (B,)
    valid = (a > 0) & (b > 0)
    values = values.double()
    difference = (values * first).sum(-1) / a.clamp(min=1) - (values * second).sum(-1) / b.clamp(min=1)
    return torch.where(valid, difference, 0.0), valid


def pooled_test(n: Sequence[float], totals: Sequence[float], squares: Sequence[float]) -> tuple[float, float]:
    """The published test: tokens of all images pooled, their labels shuffled 300 times, p = r/300. -> difference, p.

    n, totals, squares: number, sum and sum of squares of the values of both kinds of tokens. The difference of means
    over shuffled labels has mean 0 and variance S^2 (1/n_1 + 1/n_2), S^2 the variance of the pool with N - 1, and is
    normal (W. Hoeffding, "A combinatorial central limit theorem", 1951). So r, the number of shuffles that reach the
    observed difference, is known without keeping and shuffling tokens: it is expected, to whole shuffles.
    """
    first, second = totals[0] / n[0], totals[1] / n[1]
    count, mean = sum(n), sum(totals) / sum(n)
    spread = max(sum(squares) - count * mean**2, 0.0) / max(count - 1, 1) * (1 / n[0] + 1 / n[1])
    if spread == 0:  # all tokens alike: every shuffle reaches it
        return first - second, 1.0
    tail = math.erfc((first - second) / math.sqrt(2 * spread)) / 2
    return first - second, round(SHUFFLES * tail) / SHUFFLES
