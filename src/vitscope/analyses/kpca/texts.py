"""Texts in kernel PCA: each by itself, with its own tokens. Padding enters no Gram matrix, and neither do masks.

Texts of a batch that have the same number of tokens make a `Piece`, which is then what a batch of pictures is. The
theorem speaks of a query that sees all keys. In a causal model that is the last token of a text alone, and where a
block has a window, only a text that is not longer than it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitscope.architectures.layout import Layout
from vitscope.architectures.text_layout import TextLayout, token_ids
from vitscope.data.batch import Batch

LAST_QUERY = "causal attention: the last token of a text alone sees all its keys, and only its query is looked at"
LAST_VIEW = "causal attention: keys and values are those of all tokens of a text, which its last token alone sees"
WINDOWS = "blocks whose window is narrower than a text are left out for that text: no token sees all its keys there"
PADDED = (
    "padding up to the longest text of its batch is among the tokens of a text, and no mask is applied, as in the "
    "program of the study: figures depend on the batches (variant code)"
)


@dataclass(frozen=True)
class Piece:
    """Items of a batch that have the same number of tokens."""

    batch: Batch
    rows: Tensor  # (K,) their places in the batch
    places: Tensor | None  # (K, n) where their tokens are; None: all tokens are theirs
    tokens: int  # n
    whole: bool  # all tokens of all items

    def of(self, x: Tensor) -> Tensor:
        """Their part of a point: (B, H, N, D) -> (K, H, n, D)."""
        x = x[self.rows.to(x.device)]
        if self.places is None:
            return x
        where = self.places.to(x.device)[:, None, :, None]  # (K, 1, n, 1)
        return x.gather(2, where.expand(-1, x.shape[1], -1, x.shape[3]))


def pieces(batch: Batch, layout: Layout, every: int = 1, padded: bool = False) -> list[Piece]:
    """The items 0, every, 2 every, ... of a batch by their number of tokens; `padded`: padding counts as tokens."""
    valid = batch.valid
    if valid is None:
        width = token_ids(batch.inputs).shape[1] if isinstance(layout, TextLayout) else layout.tokens
        valid = torch.ones(len(batch), width, dtype=torch.bool)
    elif padded:
        valid = torch.ones_like(valid)
    lengths = valid.sum(1).where(batch.indices % every == 0, -1)
    found = []
    for n in sorted(set(lengths.tolist()) - {-1}):
        rows = (lengths == n).nonzero().flatten()
        places = None if n == valid.shape[1] else valid[rows].nonzero()[:, 1].view(len(rows), n)
        every_item = len(rows) == len(batch)
        found.append(Piece(batch if every_item else batch.rows(rows), rows, places, n, every_item and places is None))
    return found


def is_causal(layout: Layout) -> bool:
    return isinstance(layout, TextLayout) and layout.causal


def sees_all(layout: Layout, block: int, tokens: int) -> bool:
    """Are all keys of so many tokens seen by all queries of a block, or by the last one of a causal model?"""
    windows = layout.windows if isinstance(layout, TextLayout) else ()
    window = windows[block] if windows else None
    return window is None or tokens <= window  # i sees j where |i - j| < window


def text_remarks(layout: Layout, queries: bool, padded: bool) -> list[str]:
    """What a reader must know; `queries`: whether queries are looked at, or keys and values alone."""
    remarks = []
    if is_causal(layout):
        remarks.append(LAST_QUERY if queries else LAST_VIEW)
    if not all(sees_all(layout, block, layout.tokens) for block in range(layout.blocks)):
        remarks.append(WINDOWS)
    return [*remarks, PADDED] if padded else remarks
