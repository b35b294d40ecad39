"""Which token positions get a probe: words such as `class`, `image`, `mean`, `all`, numbers and ranges."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vitscope.architectures.layout import Layout
from vitscope.errors import VitscopeError

MEAN = -1  # the position number of the mean of the image tokens


def parse_positions(tokens: str | int | Sequence[str | int], layout: Layout) -> list[int]:
    """'all', 'class,mean', '0-20', [0, 5, 'mean'] -> token numbers in order, MEAN last."""
    words = tokens.split(",") if isinstance(tokens, str) else [tokens] if isinstance(tokens, int) else list(tokens)
    n, spans = layout.tokens, {"class": range(layout.class_tokens), "register": range(0), "mean": range(MEAN, 0)}
    spans |= {kind: range(s.start, s.stop) for kind, s in layout.spans.items() if kind in ("register", "image")}
    found: set[int] = set()
    for word in (str(w).strip() for w in words):
        first, dash, last = word.partition("-")
        if word == "all":
            found.update(range(MEAN, n))
        elif word in spans:
            found.update(spans[word])
        elif first.isdigit() and (not dash or last.isdigit()):
            found.update(range(int(first), int(last or first) + 1))
        else:
            raise VitscopeError(
                f"tokens={tokens!r}: {word!r} is not known. Expected all, class, register, image, mean, a token number "
                "or a range such as 0-20, separated by commas."
            )
    if found and max(found) >= n:
        raise VitscopeError(f"tokens={tokens!r}: the model has the tokens 0 to {n - 1}.")
    if not found:
        raise VitscopeError(f"tokens={tokens!r} names no token of this model.")
    return sorted(found - {MEAN}) + ([MEAN] if MEAN in found else [])


def at_positions(x: Tensor, positions: Sequence[int], layout: Layout) -> Tensor:
    """(B, N, C) -> (P, B, C): the tokens at these positions, and the mean of the image tokens where it is asked for."""
    numbers = [p for p in positions if p != MEAN]
    whole = numbers == list(range(x.shape[1]))
    chosen = x if whole else x[:, numbers]
    parts = [chosen.transpose(0, 1)]
    if MEAN in positions:
        parts.append(x[:, layout.image].mean(1)[None])
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def position_kind(position: int, layout: Layout) -> tuple[str, int, int]:
    """(kind, row, column); tokens without a place in the picture have -1."""
    if position == MEAN:
        return "mean", -1, -1
    kind = next(kind for kind, span in layout.spans.items() if span.start <= position < span.stop)
    if kind != "image":
        return kind, -1, -1
    return kind, *divmod(position - layout.image.start, layout.grid[1])
