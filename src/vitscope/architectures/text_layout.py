"""The tokens of a text: as many as it has, and known by what they stand for rather than by their place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from vitscope.architectures.families import block_row, blocks_of
from vitscope.architectures.layout import Layout
from vitscope.errors import UnsuitableDataError, UnsupportedModelError


@dataclass(frozen=True)
class TextLayout(Layout):
    """A text has N tokens, at most `tokens`; a batch is as wide as its longest, and padded at the right."""

    key_heads: int = 0  # heads of keys and values; fewer than `heads` where several share one
    causal: bool = False  # a token sees itself and what comes before it
    windows: tuple[int | None, ...] = ()  # per block: how far a token sees, in tokens; None: all the way
    separators: tuple[int, ...] = ()  # ids of the tokens that end or divide a text

    @property
    def image(self) -> slice:
        self._no_places("image tokens")

    @property
    def spans(self) -> dict[str, slice]:
        self._no_places("stretches of tokens")

    def _no_places(self, what: str) -> NoReturn:
        raise UnsupportedModelError(
            f"Texts have no {what}: kinds of tokens are told per batch, by `layout.groups(batch)`."
        )

    def groups(self, batch: Any) -> dict[str, Tensor]:
        """(B, N) bool by name: the first token, separators behind it, and text, which is the rest. Padding is in none.

        `batch` has `inputs` (`input_ids`, or the numbers of tokens themselves) and `valid`.
        """
        ids = token_ids(batch.inputs)
        valid = torch.ones_like(ids, dtype=torch.bool) if batch.valid is None else batch.valid.to(ids.device)
        first = torch.zeros_like(valid)
        first[:, 0] = True
        separator = torch.isin(ids, torch.tensor(self.separators, dtype=ids.dtype, device=ids.device)) & ~first
        found = {"first": first, "separator": separator, "text": ~first & ~separator}
        return {name: inside & valid for name, inside in found.items()}

    def _content(self) -> str:
        return f"up to {self.tokens:,}"

    def __str__(self) -> str:
        shared = f" ({self.key_heads} of keys)" if self.key_heads != self.heads else ""
        return (
            f"{self.blocks} blocks x {self.heads} heads{shared} of {self.head_dim}, width {self.width}; "
            f"{self._content()} tokens, {'causal' if self.causal else 'both ways'}"
        )


def token_ids(inputs: Tensor | Mapping[str, Tensor]) -> Tensor:
    """(B, N) int64: the numbers of tokens in what a text model is called with."""
    found = inputs.get("input_ids") if isinstance(inputs, Mapping) else inputs
    if found is None or found.is_floating_point():
        raise UnsuitableDataError("These are no texts: expected `input_ids` (B, N) of whole numbers.")
    return found


def text_layout(module: Any) -> TextLayout:
    """Read off a built text model of transformers."""
    config, blocks = module.config, blocks_of(module)
    rows = [block_row(block) for block in blocks]
    attentions: list[Any] = [block.get_submodule(row.attn) for block, row in zip(blocks, rows)]
    first = attentions[0]
    head_dim = next(getattr(first, n) for n in ("head_dim", "attention_head_size", "head_size") if hasattr(first, n))
    scales = [
        row.scale if row.scale is not None else getattr(attention, "scaling", head_dim**-0.5)
        for row, attention in zip(rows, attentions)
    ]
    length = int(config.max_position_embeddings)
    # the module that adds positions, of a kind of model that keeps it apart
    embeddings = getattr(getattr(module, module.base_model_prefix, module), "embeddings", None)
    padding = getattr(embeddings, "padding_idx", None)
    if padding is not None:  # RoBERTa counts positions from there, and never uses the ones before
        length -= padding + 1
    everywhere = getattr(config, "sliding_window", None) if config.model_type == "mistral" else None
    return TextLayout.of_sequence(
        length,
        blocks=len(blocks),
        heads=config.num_attention_heads,
        head_dim=head_dim,
        width=config.hidden_size,
        scales=tuple(map(float, scales)),
        key_heads=getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        causal=bool(getattr(first, "is_causal", False)),
        windows=tuple(getattr(a, "sliding_window", None) or everywhere for a in attentions),
    )


def decoder_layout(module: Any) -> TextLayout:
    """Read off a decoder of our own (`vitscope.models.decoder`)."""
    attention = module.blocks[0].attn
    return TextLayout.of_sequence(
        module.context,
        blocks=len(module.blocks),
        heads=attention.num_heads,
        head_dim=attention.head_dim,
        width=module.embed.embedding_dim,
        key_heads=attention.num_heads,
        causal=True,
        windows=(None,) * len(module.blocks),
    )
