"""How often a training waits for its device. A CPU plays the GPU: the watch is told that looking costs something."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vitscope.data.randomness import permutation
from vitscope.errors import NumericalError
from vitscope.processes import Processes
from vitscope.training import TrainOptions, augment, loop, train, watch
from vitscope.training.checkpoint import LAST, load_checkpoint

Tiny = Callable[..., TrainOptions]


@pytest.fixture
def costly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks every ten steps, however slow the machine is that runs this."""

    def device(_: torch.device, processes: Processes) -> watch.Watch:
        return watch.Watch(torch.device("meta"), processes)

    monkeypatch.setattr(loop, "Watch", device)
    monkeypatch.setattr(watch, "SECONDS", 1e9)


class HostReads(TorchDispatchMode):
    """Counts numbers that are read from tensors: `.item()`, `float(x)`, `if x`."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_a_step_reads_nothing_from_its_device_and_every_tenth_looks(
    tiny: Tiny, costly: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    looks: list[int] = []
    reads = HostReads()
    step, look = loop.Training.step, watch.Watch.look

    def counted(self: loop.Training, at: int, *args: Any) -> None:
        steps.append(at)
        with reads:
            step(self, at, *args)

    def noted(self: watch.Watch, stop: bool) -> Any:
        looks.append(steps[-1])
        return look(self, stop)

    monkeypatch.setattr(loop.Training, "step", counted)
    monkeypatch.setattr(watch.Watch, "look", noted)
    # 24 steps of all kinds of things; not AdamW, which keeps counters of its own on the host
    train(tiny(epochs=1, batch_size=4, accumulate=2, mixup=0.8, cutmix=1.0, ema=0.9, clip_grad=1.0, optimizer="sgd"))
    assert steps == list(range(24))
    assert looks == [0, 10, 20, 23]  # the last one ends the epoch
    assert reads.count == 0

    with reads:
        assert torch.ones(()).item()
    assert reads.count == 1


def test_how_often_it_looks_changes_no_digit(tiny: Tiny, request: pytest.FixtureRequest) -> None:
    settings = {"batch_size": 4, "mixup": 0.8, "checkpoint_steps": 7}
    always = train(tiny("always", **settings))
    request.getfixturevalue("costly")
    seldom = train(tiny("seldom", **settings))
    for file in ("tables/training.csv", "checkpoints/last/model.safetensors"):
        assert (always.path / file).read_bytes() == (seldom.path / file).read_bytes()


@pytest.mark.parametrize("checkpoint_steps", [0, 3])
def test_a_bad_loss_that_is_noticed_late_is_named_by_its_step_and_nothing_is_saved(
    tiny: Tiny, costly: None, monkeypatch: pytest.MonkeyPatch, checkpoint_steps: int
) -> None:
    real = augment.EpochAugmentation.__call__
    bad = permutation(96, 0, 1)[16:32]  # the second step of the second epoch of six: step 7 from the beginning

    def poisoned(self: object, images: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return real(self, images, indices) * (float("nan") if indices.tolist() == bad else 1)

    monkeypatch.setattr(augment.EpochAugmentation, "__call__", poisoned)
    noticed = 8 if checkpoint_steps else 11  # before a checkpoint, or at the end of the epoch
    with pytest.raises(NumericalError, match=r"nan at step 7 \(step 1 of 6 in epoch 2\)") as caught:
        train(tiny(checkpoint_steps=checkpoint_steps))
    assert f"First to be bad: not known, because it was noticed at step {noticed}" in str(caught.value)
    checkpoint = load_checkpoint(Path(tiny().out) / "checkpoints" / LAST)
    assert (checkpoint.state["progress"]["epoch"], checkpoint.state["progress"]["step"]) == (1, 0)
    assert all(value.isfinite().all() for value in checkpoint.weights.values())


def test_slow_steps_are_all_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.01, 0.01, 0.11, 0.11, 3.11, 3.11])  # when it begins, and twice at each look
    monkeypatch.setattr(watch.time, "monotonic", lambda: next(clock))
    watching = watch.Watch(torch.device("meta"), Processes())
    gaps = []
    for _ in range(3):
        while not watching.due(stop=False):
            watching.note([(torch.tensor(2.0), torch.tensor(1))], 4)
        found, _ = watching.look(stop=False)
        assert found == [[2.0, 1.0, 4.0]] * len(found)
        gaps.append(watching.gap)
    assert gaps == [10, 10, 3]  # steps of 0.01, 0.01 and 0.3 seconds
    watching.note([(torch.tensor(2.0), torch.tensor(1))], 4)
    assert watching.due(stop=True)  # alone, there is nobody to agree with
    assert not watching.due(stop=False)
