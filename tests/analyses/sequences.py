"""Data that are no pictures and a model without a grid, as a user would bring them: numbers, an encoder of timm blocks.

Which of two tokens is there more often? `python sequences.py analyze OUT [BATCH]` looks inside a model with random
weights, and with BATCH is killed there; `python sequences.py train OUT [STEP]` trains one, likewise.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import torch
from timm.models.vision_transformer import Block
from torch import Tensor, nn

import vitscope
from vitscope.architectures import Family, Layout, register_family
from vitscope.data import Batch
from vitscope.tasks import Classification, Words
from vitscope.training import TrainOptions, train
from vitscope.training.loop import Training

LENGTH, TOKENS, WIDTH = 12, 5, 16


class Encoder(nn.Module):
    def __init__(self, depth: int = 3, num_classes: int = 2) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.start = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.places = nn.Parameter(torch.randn(1, LENGTH + 1, WIDTH))
        self.layers = nn.ModuleList(Block(WIDTH, 2) for _ in range(depth))
        self.last = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        x = torch.cat([self.start.expand(len(tokens), -1, -1), self.embed(tokens)], 1) + self.places  # (B, N, C)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.last(x)[:, 0])


def layout(module: Encoder) -> Layout:
    return Layout.of_sequence(LENGTH, blocks=len(module.layers), heads=2, head_dim=WIDTH // 2, width=WIDTH, prefix=1)


register_family(Encoder, Family("encoder of numbers", embedding="embed", blocks="layers", norm="last", layout=layout))


class Sequences:
    """What the engine asks of data."""

    name, classes, class_ids, num_classes = "numbers", ["fewer", "more"], ["fewer", "more"], 2
    warnings, has_masks, strict, shards = (), False, False, ()
    task = Classification(Words("sequence", "sequences", "token", "tokens"))

    def __init__(self, n: int = 50, kill_at: int | None = None, split: str = "test") -> None:
        self.split, self.kill_at = split, kill_at
        draw = torch.Generator().manual_seed(["test", "train"].index(split))
        self.tokens = torch.randint(0, TOKENS, (n, LENGTH), generator=draw)
        self.labels = ((self.tokens == 1).sum(1) > (self.tokens == 0).sum(1)).long().tolist()

    def __len__(self) -> int:
        return len(self.tokens)

    def subset(self, indices: Any) -> Sequences:
        chosen = Sequences(split=self.split)
        chosen.tokens, chosen.labels = self.tokens[list(indices)], [self.labels[i] for i in indices]
        return chosen

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "split": self.split, "n": len(self), "fingerprint": str(self.tokens.sum())}

    def check_head(self, num_classes: int, model: str = "") -> None:
        assert num_classes == self.num_classes

    def batches(
        self, preprocess: Any, batch_size: int, *, rank: int = 0, world: int = 1, start: int = 0, workers: int = 0
    ) -> Iterator[Batch]:
        for number, first in enumerate(range(0, len(self), batch_size)):
            if number % world == rank and number >= start:
                if number == self.kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                rows = torch.arange(first, min(first + batch_size, len(self)))
                labels = torch.tensor(self.labels)[rows]
                yield Batch(self.tokens[rows], labels, rows, [f"numbers[{i}]" for i in rows], number=number)


def build() -> vitscope.Model:
    torch.manual_seed(0)
    return vitscope.open_model(Encoder())


ANALYSES = ["accuracy", "attention", "kpca.spectrum", "kpca.reconstruction", "separation"]


def numbers(split: str = "test") -> Sequences:
    return Sequences(512 if split == "train" else 128, split=split)


def training(out: str) -> TrainOptions:
    """The module is imported under its own name, so that a training finds data and model by their addresses."""
    how = {"epochs": 3, "batch_size": 32, "lr": 3e-3, "checkpoint_steps": 5, "progress": False}
    return TrainOptions(out, "sequences:numbers", model="sequences:Encoder", probe=("accuracy", "attention"), **how)


if __name__ == "__main__":
    what, out, stop = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None
    if what == "analyze":
        data = Sequences(kill_at=stop)
        vitscope.analyze(build(), data, ANALYSES, out, batch_size=8, save_every=0, progress=False)
    else:
        sys.path.insert(0, os.path.dirname(__file__))
        if stop is not None:
            after = Training.step

            def step(self: Training, at: int, batch: Batch) -> None:
                if at == stop:
                    os.kill(os.getpid(), signal.SIGKILL)
                after(self, at, batch)

            Training.step = step
        train(training(out))
