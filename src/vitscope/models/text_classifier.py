"""`text-classifier`: an encoder or a language model with a head of classes behind it, which `vitscope train` tunes.

tokens = encoder(text);  logits = head(dropout(pool(tokens)))

The encoder's own vocabulary head is left out. How it is built is one option, its configuration as JSON, so that a run
folder needs nothing else to open again.
"""

from __future__ import annotations

import json
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from vitscope.architectures.families import family_of
from vitscope.architectures.layout import derive_layout
from vitscope.architectures.text_rows import HEADS, check_configuration
from vitscope.errors import UnsupportedModelError, VitscopeError
from vitscope.models.creation import create
from vitscope.models.decoder import Decoder
from vitscope.models.naming import register_model
from vitscope.models.text import import_transformers

NAME = "text-classifier"
Pool = Literal["", "first", "mean", "last"]
_NOT_KEPT = ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype", "auto_map")


def pooled(tokens: Tensor, mask: Tensor | None, pool: str) -> Tensor:
    """One vector per text: its first token, the mean of its tokens, or its last one. (B, N, C), (B, N) -> (B, C)

    Padding, where the mask is 0, is never seen.
    """
    if pool == "first":
        return tokens[:, 0]
    real = torch.ones_like(tokens[..., 0]) if mask is None else mask.to(tokens.dtype)  # (B, N)
    if pool == "mean":
        return (tokens * real[..., None]).sum(1) / real.sum(1, keepdim=True)
    last = real.sum(1).long() - 1  # texts are padded at the right
    return tokens[torch.arange(len(tokens), device=tokens.device), last]


class TextClassifier(nn.Module):
    """(B, N) tokens -> logits (B, classes)"""

    def __init__(self, encoder: nn.Module, num_classes: int, pool: str, dropout: float) -> None:
        super().__init__()
        if num_classes < 1:
            raise ValueError(f"num_classes={num_classes}: expected at least 1")
        if pool not in get_args(Pool):
            raise ValueError(f"pool={pool!r}: expected 'first', 'mean' or 'last'")
        layout: Any = derive_layout(encoder)
        if pool == "first" and layout.causal:
            raise ValueError(
                "pool='first': the first token of a model that looks back sees nothing but itself; say 'last'"
            )
        self.encoder, self.num_classes = encoder, num_classes
        self.pool = pool or ("last" if layout.causal else "mean")
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(layout.width, num_classes)
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        row = family_of(self.encoder)
        tokens = row.answer(self.encoder(input_ids=input_ids, attention_mask=attention_mask, **row.call))  # (B, N, C)
        return self.head(self.dropout(pooled(tokens, attention_mask, self.pool)))

    def get_input_embeddings(self) -> nn.Module:
        """As models of transformers call it."""
        encoder: Any = self.encoder
        return encoder.get_input_embeddings()


def encoder_of(module: Any) -> nn.Module:
    """What is inside of a text model: without its head of words, or of classes."""
    if isinstance(module, TextClassifier):
        return module.encoder
    if isinstance(module, Decoder):
        module.head = nn.Identity()
        return module
    return module.base_model


def encoder_json(module: Any, name: str = "", options: dict[str, Any] | None = None) -> str:
    """How an encoder is built: the configuration of transformers, or our own name and options."""
    if name:
        return json.dumps({"name": name, **(options or {})}, sort_keys=True)
    told = module.config.to_diff_dict()
    return json.dumps({key: value for key, value in told.items() if key not in _NOT_KEPT}, sort_keys=True)


def build_encoder(told: str) -> nn.Module:
    """An encoder with fresh weights from its JSON."""
    try:
        settings = dict(json.loads(told))
    except (ValueError, TypeError, RecursionError) as error:
        raise VitscopeError(
            f"encoder={told[:60]!r} is no configuration in JSON: a training writes it. To tune an encoder, type "
            "`vitscope train --recipe sentences --weights FOLDER`."
        ) from error
    if name := settings.pop("name", None):
        return encoder_of(create(str(name), **settings))
    transformers = import_transformers()
    kind = str(settings.pop("model_type", ""))
    if kind not in HEADS:
        raise UnsupportedModelError(f"An encoder of kind {kind!r} is not supported: known are {', '.join(HEADS)}.")
    config = transformers.AutoConfig.for_model(kind, **settings)
    check_configuration(config)
    builder: Any = getattr(transformers, f"AutoModelFor{'CausalLM' if HEADS[kind] == 'causal' else 'MaskedLM'}")
    return encoder_of(builder.from_config(config, attn_implementation="sdpa", dtype=torch.float32))


@register_model("text-classifier")
def text_classifier(
    *,
    encoder: str = '{"name": "lm-small"}',  # its configuration as JSON, which a training writes
    num_classes: int = 2,
    pool: Pool = "",  # first, mean or last token; '': last of a model that looks back, else the mean
    dropout: float = 0.1,  # before the head
) -> TextClassifier:
    """Made by `vitscope train --model text-classifier --weights FOLDER`."""
    return TextClassifier(build_encoder(encoder), num_classes, pool, dropout)
