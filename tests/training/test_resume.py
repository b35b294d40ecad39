"""Kill it, start it again: not one bit differs."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import launch
from vitscope.errors import RunError
from vitscope.interrupt import Interrupted
from vitscope.runs import Run
from vitscope.training import TrainOptions, loop, train
from vitscope.training.checkpoint import load_checkpoint

Tiny = Callable[..., TrainOptions]

SCRIPT = """
import json, sys
from vitscope.training import TrainOptions, train
train(TrainOptions(**json.loads(sys.argv[1])))
"""


# every kind of chance and of state that a training can have
EVERYTHING: dict = {
    "augment": "crop", "randaugment": "rand-m9-mstd0.5-inc1", "erase": 0.3, "repeats": 2, "mixup": 0.8, "cutmix": 1.0,
    "smoothing": 0.1, "ema": 0.95, "mixup_mode": "elem", "cutmix_minmax": (0.2, 0.8), "mixup_prob": 0.8,
    "erase_count": 2, "schedule": "plateau", "patience_epochs": 0, "decay_rate": 0.5, "lr_noise": (0.3, 0.9),
}  # fmt: skip


def results(run: Run) -> dict[str, bytes]:
    """Everything that a disturbed run must have in common with an undisturbed one."""
    files = [*run.tables_dir.glob("*.csv"), run.path / "summary.json"]
    files += [*run.checkpoints_dir.glob("last/*.safetensors"), *run.checkpoints_dir.glob("best/*.safetensors")]
    return {str(file.relative_to(run.path)): file.read_bytes() for file in files}


def as_arguments(options: TrainOptions) -> str:
    return json.dumps({**options.to_config(), "out": str(options.out), "progress": False})


@pytest.mark.parametrize("kind", ["plain", "everything"])
def test_killed_at_a_random_moment_and_started_again_it_ends_with_the_same_bits(
    tiny: Tiny, textures: Path, kind: str
) -> None:
    settings = {"epochs": 10, "probe": ("accuracy", "attention"), "probe_every": 5, "probe_images": 20}
    settings |= EVERYTHING if kind == "everything" else {}
    undisturbed = train(tiny("undisturbed", **settings))
    options = tiny("killed", checkpoint_steps=4, **settings)
    out = Path(options.out)
    process = launch.Launched("-c", SCRIPT, as_arguments(options), env={"PYTHONPATH": str(textures)})
    try:
        deadline = time.monotonic() + 120
        while not (out / "checkpoints" / "last").exists() and process.running():
            assert time.monotonic() < deadline
            time.sleep(0.005)
        moment = random.SystemRandom().uniform(0, 0.3)
        time.sleep(moment)
    finally:
        process.kill()
        process.wait()
    if Run.open(out).status == "finished":
        pytest.skip("the process was done before it could be killed")
    resumed = train(options)
    assert len(resumed.environment["resumed"]) == 1
    expected = results(undisturbed)
    assert "tables/probe_attention.csv" in expected
    assert ("checkpoints/last/ema.safetensors" in expected) == (kind == "everything")
    found = results(resumed)
    assert found.keys() == expected.keys(), f"other files after a kill {moment:.3f} s after the first checkpoint"
    for name, content in found.items():
        assert content == expected[name], f"{name} differs after a kill {moment:.3f} s after the first checkpoint"


def interrupt_at(step: int, monkeypatch: pytest.MonkeyPatch, signal_number: int = signal.SIGINT) -> None:
    real = loop.seed_step

    def interrupting(seed: int, at: int, rank: int) -> None:
        if at == step:
            os.kill(os.getpid(), signal_number)
        real(seed, at, rank)

    monkeypatch.setattr(loop, "seed_step", interrupting)


# the first step, the last of an epoch, the middle of another
@pytest.mark.parametrize(("step", "settings"), [(0, {}), (5, {}), (9, {}), (9, EVERYTHING)])
def test_ctrl_c_saves_and_the_same_call_goes_on(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, step: int, settings: dict
) -> None:
    settings = {"probe": ("accuracy",), **settings}
    undisturbed = results(train(tiny("undisturbed", **settings)))
    interrupt_at(step, monkeypatch)
    with pytest.raises(Interrupted, match="the same command again"):
        train(tiny("stopped", **settings))
    monkeypatch.undo()
    assert Run.open(tiny("stopped").out).status == "unfinished"
    assert results(train(tiny("stopped", **settings))) == undisturbed


def test_a_damaged_checkpoint_costs_a_few_steps_and_changes_nothing(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = results(train(tiny("undisturbed")))
    interrupt_at(14, monkeypatch)
    with pytest.raises(Interrupted):
        train(tiny("stopped"))
    monkeypatch.undo()
    victim = Path(tiny("stopped").out) / "checkpoints" / "last" / "training_state.pt"
    victim.write_bytes(victim.read_bytes()[:-100])
    resumed = train(tiny("stopped"))
    assert results(resumed) == undisturbed
    assert any("damaged" in w and "the checkpoint before" in w for w in resumed.warnings)


def test_a_full_disk_stops_and_with_room_again_it_goes_on_to_the_same_bits(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = results(train(tiny("undisturbed")))
    real = os.fsync

    def full(fd: int) -> None:
        if (Path(tiny("full").out) / "checkpoints" / "last").exists():
            raise OSError(28, "No space left on device")
        real(fd)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="disk is full"):
        train(tiny("full"))
    monkeypatch.undo()
    assert load_checkpoint(Path(tiny("full").out) / "checkpoints" / "last").state["progress"]["epoch"] == 1
    assert results(train(tiny("full"))) == undisturbed


@pytest.mark.parametrize("step", [0, 16])
def test_a_folder_that_is_deleted_under_a_training_is_an_error_and_is_not_made_again(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    out, real = Path(tiny("gone").out), loop.seed_step

    def deleting(seed: int, at: int, rank: int) -> None:
        if at == step:
            shutil.rmtree(out)
        real(seed, at, rank)

    monkeypatch.setattr(loop, "seed_step", deleting)
    with pytest.raises(RunError, match=f"The run folder {out} was deleted while it was being written"):
        train(tiny("gone"))
    assert not out.exists()


def test_a_finished_run_is_returned_as_it_is(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    first = train(tiny(epochs=1))
    before = results(first)
    monkeypatch.setattr(loop.Training, "learn", lambda *_: pytest.fail("a finished run was trained again"))
    assert results(train(tiny(epochs=1))) == before
