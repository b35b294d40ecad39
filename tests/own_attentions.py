"""Attentions as users write them: no softmax, rows that do not sum to 1, some shown to capture and some not."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from vitscope.attention import AttentionModule, explicit_attention


def sigmoid_weights(scores: Tensor) -> Tensor:
    """Sigmoid attention with its usual bias of -ln N; -inf gives 0."""
    return torch.sigmoid(scores - math.log(scores.shape[-1]))


class ShownSigmoid(AttentionModule):
    """In vitscope's frame, shown."""

    name = "shown sigmoid"

    def attend(self, q, k, v, **look):
        return explicit_attention(q, k, v, sigmoid_weights, **look)


class HiddenSigmoid(AttentionModule):
    """The same, computed where nobody can see it."""

    name = "hidden sigmoid"

    def attend(self, q, k, v, **look):
        return sigmoid_weights(q @ k.mT / q.shape[-1] ** 0.5) @ v


class PlainSigmoid(nn.Module):
    """A module that knows nothing of vitscope's frame; `shown` makes the one call that shows it."""

    def __init__(self, source: nn.Module, shown: bool = True) -> None:
        super().__init__()
        self.qkv, self.proj = source.qkv, source.proj
        self.num_heads, self.head_dim = source.num_heads, source.head_dim
        self.shown = shown

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)  # (B, H, N, D) each
        if self.shown:
            z = explicit_attention(q, k, v, sigmoid_weights)
        else:
            z = sigmoid_weights(q @ k.mT / self.head_dim**0.5) @ v
        return self.proj(z.transpose(1, 2).flatten(2))


def give_attention(module: nn.Module, kind: str, layers: range | list[int] | None = None) -> nn.Module:
    """A built timm ViT with one of these attentions in some blocks, all by default; its weights stay."""
    for i in range(len(module.blocks)) if layers is None else layers:
        source = module.blocks[i].attn
        if kind.startswith("plain"):
            module.blocks[i].attn = PlainSigmoid(source, shown="shown" in kind)
        else:
            cls = {"shown sigmoid": ShownSigmoid, "hidden sigmoid": HiddenSigmoid}[kind]
            module.blocks[i].attn = cls.from_timm(source, cls.Options())
    return module


SHOWN = ("shown sigmoid", "plain shown sigmoid")
HIDDEN = ("hidden sigmoid", "plain hidden sigmoid")
