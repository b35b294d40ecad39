"""The registry of attentions: `@register_attention`, `list_attentions`, `create_attention`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from vitscope.registry import ATTENTIONS, check_options, check_types

if TYPE_CHECKING:
    from vitscope.attention.module import AttentionModule

A = TypeVar("A", bound="type[AttentionModule]")

# what descriptions and the command line may write for an option whose name is a word of Python
_SPELLINGS = {"lambda": "lambd"}


def register_attention(name: str) -> Callable[[A], A]:
    """Class decorator: make an AttentionModule known under `name`, in `convert`, on the command line and in runs."""
    return ATTENTIONS.named(name)


list_attentions = ATTENTIONS.names


def attention_class(name: str) -> type[AttentionModule]:
    """The class behind a name or `package.module:Class`, or an error that suggests the nearest one."""
    return ATTENTIONS.get(name)


def create_attention(name: str, dim: int, num_heads: int = 8, **arguments: Any) -> AttentionModule:
    """A new attention module: timm's constructor arguments and the attention's own options, in one call.

    `create_attention("rpc", 192, num_heads=3, qkv_bias=True, iterations=2, lambd=3.0)`
    """
    return attention_class(name)(dim, num_heads, **arguments)


def build_options(cls: type[AttentionModule], given: Mapping[str, Any]) -> Any:
    """The options of an attention from plain values. An option that it does not have is an error."""
    values = {_SPELLINGS.get(key, key): value for key, value in given.items()}
    check_options(values, [f.name for f in fields(cls.Options)], "attention", cls.name)
    check_types(values, cls.Options, "attention", cls.name)
    return cls.Options(**values)


def plain_options(options: Any) -> dict[str, Any]:
    """The options as a run saves them: plain values, `lambda` spelt out."""
    written = {python: word for word, python in _SPELLINGS.items()}
    return {written.get(f.name, f.name): getattr(options, f.name) for f in fields(options)}
