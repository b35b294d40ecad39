"""Changes of a model's inside: what the page asks for, the edit that does it, its sentence, and its line of Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vitscope.capture import Edit, Point
from vitscope.capture.editing import in_turn
from vitscope.errors import VitscopeError
from vitscope.explorer.subjects import is_whole
from vitscope.models import Model

KINDS = ("head", "attention", "mlp", "tokens", "patch")
WAYS = ("mean", "zero")
MOST = 40  # changes at once


@dataclass(frozen=True)
class Change:
    """Switch something off, or put a token of another picture in its place."""

    kind: str
    block: int
    by: str = "mean"  # what stands in its place: its mean over the tokens, or zero
    head: int = 0
    tokens: tuple[int, ...] = ()
    source: str = ""  # of a patch: what it is taken from, in words
    subject: Mapping[str, Any] | None = field(default=None, hash=False)  # and as the page names it

    @property
    def point(self) -> str:
        names = {"head": "attn.hook_z", "attention": "hook_attn_out", "mlp": "hook_mlp_out"}
        return f"blocks.{self.block}.{names.get(self.kind, 'hook_resid_pre')}"


def parse_changes(given: Any, model: Model, tokens: int, parse_subject: Callable[[Any], Any]) -> tuple[Change, ...]:
    """From the page's JSON. Everything is checked: a change that means nothing is refused in words."""
    if not isinstance(given, list) or len(given) > MOST:
        raise VitscopeError(f"`changes` is a list of at most {MOST} changes.")
    layout = model.layout
    changes = []
    for one in given:
        if not isinstance(one, dict) or one.get("kind") not in KINDS or one.get("by", "mean") not in WAYS:
            raise VitscopeError(f"A change is one of {', '.join(KINDS)}, by {' or '.join(WAYS)}.")
        places = one.get("tokens", [])
        if not isinstance(places, list):
            raise VitscopeError("`tokens` is a list of numbers.")
        change = Change(
            one["kind"],
            _number(one.get("block", 0), layout.blocks, "block"),
            one.get("by", "mean"),
            _number(one.get("head", 0), layout.heads, "head"),
            tuple(sorted({_number(t, tokens, "token") for t in places})),
            subject=parse_subject(one.get("subject")) if one["kind"] == "patch" else None,
        )
        if change.kind in ("tokens", "patch") and not change.tokens:
            raise VitscopeError("No token is chosen: point at one, or brush a region.")
        changes.append(change)
    return tuple(changes)


def _number(value: Any, count: int, what: str) -> int:
    if not is_whole(value, 0, count - 1):
        raise VitscopeError(f"{what} {value!r} is none of 0 to {count - 1}.")
    return value


def edits_of(changes: Sequence[Change], model: Model, sources: Mapping[Change, Tensor]) -> dict[str, Edit]:
    """{point: edit}. Changes of one point act in their order. `sources`: residuals (N, C) that patches are from."""
    return in_turn((change.point, _edit(change, model, sources.get(change))) for change in changes)


def _edit(change: Change, model: Model, source: Tensor | None) -> Edit:
    zero, rest = change.by == "zero", list(change.tokens)
    patches = first_of_rest(model)

    def head(z: Tensor, point: Point) -> Tensor:
        z = z.clone()  # (B, H, N, D)
        z[:, change.head] = 0 if zero else z[:, change.head].mean(-2, keepdim=True)
        return z

    def layer(x: Tensor, point: Point) -> Tensor:
        return torch.zeros_like(x) if zero else x.mean(1, keepdim=True).expand_as(x)

    def tokens(x: Tensor, point: Point) -> Tensor:
        x = x.clone()  # (B, N, C)
        x[:, rest] = 0 if zero else x[:, patches:].mean(1, keepdim=True)
        return x

    def patch(x: Tensor, point: Point) -> Tensor:
        assert source is not None
        x = x.clone()
        x[:, rest] = source[rest].to(x)
        return x

    return {"head": head, "attention": layer, "mlp": layer, "tokens": tokens, "patch": patch}[change.kind]


def first_of_rest(model: Model) -> int:
    """Where patches or words begin: the mean token is a mean of these."""
    return 0 if model.row.text else model.layout.prefix_tokens


def in_words(change: Change, model: Model) -> str:
    """One sentence for the list on the page, and for the script."""
    what = {
        "head": f"Head {change.head} of block {change.block}",
        "attention": f"The attention of block {change.block}",
        "mlp": f"The MLP of block {change.block}",
    }.get(change.kind)
    if what is not None:
        instead = "zero" if change.by == "zero" else "its mean over the tokens of this input"
        return f"{what} is switched off: its output is {instead}."
    where = _tokens_in_words(change.tokens, model)
    if change.kind == "patch":
        return f"Before block {change.block}, {where} {_be(change)} taken from {change.source or 'another input'}."
    kind = "token" if model.row.text else "patch"
    instead = "zero" if change.by == "zero" else f"the mean {kind} of this input"
    return f"Before block {change.block}, {where} {_be(change)} switched off: {instead} stands there."


def _be(change: Change) -> str:
    return "is" if len(change.tokens) == 1 else "are"


def _tokens_in_words(tokens: Sequence[int], model: Model) -> str:
    if len(tokens) > 1:
        return f"{len(tokens)} tokens ({', '.join(map(str, tokens[:4]))}{', ...' if len(tokens) > 4 else ''})"
    return token_name(tokens[0], model)


def token_name(token: int, model: Model) -> str:
    """'the class token', 'the patch in row 3, column 5', 'token 7'."""
    layout = model.layout
    if model.row.text:
        return f"token {token}"
    if token >= layout.prefix_tokens:
        row, column = divmod(token - layout.prefix_tokens, layout.grid[1])
        return f"the patch in row {row}, column {column}"
    return next(f"the {kind} token" for kind, span in layout.spans.items() if span.start <= token < span.stop)


def in_python(change: Change, number: int, model: Model) -> list[str]:
    """The lines of a script that make the edit: a function `change_N`."""
    zero, rest = change.by == "zero", list(change.tokens)
    body = {
        "head": [f"x[:, {change.head}] = " + ("0" if zero else f"x[:, {change.head}].mean(-2, keepdim=True)")],
        "attention": ["x[:] = " + ("0" if zero else "x.mean(1, keepdim=True)")],
        "mlp": ["x[:] = " + ("0" if zero else "x.mean(1, keepdim=True)")],
        "tokens": [f"x[:, {rest}] = " + ("0" if zero else f"x[:, {first_of_rest(model)}:].mean(1, keepdim=True)")],
        "patch": [f"x[:, {rest}] = source_{number}[:, {rest}]"],
    }[change.kind]
    return [
        f"def change_{number}(x, point):  # {in_words(change, model)}",
        "    x = x.clone()",
        *(f"    {b}" for b in body),
        "    return x",
    ]
