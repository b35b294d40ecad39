"""`symlm`: the language model of WikiText-103 that Symmetric and RPC attention were tried in.

As published: 16 post-norm layers of width 128, `x = norm(x + branch(x))`, 8 heads, no biases in the projections of
attention, an MLP of 2048 with ReLU, embeddings times sqrt(width), sinusoidal positions counted from the end of the
text, dropout 0.1 everywhere but on attention's weights, and an adaptive softmax that shares the embedding's vectors.
Its own attention is softmax; `convert` makes the others of it.

Places counted from the end say of a token how far it is from the last one: later tokens have a say in earlier answers
by their number, never by what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from timm.layers import Mlp
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from vitscope.models.adaptive_softmax import AdaptiveSoftmax
from vitscope.models.decoder import Decoder, sinusoids, start_normal
from vitscope.models.naming import register_model
from vitscope.models.small import PostNormBlock

Positions = Literal["end", "start"]
Norm = Literal["post", "pre"]
Activation = Literal["relu", "gelu"]
CUTOFFS = (20_000, 40_000, 200_000)
_ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU}


class PublishedLanguageModel(Decoder):
    """Answers log-probabilities (B, N, V), or with `targets` (B, N) their nats (B, N), which costs less."""

    takes_targets = True

    def __init__(
        self,
        num_classes: int,
        context: int,
        blocks: list[nn.Module],
        norm: nn.Module,
        dropout: float,
        positions: Positions,
        scaled: bool,
        cutoffs: Sequence[int],
        tied: bool,
        **sizes: int,
    ) -> None:
        super().__init__(num_classes, context, depth=len(blocks), **sizes)
        width = sizes["embed_dim"]
        self.from_end, self.factor = positions == "end", width**0.5 if scaled else 1.0
        self.embed = nn.Embedding(num_classes, width)
        self.register_buffer("places", sinusoids(context, width), persistent=False)
        self.drop, self.drop_last = nn.Dropout(dropout), nn.Dropout(dropout)
        self.blocks, self.norm = nn.ModuleList(blocks), norm
        self.head = AdaptiveSoftmax(width, num_classes, cutoffs, self.embed if tied else None)
        start_normal(self, 0.02)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, targets: Tensor | None = None) -> Tensor:
        x = self.drop_last(self.hidden(input_ids, attention_mask))
        if targets is None:
            return self.head(x)
        return self.head.nats(x, targets)

    def embedded(self, input_ids: Tensor, lengths: Tensor | None) -> Tensor:
        x = self.factor * self.embed(input_ids)
        places: Any = self.places
        n = input_ids.shape[1]
        if not self.from_end:
            return self.drop(x + places[:n])
        if lengths is None:
            return self.drop(x + places[:n].flip(0))
        left = lengths[:, None] - 1 - torch.arange(n, device=x.device)  # (B, N): tokens that are still to come
        return self.drop(x + places[left.clamp_min(0)])


@register_model("symlm")
def symlm(
    *,
    num_classes: int = 267_735,  # words of WikiText-103
    context: int = 256,
    depth: int = 16,
    embed_dim: int = 128,
    num_heads: int = 8,
    mlp_dim: int = 2048,
    activation: Activation = "relu",
    norm: Norm = "post",  # 'pre': norm(x) goes into each branch, and one norm stands before the head
    projection_bias: bool = False,  # in attention; the MLP has biases
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    embedding_scale: bool = True,  # times sqrt(embed_dim)
    positions: Positions = "end",  # where places are counted from
    cutoffs: Sequence[int] = CUTOFFS,  # of the adaptive softmax; those beyond the vocabulary do not count
    tied: bool = True,  # the softmax has the embedding's vectors
) -> PublishedLanguageModel:
    """The published settings are the defaults: 44 million weights, 34 of them the words'."""
    for name, value, known in (
        ("activation", activation, get_args(Activation)),
        ("norm", norm, get_args(Norm)),
        ("positions", positions, get_args(Positions)),
    ):
        if value not in known:
            raise ValueError(f"{name}={value!r}: expected {' or '.join(map(repr, known))}")
    kind: Any = PostNormBlock if norm == "post" else Block
    blocks = []
    for _ in range(depth):
        block = kind(
            embed_dim,
            num_heads,
            mlp_dim / embed_dim,
            qkv_bias=projection_bias,
            proj_bias=projection_bias,
            attn_drop=attention_dropout,
            norm_layer=nn.LayerNorm,
        )
        block.mlp = Mlp(embed_dim, mlp_dim, act_layer=_ACTIVATIONS[activation], drop=dropout)
        block.drop_path1 = nn.Dropout(dropout)  # on what attention adds
        blocks.append(block)
    last = nn.Identity() if norm == "post" else nn.LayerNorm(embed_dim)
    return PublishedLanguageModel(
        num_classes, context, blocks, last, dropout, positions, embedding_scale, cutoffs, tied,
        embed_dim=embed_dim, num_heads=num_heads,
    )  # fmt: skip
