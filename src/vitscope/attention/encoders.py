"""BERT and its kin: their self-attention under timm's names, so that every variant works in it.

transformers' `XSelfAttention` projects to queries, keys and values and attends; the output projection stands outside of
it. It is called with `hidden_states` and a mask, and answers with a tuple.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

from vitscope.architectures.text_rows import BERT_KIN
from vitscope.attention.module import HOOKS, AttentionModule

_NAMES = {f"transformers.models.{kind}.modeling_{kind}.{title}SelfAttention" for kind, title in BERT_KIN.items()}


def is_encoder_attention(attention: nn.Module) -> bool:
    """Is it that of BERT or its kin, or one that was made of it here?"""
    cls = type(attention)
    return isinstance(attention, InEncoder) or f"{cls.__module__}.{cls.__qualname__}" in _NAMES


class InEncoder:
    """How transformers calls an attention, put before an AttentionModule."""

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **_: Any) -> tuple[Tensor, None]:
        """(B, N, C), mask (B, 1, N, N) -> (B, N, C), before the output projection"""
        return super().forward(hidden_states, attn_mask=attention_mask), None  # type: ignore[misc]


_made: dict[type[AttentionModule], type[AttentionModule]] = {}


def as_in_encoders(cls: type[AttentionModule]) -> type[AttentionModule]:
    """The same attention, called as transformers does."""
    if issubclass(cls, InEncoder):
        return cls
    if cls not in _made:
        _made[cls] = type(cls.__name__, (InEncoder, cls), {"__module__": cls.__module__})
    return _made[cls]


class _Outside(nn.Identity):
    """The output projection, which is not here."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.in_features = width


def with_timm_names(source: Any) -> Any:
    """Its projections as AttentionModule takes them over."""
    if isinstance(source, AttentionModule):
        return source
    return SimpleNamespace(
        q_proj=source.query,
        k_proj=source.key,
        v_proj=source.value,
        proj=_Outside(source.all_head_size),
        proj_drop=nn.Identity(),
        attn_drop=source.dropout,
        num_heads=source.num_attention_heads,
        training=source.training,
        **{name: getattr(source, name) for name in HOOKS},
    )
