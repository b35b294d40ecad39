"""Scaled attention: a learnt multiple of the values' own neighbourhood is taken off the values before attending."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Unpack, get_args

import torch
from torch import Tensor, nn

from vitscope.attention.masks import visible_keys
from vitscope.attention.module import AttentionModule, Look
from vitscope.attention.registry import register_attention
from vitscope.attention.softmax import softmax_attention
from vitscope.attention.symmetric import symmetric_attention
from vitscope.errors import VitscopeError, suggest

Form = Literal["scalar", "matrix"]
FORMS: tuple[Form, ...] = get_args(Form)


def scaled_attention(q: Tensor, k: Tensor, v: Tensor, s: Tensor, **look: Unpack[Look]) -> Tensor:
    """softmax(q k^T / sqrt(D)) (I - S) v: (B, H, N, D) each -> (B, H, N, D).

    s: (H, N, N), S itself; or one number alpha (1,), and S = alpha softmax(k k^T / sqrt(D)), which is never formed:
    S v is symmetric attention. Hidden keys count neither in the attention nor in S. Teo & Nguyen (NeurIPS 2024),
    Remark 3 and App. E.1.
    """
    if s.ndim < 3:
        whole: Look = {**look, "dropout_p": 0.0}
        near = s * symmetric_attention(k, v, **whole)
    else:
        heads, tokens = v.shape[1], v.shape[2]
        if s.shape != (heads, tokens, tokens):
            raise VitscopeError(
                f"The matrix S is for {s.shape[0]} heads and {s.shape[-1]} tokens, the input has {heads} heads and "
                f"{tokens} tokens. Keep the image size that the model was built with, or use form='scalar', "
                "which fits any number of tokens."
            )
        if look.get("is_causal"):
            s = s.tril()
        if (mask := look.get("mask")) is not None:
            s = s.masked_fill(~visible_keys(mask), 0)
        near = s @ v
    return softmax_attention(q, k, v - near, **look)


@dataclass(frozen=True)
class ScaledOptions:
    """The published model learns S from zero; so converting a trained model leaves its function as it was."""

    form: Form = "scalar"  # `matrix` learns S (heads, tokens, tokens) and is tied to one number of tokens
    alpha: float = 0.0  # where the scalar starts; S starts from zero
    tokens: int | None = None  # of S; `convert` reads it off the model

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise VitscopeError(
                f"Scaled attention has no form {self.form!r}.{suggest(str(self.form), FORMS)} "
                f"Known: {', '.join(FORMS)}."
            )
        if not isinstance(self.alpha, int | float) or not math.isfinite(self.alpha):
            raise VitscopeError(f"alpha is a finite number, not {self.alpha!r}.")
        if self.tokens is not None and (not isinstance(self.tokens, int) or self.tokens < 1):
            raise VitscopeError(f"tokens is a whole number, at least 1, not {self.tokens!r}.")


@register_attention("scaled")
class ScaledAttention(AttentionModule):
    """Scaled attention in a layer; its own parameter is `s`, as in the published checkpoints."""

    Options = ScaledOptions

    @property
    def attention_calls(self) -> int:
        return 2 if self.options.form == "scalar" else 1

    def create_parameters(self) -> None:
        weight = self.proj.weight
        if self.options.form == "scalar":
            s = torch.full((1,), float(self.options.alpha), dtype=weight.dtype, device=weight.device)
        elif self.options.tokens is None:
            raise VitscopeError(
                "form='matrix' needs the number of tokens, class token included: tokens=197 for 224 x 224 in patches "
                "of 16. `convert(model, 'scaled', form='matrix')` reads it off the model."
            )
        else:
            n = self.options.tokens
            s = torch.zeros(self.num_heads, n, n, dtype=weight.dtype, device=weight.device)
        self.s = nn.Parameter(s)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **look: Unpack[Look]) -> Tensor:
        return scaled_attention(q, k, v, self.s, **look)
