from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import launch
from vitscope.errors import VitscopeError
from vitscope.models import open_model
from vitscope.training import TrainOptions, train
from vitscope.training.checkpoint import LAST, load_checkpoint
from vitscope.training.processes import accelerated, seed_step

Tiny = Callable[..., TrainOptions]

# Each process notes what it sees: how many there are, and the weights it holds itself after every epoch.
SCRIPT = """
import hashlib, json, os, sys
import torch
from vitscope.training import TrainOptions, loop, train
from safetensors.torch import save

seen = []
real = loop.evaluate

def noting(options, model, *args):
    import torch.distributed as dist
    seen.append([dist.get_world_size(), hashlib.sha256(save(model.module.state_dict())).hexdigest()])
    return real(options, model, *args)

loop.evaluate = noting
options = json.loads(sys.argv[1])
broken_at = int(sys.argv[2])
if broken_at >= 0:  # an error in the middle of an epoch, then the same call again
    step = loop.seed_step

    def breaking(seed, at, rank):
        if at == broken_at:
            raise RuntimeError("broken off")
        step(seed, at, rank)

    loop.seed_step = breaking
    try:
        train(TrainOptions(**options))
    except RuntimeError as error:
        assert "broken off" in str(error), error
    loop.seed_step = step
run = train(TrainOptions(**options))
open(options["out"] + ".rank" + os.environ["RANK"], "w").write(json.dumps(seen))
"""


def together(options: TrainOptions, modules: Path, broken_at: int = -1, torchrun: bool = False) -> list[list]:
    """(world, weights) after every epoch, as each of two processes saw it."""
    arguments = json.dumps({**options.to_config(), "out": str(options.out), "progress": False})
    if torchrun:
        script = Path(options.out).with_suffix(".py")
        script.write_text(SCRIPT)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", script]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(modules), *sys.path]), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*command, arguments, str(broken_at)], env=environment, capture_output=True, text=True, timeout=300
        )
    else:
        done = launch.run("-c", SCRIPT, arguments, broken_at, world=2, env={"PYTHONPATH": str(modules)})
    assert done.returncode == 0, done.stderr
    return [json.loads(Path(f"{options.out}.rank{rank}").read_text()) for rank in range(2)]


def test_two_processes_hold_the_same_weights_and_learn_what_one_learns(
    tiny: Tiny, textures: Path, tmp_path: Path
) -> None:
    without_dropout = {"img_size": 16, "patch_size": 4, "in_chans": 1, "embed_dim": 16, "depth": 2, "num_heads": 2}
    settings = {"model_options": without_dropout, "probe": ("accuracy",), "probe_images": 30, "lr": 1e-3}
    first, second = together(tiny("two", **settings), textures, torchrun=True)
    assert [world for world, _ in first] == [2, 2, 2]
    assert first == second

    one = train(tiny("one", **settings))
    two = train(tiny("two", **settings))  # finished: only opened
    assert two.environment["world_size"] == 2
    for key, value in load_checkpoint(one.checkpoints_dir / LAST).weights.items():
        other = load_checkpoint(two.checkpoints_dir / LAST).weights[key]
        assert torch.allclose(value, other, atol=1e-4), key
    for name in ("training", "probe_accuracy"):
        a, b = one.table(name), two.table(name)
        assert list(a.columns) == list(b.columns)
        assert (a.select_dtypes("number") - b.select_dtypes("number")).abs().max().max() < 1e-2
    assert (two.table("probe_accuracy")["n"] == 30).all()  # images, each counted once


@pytest.mark.parametrize("sharded", [False, True])
def test_two_processes_reach_the_weights_of_one_to_nine_digits(
    tiny: Tiny, textures: Path, tmp_path: Path, sharded: bool
) -> None:
    """50 steps of AdamW in float64 with the same global batch: what is left is the order of summation.

    The sharded one is also broken off in its sixth epoch and resumed.
    """
    settings = {
        "model_options": {"img_size": 16, "patch_size": 4, "in_chans": 1, "embed_dim": 16, "depth": 2, "num_heads": 2},
        "attention": "rpc:layers=0,iterations=2",
        "optimizer": "adamw", "dtype": "float64", "epochs": 10, "lr": 1e-3,
        "batch_size": 18,  # 5 steps in 96 images
    }  # fmt: skip
    two = tiny("two", sharded=sharded, **settings)
    first, second = together(two, textures, broken_at=27 if sharded else -1)
    assert [world for world, _ in first] == [2] * 10
    assert first == second
    one = train(tiny("one", **settings))
    weights, others = (load_checkpoint(Path(tiny(name).out) / "checkpoints" / LAST).weights for name in ("one", "two"))
    fresh = open_model("vit_tiny_patch16_224", "random", num_classes=4, **settings["model_options"]).module
    assert one.config["steps_per_epoch"] == 5
    for key, value in weights.items():
        assert value.dtype == torch.float64
        assert (value - others[key]).abs().max() < 1e-9, key
    moved = (weights["head.weight"] - fresh.state_dict()["head.weight"]).abs().max()
    assert moved > 1e-3, "the comparison means nothing if nothing was learned"


def test_one_process_alone_cannot_be_sharded(tiny: Tiny) -> None:
    with pytest.raises(VitscopeError, match="torchrun"):
        train(tiny(sharded=True))
    with pytest.raises(VitscopeError, match="ema"):
        tiny(sharded=True, ema=0.9)


def test_a_batch_that_cannot_be_shared_evenly_is_refused(tiny: Tiny) -> None:
    from vitscope.training.setup import open_data

    with pytest.raises(VitscopeError, match="multiple of 3"):
        open_data(tiny(batch_size=16), processes=3)


def test_trainings_of_different_precision_follow_each_other_in_one_process(tiny: Tiny) -> None:
    for precision in ("no", "bf16", "no"):
        run = train(tiny(precision, epochs=1, mixed_precision=precision, overwrite=True))
        assert run.table("training")["train_loss"].notna().all()


def test_processes_that_accelerate_would_run_apart_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("vitscope.training.processes._has_accelerator", lambda: True)
    with (
        pytest.raises(VitscopeError, match="2 processes were started, but Accelerate sees 1"),
        accelerated("auto", "no"),
    ):
        pass


def test_every_process_and_step_has_its_own_dropout() -> None:
    def drawn(*where: int) -> float:
        with torch.random.fork_rng():
            seed_step(*where)
            return float(torch.rand(1))

    assert len({drawn(0, 0, 0), drawn(0, 1, 0), drawn(0, 0, 1), drawn(1, 0, 0)}) == 4
    assert drawn(0, 3, 1) == drawn(0, 3, 1)
