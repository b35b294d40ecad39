"""`lm-small`: a decoder of timm's pre-norm blocks with learnt positions, quick on two cores.

x = embed(token) + place;  x = x + attn(norm1(x));  x = x + mlp(norm2(x));  logits = norm(x) embed^T
"""

from __future__ import annotations

from timm.models.vision_transformer import Block
from torch import Tensor, nn

from vitscope.models.decoder import Decoder, TiedHead, sinusoids, start_normal
from vitscope.models.naming import register_model


class SmallLanguageModel(Decoder):
    """Pre-norm blocks between an embedding and its transpose."""

    def __init__(
        self,
        num_classes: int,
        context: int,
        depth: int,
        embed_dim: int,
        num_heads: int,
        mlp_ratio: float,
        dropout: float,
    ) -> None:
        super().__init__(num_classes, context, depth=depth, embed_dim=embed_dim, num_heads=num_heads)
        self.embed = nn.Embedding(num_classes, embed_dim)
        # sqrt(2 / (5 C)) (Nguyen & Salazar 2019): GPT-2's 0.02 is made for wider models, which see more text
        deviation = (0.4 / embed_dim) ** 0.5
        # of the deviation of an embedding; learnt from here on. Neighbours are alike from the first step, where random
        # places would each have to learn on its own which one stands before it
        self.places = nn.Parameter(2**0.5 * deviation * sinusoids(context, embed_dim))
        self.drop = nn.Dropout(dropout)
        blocks = [Block(embed_dim, num_heads, mlp_ratio, qkv_bias=True, proj_drop=dropout) for _ in range(depth)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(embed_dim)
        self.head = TiedHead(self.embed)
        start_normal(self, deviation)
        for block in blocks:  # 2 * depth branches add up to one stream
            for last in (block.attn.proj, block.mlp.fc2):
                nn.init.normal_(last.weight, std=deviation * (2 * depth) ** -0.5)  # type: ignore[arg-type, union-attr]

    def embedded(self, input_ids: Tensor, lengths: Tensor | None) -> Tensor:
        return self.drop(self.embed(input_ids) + self.places[: input_ids.shape[1]])


@register_model("lm-small")
def lm_small(
    *,
    num_classes: int = 2000,  # words of the vocabulary
    context: int = 128,  # the most tokens of a text
    depth: int = 4,
    embed_dim: int = 128,
    num_heads: int = 4,
    mlp_ratio: float = 4.0,
    dropout: float = 0.0,  # behind the embedding and in both branches
) -> SmallLanguageModel:
    """Made for a million tokens and a few minutes."""
    return SmallLanguageModel(num_classes, context, depth, embed_dim, num_heads, mlp_ratio, dropout)
