"""What a training step of a language model costs beside a plain loop over the same model.

    python benchmarks/language.py [--repeats 15]

`lm-small` on Python's help topics, 8 streams of 128 byte pairs: blocks of 4 steps of the one training loop (batches,
rate, dropout's seed, losses that are watched, progress bar) and of ten lines of PyTorch take turns. Both start from the
same weights and see the same tokens; that they end with the same weights, but for rounding, is checked.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from timing import report
from vitscope.training import TrainOptions, recipe_options
from vitscope.training.loop import Training
from vitscope.training.processes import accelerated, preserved_randomness

STEPS, WARMUP, BOUND = 4, 2, 1.05
OURS, PLAIN = "the training loop", "a plain loop"


class Measured(Exception):
    """Raised when there are as many repeats as were wanted: the rest of the training is of no interest."""


class PlainLoop:
    """What one would write for the same training."""

    def __init__(self, module: nn.Module, tokens: Tensor, options: TrainOptions) -> None:
        self.module, self.tokens, self.context, self.clip = module, tokens, int(options.context or 0), options.clip_grad
        decays = [p for p in module.parameters() if p.dim() > 1]
        rest = [p for p in module.parameters() if p.dim() <= 1]
        groups = [{"params": rest, "weight_decay": 0.0}, {"params": decays, "weight_decay": options.weight_decay}]
        self.optimizer = torch.optim.AdamW(groups, lr=options.lr)

    def step(self, at: int) -> None:
        window = self.tokens[:, at * self.context : (at + 1) * self.context + 1]
        logits = self.module(window[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(self.module.parameters(), self.clip or float("inf"))
        self.optimizer.step()
        self.optimizer.zero_grad()


class TakingTurns:
    """The batches of a training; between two blocks of steps the plain loop does the same ones."""

    def __init__(self, feed: Any, plain: PlainLoop, repeats: int) -> None:
        self.feed, self.plain, self.repeats = feed, plain, repeats
        self.seconds: dict[str, list[float]] = {PLAIN: [], OURS: []}

    def epoch(self, *size: int, **turn: int) -> Iterator[Any]:
        start = time.perf_counter()
        for at, batch in enumerate(self.feed.epoch(*size, **turn), 1):
            yield batch
            if at % STEPS:
                continue
            self.seconds[OURS].append(time.perf_counter() - start)
            start = time.perf_counter()
            for step in range(at - STEPS, at):
                self.plain.step(step)
            self.seconds[PLAIN].append(time.perf_counter() - start)
            if len(self.seconds[PLAIN]) == WARMUP + self.repeats:
                raise Measured
            start = time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15, choices=range(1, 21))
    repeats = parser.parse_args().repeats
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    with tempfile.TemporaryDirectory() as out:
        # no dropout and a rate that stays, so that both loops can be compared weight by weight
        how: dict[str, Any] = {"schedule": "constant", "warmup_steps": 0, "warmup_epochs": 0.0, "device": "cpu"}
        how |= {"model_options": {"dropout": 0.0}, "context": 128, "batch_size": 8, "epochs": 1}  # some 90 steps
        options = recipe_options("lm-small", out=out, **how)
        with accelerated("cpu", "no") as accelerator, preserved_randomness(accelerator.device):
            training: Any = Training(options, accelerator, None)
            tokens = torch.from_numpy(training.data.train.tokens).long()
            start = nn.utils.parameters_to_vector(training.model.module.parameters()).detach().clone()
            plain = PlainLoop(copy.deepcopy(training.model.module).train(), tokens, options)
            training.learned = turns = TakingTurns(training.learned, plain, repeats)
            with suppress(Measured):
                training.learn()
            training.run.close()
    ours, theirs = (nn.utils.parameters_to_vector(m.parameters()) for m in (training.model.module, plain.module))
    apart = float((ours - theirs).norm().detach() / (theirs - start).norm().detach())
    assert apart < 0.05, f"the two loops learned something else: {apart:.3f} of the way apart"
    print(f"{STEPS} steps of {options.batch_size} x {options.context} tokens, {training.model.num_classes:,} words")
    report({name: times[WARMUP:] for name, times in turns.seconds.items()}, PLAIN, {OURS: BOUND})


if __name__ == "__main__":
    main()
