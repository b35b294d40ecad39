"""Edits of the attention pattern: what is left of a token's knowledge when it may not look at others?

`self_only`  image tokens attend to nothing but themselves (class token and registers are cut off, too);
`no_cls`     image tokens do not attend to the class token(s).

The class token's own row is left alone: it still gathers from all. A row keeps its sum by default (1, in softmax
attention); the published `no_cls` leaves a row that sums to less (`renormalise=False`), which also shrinks the update.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from vitscope.analyses.attention_facts import attention_facts, check_points, row_sums
from vitscope.architectures.layout import Layout
from vitscope.capture import Edit
from vitscope.errors import UnsupportedModelError, VitscopeError
from vitscope.models import Model

AttentionEdit = Literal["self_only", "no_cls"]
EDITS: tuple[AttentionEdit, ...] = ("self_only", "no_cls")


def self_only(pattern: Tensor, layout: Layout) -> Tensor:
    """Rows of image tokens become the identity, times their sums: (B, H, N, N)."""
    image, edited = layout.image, pattern.clone()
    edited[..., image, :] = 0
    edited.diagonal(dim1=-2, dim2=-1)[..., image] = row_sums(pattern[..., image, :])[..., 0]
    return edited


def no_cls(pattern: Tensor, layout: Layout, renormalise: bool = True) -> Tensor:
    """Columns of class tokens become zero in the rows of image tokens: (B, H, N, N)."""
    image, edited = layout.image, pattern.clone()
    edited[..., image, : layout.class_tokens] = 0
    if renormalise:
        rows = edited[..., image, :]
        # a row that saw nothing but the class token sees nothing now
        shares = rows / rows.sum(-1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
        edited[..., image, :] = shares * row_sums(pattern[..., image, :])
    return edited


def attention_edit(
    model: Model, kind: AttentionEdit, *, renormalise: bool = True, blocks: Sequence[int] | None = None
) -> dict[str, Edit]:
    """What `model.edits` takes. `blocks`: all unless chosen."""
    layout = model.layout
    if kind not in EDITS:
        raise VitscopeError(f"There is no attention edit {kind!r}. Known: {', '.join(EDITS)}.")
    if kind == "no_cls" and layout.class_tokens == 0:
        raise UnsupportedModelError(f"{model.name} has no class token that could be hidden from its image tokens.")
    if kind == "no_cls" and renormalise and attention_facts(model).negative:
        raise UnsupportedModelError(
            f"{model.name} has negative attention weights: rows cannot be scaled to the sums that they had. "
            "Use no_cls_bare (renormalise=False)."
        )
    chosen = range(layout.blocks) if blocks is None else blocks
    wrong = [b for b in chosen if not 0 <= b < layout.blocks]
    if wrong:
        raise VitscopeError(f"{model.name} has blocks 0 to {layout.blocks - 1}; there is no block {wrong[0]}.")

    def edit(pattern: Tensor, point: Any) -> Tensor:
        return self_only(pattern, layout) if kind == "self_only" else no_cls(pattern, layout, renormalise)

    edits: dict[str, Edit] = {f"blocks.{b}.attn.hook_pattern": edit for b in chosen}
    check_points(model, edits)
    return edits
