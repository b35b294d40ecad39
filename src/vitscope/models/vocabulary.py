"""The vocabulary as classes: where a word stands among all words, without holding a logit for each of them.

Logits of 1,000 tokens over 50,000 words are 200 MB; rank and log-probability of one word per token are 16 kB.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitscope.architectures.families import family_of, final_norms, heads_of
from vitscope.errors import NumericalError, VitscopeError

TOKENS, WORDS = 256, 16_384  # at a time: 16 MB of logits


def before_head(module: Any, x: Tensor) -> Tensor:
    """Tokens (..., C) as the model's head takes them: through its final norm and, in BERT, its transform."""
    for norm in final_norms(module):
        x = norm.forward(x)  # not a call: hooks and edits are meant for what the model itself sends through it
    transform = family_of(module).transform
    return x if transform is None else transform(module, x)


@torch.no_grad()
def rank_and_log_probability(
    module: Any, x: Tensor, targets: Tensor, tokens: int = TOKENS, words: int = WORDS
) -> tuple[Tensor, Tensor]:
    """Tokens (..., C) and a word each (...) int64 -> how many words have a larger logit (...), log p(word) (...).

    rank: float32, 0 is the top; equal logits count one half, as in `class_space.ranks`.
    tokens, words: how many are looked at at a time; they decide the memory and, but for rounding, nothing else.
    """
    if targets.shape != x.shape[:-1]:
        raise VitscopeError(
            f"One word per token is asked for: {tuple(x.shape[:-1])} tokens, {tuple(targets.shape)} words."
        )
    flat, wanted = x.reshape(-1, x.shape[-1]), targets.reshape(-1)
    rank, log_probability = x.new_zeros(len(flat), dtype=torch.float32), x.new_zeros(len(flat))
    for first in range(0, len(flat), tokens):
        part = slice(first, first + tokens)
        rank[part], log_probability[part] = _chunk(module, flat[part], wanted[part], words)
    return rank.view(targets.shape), log_probability.view(targets.shape)


@torch.no_grad()
def top_words(module: Any, x: Tensor, k: int, tokens: int = TOKENS, words: int = WORDS) -> tuple[Tensor, Tensor]:
    """Tokens (..., C) -> the k likeliest words of each, best first (..., k) int64, and their log p (..., k)."""
    head: Any = heads_of(module)[0]
    found = []
    for part in x.reshape(-1, x.shape[-1]).split(tokens):
        part = before_head(module, part)
        best = part.new_empty(len(part), 0), part.new_empty(len(part), 0, dtype=torch.int64)  # logits, words
        total = part.new_full((len(part),), float("-inf"))
        for first, logits in _logits(head, part, words):
            total = torch.logaddexp(total, logits.logsumexp(-1))
            values, places = logits.topk(min(k, logits.shape[-1]), -1)
            values, places = torch.cat([best[0], values], -1), torch.cat([best[1], places + first], -1)
            values, order = values.topk(min(k, values.shape[-1]), -1)
            best = values, places.gather(-1, order)
        found.append((best[1], best[0] - total[:, None]))
    numbers, log_p = (torch.cat(parts).reshape(*x.shape[:-1], -1) for parts in zip(*found))
    return numbers, log_p


def _chunk(module: Any, x: Tensor, targets: Tensor, words: int) -> tuple[Tensor, Tensor]:
    """(T, C), (T,) -> (T,), (T,)"""
    head: Any = heads_of(module)[0]
    x = before_head(module, x)
    bias = 0.0 if head.bias is None else head.bias[targets]
    true = (x * head.weight[targets]).sum(-1) + bias
    total = x.new_full((len(x),), float("-inf"))  # log sum exp of the logits so far
    signs = x.new_zeros(len(x), dtype=torch.float32)  # larger words count 1, smaller ones -1, equal ones 0
    for first, logits in _logits(head, x, words):
        here = ((targets >= first) & (targets < first + logits.shape[-1])).nonzero()[:, 0]
        logits[here, targets[here] - first] = true[here]  # the same number, summed in another order: it is no rival
        total = torch.logaddexp(total, logits.logsumexp(-1))
        signs += (logits - true[:, None]).sign_().sum(-1, dtype=torch.float32)
    if not bool(total.isfinite().all()):
        raise NumericalError("Logits over the vocabulary are NaN or infinite: they have no rank. Look at the weights.")
    return (signs + (head.out_features - 1)) / 2, true - total


def _logits(head: Any, x: Tensor, words: int) -> Iterator[tuple[int, Tensor]]:
    for first in range(0, head.out_features, words):
        part = slice(first, first + words)
        yield first, F.linear(x, head.weight[part], None if head.bias is None else head.bias[part])
