"""What a language model goes on with: a text, token by token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from vitscope.errors import UnsupportedModelError, VitscopeError
from vitscope.models.inputs import tokenizing
from vitscope.models.model import Model

UNFINISHED = "\ufffd"  # stands for bytes that are no character yet


def generate(
    model: Model, prompt: str = "", *, tokens: int = 100, temperature: float = 0.8, seed: int = 0
) -> Iterator[str]:
    """Pieces of what follows `prompt`, each as soon as it is drawn.

    temperature: logits are divided by it; 0 takes the most likely token every time. The model sees as many of the last
    tokens as it takes.
    """
    if not getattr(model.layout, "causal", False) or model.num_classes == 0:
        raise UnsupportedModelError(f"{model.name} is no causal language model: it cannot go on with a text.")
    if tokens < 1 or not 0 <= temperature < float("inf"):
        raise VitscopeError(f"tokens={tokens}, temperature={temperature}: expected at least 1, and 0 or more.")
    return _pieces(model, prompt, tokens, temperature, torch.Generator().manual_seed(seed))


def _pieces(model: Model, prompt: str, tokens: int, temperature: float, draw: torch.Generator) -> Iterator[str]:
    preprocess: Any = tokenizing(model)
    ids = list(preprocess.encode(prompt)) or [next(i for i in (preprocess.bos, preprocess.eos, 0) if i is not None)]
    told = preprocess.decode(ids)
    for _ in range(tokens):
        window = torch.tensor([ids[-preprocess.length :]])
        with torch.no_grad():
            logits = model(model.place(window))[0, -1]
        ids.append(_choose(logits.cpu().double(), temperature, draw))
        text = preprocess.decode(ids)
        if not text.endswith(UNFINISHED):
            yield text[len(told) :]
            told = text


def _choose(logits: Tensor, temperature: float, draw: torch.Generator) -> int:
    if temperature == 0:
        return int(logits.argmax())
    return int(torch.multinomial((logits / temperature).softmax(-1), 1, generator=draw))
