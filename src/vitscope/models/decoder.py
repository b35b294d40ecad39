"""What our own language models share: numbers of tokens in, causal blocks, what is expected next out."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitscope.errors import DataError


class Decoder(nn.Module):
    """Subclasses make `embed`, `blocks`, `norm` and `head`, and say in `embedded` where a token stands.

    Texts are padded at the right. A token sees nothing to its right, so that padding changes nothing, and the mask
    only tells how long each text is.
    """

    embed: nn.Embedding
    blocks: nn.ModuleList
    norm: nn.Module
    head: Any

    def __init__(self, num_classes: int, context: int, **sizes: int) -> None:
        super().__init__()
        for name, size in {"num_classes": num_classes, "context": context, **sizes}.items():
            if size < 1:
                raise ValueError(f"{name}={size}: expected at least 1")
        width, heads = sizes["embed_dim"], sizes["num_heads"]
        if width % heads:
            raise ValueError(f"embed_dim={width} cannot be divided among num_heads={heads}")
        self.num_classes, self.context = num_classes, context

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """(B, N) int64 -> logits of the next token (B, N, V)"""
        return self.head(self.hidden(input_ids, attention_mask))

    def hidden(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """(B, N) -> (B, N, C), as the head takes them"""
        if input_ids.shape[1] > self.context:
            raise DataError(
                f"A text has {input_ids.shape[1]:,} tokens, and the model has {self.context:,} positions: give it a "
                "shorter one, or train a model with a longer context (--context)."
            )
        x = self.embedded(input_ids, _lengths(attention_mask))
        for block in self.blocks:
            x = block(x, is_causal=True)
        return self.norm(x)

    def embedded(self, input_ids: Tensor, lengths: Tensor | None) -> Tensor:
        """Tokens (B, N) and their places -> (B, N, C). lengths: (B,), of each text; None where nothing is padded."""
        raise NotImplementedError

    def get_input_embeddings(self) -> nn.Embedding:
        """As models of transformers call it."""
        return self.embed


class TiedHead(nn.Linear):
    """A linear layer whose weights are those of an embedding: one word, one vector, for reading and for writing.

    The weights stay the embedding's, so that they are saved, averaged and optimised once.
    """

    def __init__(self, embedding: nn.Embedding) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = embedding.embedding_dim, embedding.num_embeddings
        self.register_parameter("bias", None)
        self.__dict__["embedding"] = embedding  # not a child

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        return self.__dict__["embedding"].weight

    def reset_parameters(self) -> None:
        """There are none of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


def _lengths(mask: Tensor | None) -> Tensor | None:
    """How many tokens each text has, (B, N) -> (B,); padding on the left is refused."""
    if mask is None:
        return None
    if bool((mask[:, 1:] > mask[:, :-1]).any()) or not bool(mask[:, 0].all()):
        raise DataError("Texts are padded at the right here: the mask must be 1 at a text's tokens and 0 behind them.")
    return mask.sum(1)


def start_normal(module: nn.Module, deviation: float) -> None:
    """Weights of linear layers and embeddings normal around 0, biases 0."""
    for part in module.modules():
        if isinstance(part, TiedHead):
            continue
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=deviation)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)


def sinusoids(places: int, width: int) -> Tensor:
    """(places, width): sin and cos of place / 10000^(2 i / width) (Vaswani et al. 2017), sines first."""
    frequency = 10000.0 ** -(torch.arange(0, width, 2) / width)
    angle = torch.arange(places)[:, None] * frequency  # (places, width / 2)
    return torch.cat([angle.sin(), angle.cos()], 1)[:, :width]
