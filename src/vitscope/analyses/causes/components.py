"""What can be switched off or exchanged: a head, the attention or the MLP of a block, the residual stream behind it.

| kind | point | what |
|---|---|---|
| `head` | `blocks.b.attn.hook_z` | what one head gathers, before the output projection |
| `attn`, `mlp` | `blocks.b.hook_attn_out`, `hook_mlp_out` | what a block's attention or MLP adds to the stream |
| `resid` | `blocks.b.hook_resid_post` | the residual stream behind a block |

Each of all tokens, of a group of them (class, register, image, object, context; first, separator, text), or of one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitscope.analyses.naming import check_known
from vitscope.architectures.layout import Layout
from vitscope.capture import Edit
from vitscope.capture.editing import in_turn
from vitscope.capture.points import Point
from vitscope.errors import VitscopeError
from vitscope.models import Model

POINTS = {"head": "attn.hook_z", "attn": "hook_attn_out", "mlp": "hook_mlp_out", "resid": "hook_resid_post"}
KINDS = tuple(POINTS)
ALL = "all"
TEXT_GROUPS, MASK_GROUPS = ("first", "separator", "text"), ("object", "context")


@dataclass(frozen=True)
class Component:
    """A part of a model, at some tokens: all, a group by its name, or one by its place."""

    kind: str
    block: int
    head: int | None = None
    tokens: str | int = ALL

    @property
    def point(self) -> str:
        return f"blocks.{self.block}.{POINTS[self.kind]}"

    @property
    def name(self) -> str:
        """'head.3.1' for head 1 of block 3, 'mlp.3'."""
        return f"{self.kind}.{self.block}" + ("" if self.head is None else f".{self.head}")

    def part(self, value: Tensor) -> Tensor:
        """Its share of the value of its point: (B, N, C), or of a head (B, H, N, D) -> (B, N, D)."""
        return value if self.head is None else value[..., self.head, :, :]

    def where(self, groups: Mapping[str, Tensor], shape: tuple[int, int]) -> Tensor | None:
        """Its tokens: (B, N) bool, or None for all of them."""
        if self.tokens == ALL:
            return None
        if isinstance(self.tokens, str):
            return groups.get(self.tokens, torch.zeros(shape, dtype=torch.bool))
        return (torch.arange(shape[1]) == self.tokens).expand(shape)

    @property
    def placed(self) -> bool:
        """Is it at one token? Such rows have a table of their own."""
        return not isinstance(self.tokens, str)

    def row(self, layout: Layout) -> dict[str, Any]:
        """The columns that tell it from others; NaN is a head or a place in the picture where there is none."""
        head = float("nan") if self.head is None else self.head
        found = {"component": self.name, "kind": self.kind, "block": self.block, "head": head}
        if isinstance(self.tokens, str):
            return found | {"tokens": self.tokens}
        inside = self.tokens - layout.prefix_tokens
        row, column = divmod(inside, layout.grid[1]) if inside >= 0 else (float("nan"), float("nan"))
        return found | {"token": self.tokens, "row": row, "column": column}


def exchange(component: Component, new: Tensor | float, where: Tensor | None = None) -> Edit:
    """The edit that puts `new` in the place of a component: a number, or its part, (B, N, C) or broadcast to it.

    where: (B, N) bool, the tokens at which it is done; None: at all.
    """

    def edit(value: Tensor, point: Point) -> Tensor:
        value = value.clone()
        part = component.part(value)  # a view of it
        fresh = torch.as_tensor(new, dtype=value.dtype, device=value.device).expand_as(part)
        part.copy_(fresh if where is None else torch.where(where[..., None].to(value.device), fresh, part))
        return value

    return edit


def joined(edits: Sequence[tuple[Component, Edit]]) -> dict[str, Edit]:
    """Edits of several components as one per point, each after the other."""
    return in_turn((component.point, edit) for component, edit in edits)


def token_groups(model: Model) -> list[str]:
    """The groups of tokens that there may be."""
    return [*TEXT_GROUPS] if model.row.text else [*model.layout.spans, *MASK_GROUPS]


def components_of(
    model: Model,
    kinds: Sequence[str],
    blocks: Sequence[int] | None = None,
    tokens: Sequence[str | int] = (ALL,),
    by_token: Sequence[str] = ("resid",),
) -> list[Component]:
    """All components of these kinds; those in `by_token` at each of `tokens`, the others at all tokens at once."""
    layout, found = model.layout, []
    for block in range(layout.blocks) if blocks is None else blocks:
        for kind in kinds:
            heads = range(layout.heads) if kind == "head" else (None,)
            places = tokens if kind in by_token else (ALL,)
            found += [Component(kind, block, head, place) for head in heads for place in places]
    return found


def check_kinds(kinds: str | Sequence[str]) -> list[str]:
    kinds = [kinds] if isinstance(kinds, str) else kinds
    for kind in kinds:
        check_known("component", kind, KINDS)
    return [*dict.fromkeys(kinds)]


def check_blocks(blocks: Sequence[int] | None, model: Model) -> None:
    """Refuse blocks that the model does not have."""
    wrong = [b for b in blocks or () if isinstance(b, bool) or not 0 <= b < model.layout.blocks]
    if wrong:
        raise VitscopeError(f"There is no block {wrong[0]}: {model.name} has 0 to {model.layout.blocks - 1}.")


def component_named(word: str, model: Model | None = None) -> Component:
    """'11.2' or 'head.11.2' -> head 2 of block 11; 'attn.3', 'mlp.3'. With a model: refuse what it does not have."""
    match = re.fullmatch(r"\s*(?:(?:head\.)?(\d+)\.(\d+)|(attn|mlp)\.(\d+))\s*", word)
    if match is None:
        raise VitscopeError(f"{word!r} is no component: expected BLOCK.HEAD, such as 11.2, or attn.3 or mlp.3.")
    block, head, kind, inside = match.groups()
    found = Component("head", int(block), int(head)) if kind is None else Component(kind, int(inside))
    if model is not None:
        check_blocks([found.block], model)
        if found.head is not None and found.head >= model.layout.heads:
            raise VitscopeError(f"There is no head {word}: the blocks of {model.name} have {model.layout.heads} heads.")
    return found
