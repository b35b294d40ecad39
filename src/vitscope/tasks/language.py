"""The next token, at every place of a text."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitscope.data import Data
from vitscope.data.batch import Batch
from vitscope.models import Model
from vitscope.tasks.base import Measure, Task, register_task
from vitscope.tasks.words import Words

TEXTS = Words("text", "texts", "token", "tokens")
LONGEST = 700.0  # nats: exp of more is no number
CHUNK = 2**24  # logits that are looked at at a time: 128 MB in float64


@register_task("language")
class Language(Task):
    """Outputs (B, N, V): what is expected after each token. Targets (B, N): what came, -1 where nothing is compared."""

    measure = Measure("perplexity", "", larger=False)
    evaluation = "perplexity"

    def __init__(self, words: Words = TEXTS) -> None:
        super().__init__(words)

    def match(self, model: Model, data: Data) -> tuple[Data, str | None]:
        """Where windows begin depends on the tokenizer: they are cut now."""
        cut = getattr(data, "cut", None)
        return (data if cut is None else cut(model.preprocess)), None

    def model_options(self, data: Data) -> dict[str, Any]:
        """As many words and positions as the vocabulary of a training has."""
        preprocess = getattr(data, "preprocess", None)
        return {} if preprocess is None else {"num_classes": preprocess.rows, "context": preprocess.length}

    def tally(self, outputs: Tensor, targets: Tensor) -> list[float]:
        nats, right = token_losses(outputs, targets)
        return [float(nats.sum()), float(right.sum()), float((targets >= 0).sum())]

    def item_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses = F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none", ignore_index=-1)
        return losses.view(targets.shape).sum(-1)

    def right(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return first_guesses(outputs.detach(), targets).sum(-1)

    def counted(self, targets: Tensor) -> Tensor:
        return (targets >= 0).sum(-1)

    def judged(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        assert batch.outputs is not None
        item, place = (batch.targets >= 0).nonzero(as_tuple=True)
        return batch.outputs[item, place].cpu().double(), batch.targets[item, place], item

    def figures(self, loss: float, right: float, counted: float, *more: float) -> dict[str, float]:
        mean = loss / counted
        told = {"loss": mean, "perplexity": math.exp(min(mean, LONGEST))}
        # a model that looks at few words only does not know its first guess
        return told if math.isnan(right) else {**told, "accuracy": right / counted}


def first_guesses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Is the most likely token the one that came? (B, N, V), (B, N) -> (B, N) bool, False where nothing is compared.

    On a CPU the largest value is found five times as fast as its place, which is asked for only where it may be right.
    """
    asked = targets >= 0
    if outputs.device.type != "cpu":  # choosing rows would wait for the device
        return (outputs.argmax(-1) == targets) & asked
    own = outputs.gather(-1, targets.clamp_min(0)[..., None])[..., 0]
    found = (own >= outputs.amax(-1)) & asked
    found[found.clone()] = outputs[found].argmax(-1) == targets[found]  # of equal ones the first
    return found


def token_losses(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """(B, N, V), (B, N) -> nats (B, N) float64, 0 where nothing is compared, and is the first guess right? (B, N) bool.

    A part of the vocabulary's logits is in float64 at a time, so that a long text needs no more than a short one.
    """
    asked = targets >= 0
    logits, wanted = outputs.detach()[asked.to(outputs.device)], targets[asked]  # (T, V), (T,)
    losses, right = [], []
    for part, truth in zip(logits.split(size := max(1, CHUNK // logits.shape[-1])), wanted.split(size)):
        log_p = part.cpu().double().log_softmax(-1)
        losses.append(-log_p.gather(1, truth[:, None])[:, 0])
        right.append(log_p.argmax(1) == truth)
    nats = torch.zeros(targets.shape, dtype=torch.float64)
    hits = torch.zeros(targets.shape, dtype=torch.bool)
    if losses:
        nats[asked], hits[asked] = torch.cat(losses), torch.cat(right)
    return nats, hits
