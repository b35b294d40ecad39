"""A batch in pieces is the whole batch: the same step of the optimiser, with less memory."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

import launch
from vitscope.errors import VitscopeError
from vitscope.interrupt import Interrupted
from vitscope.runs import Run
from vitscope.training import TrainOptions, loop, train
from vitscope.training.checkpoint import LAST, Checkpoint, load_checkpoint
from vitscope.training.setup import open_data

Tiny = Callable[..., TrainOptions]

MODEL = {"img_size": 16, "patch_size": 4, "in_chans": 1, "embed_dim": 16, "depth": 2, "num_heads": 2}
EXACT: dict = {"model_options": MODEL, "dtype": "float64", "optimizer": "adamw", "lr": 1e-3, "epochs": 2}
MIXED: dict = {**EXACT, "mixup": 0.8, "cutmix": 1.0, "smoothing": 0.1, "ema": 0.9, "clip_grad": 0.1}


def last(options: TrainOptions) -> Checkpoint:
    return load_checkpoint(Path(options.out) / "checkpoints" / LAST)


def assert_equal(one: TrainOptions, other: TrainOptions) -> None:
    """Weights, their average and the table, to 1e-6."""
    a, b = last(one), last(other)
    assert a.average.keys() == b.average.keys()
    for values, others in ((a.weights, b.weights), (a.average, b.average)):
        for key, value in values.items():
            assert (value - others[key]).abs().max() < 1e-6, key
    tables = [Run.open(o.out).table("training") for o in (one, other)]
    assert (tables[0] - tables[1]).abs().max().max() < 1e-6


def pictures(folder: Path) -> Path:
    """24 pictures to learn from, of which one cannot be read."""
    for split, n in (("train", 24), ("val", 8)):
        for i in range(n):
            place = folder / split / f"class{i % 2}"
            place.mkdir(parents=True, exist_ok=True)
            Image.new("L", (16, 16), 10 * i + 5 * (i % 2)).save(place / f"{i:02d}.png")
    broken = folder / "train" / "class0" / "06.png"
    broken.write_bytes(broken.read_bytes()[:40])
    return folder


def test_pieces_teach_what_the_whole_batch_teaches(tiny: Tiny) -> None:
    whole = tiny("whole", **MIXED)
    losses = train(whole).table("training")["train_loss"]
    assert losses.diff().abs().max() > 1e-3, "the comparison means nothing if nothing was learned"
    for accumulate in (2, 4):
        cut = tiny(f"{accumulate}", accumulate=accumulate, **MIXED)
        train(cut)
        assert_equal(whole, cut)


@pytest.mark.parametrize("changes", [{"distillation": "soft"}, {"distillation": "hard"}, {"loss": "binary"}])
def test_so_they_do_with_a_teacher_and_another_loss(tiny: Tiny, changes: dict) -> None:
    if "distillation" in changes:
        train(tiny("teacher", epochs=1))
        changes = {**changes, "teacher": str(tiny("teacher").out)}
    whole, cut = tiny("whole", **EXACT, **changes), tiny("cut", accumulate=4, **EXACT, **changes)
    train(whole), train(cut)
    assert_equal(whole, cut)


def test_a_picture_that_cannot_be_read_leaves_pieces_of_different_size(tiny: Tiny, tmp_path: Path) -> None:
    settings = {**EXACT, "data": str(pictures(tmp_path / "pictures")), "batch_size": 8}
    for accumulate in (1, 4, 8):  # 7 pictures make no 8 pieces
        train(tiny(f"{accumulate}", accumulate=accumulate, **settings))
        assert_equal(tiny("1"), tiny(f"{accumulate}"))
    assert len(Run.open(tiny("8").out).skipped) == 1


# Rank 1 alone is asked to stop in the run 'stopped', which is then started again.
TOGETHER = """
import json, os, signal, sys
from vitscope.interrupt import Interrupted
from vitscope.training import TrainOptions, loop, train

real, options = loop.seed_step, [TrainOptions(**o) for o in json.loads(sys.argv[1])]
for o in options:
    def interrupting(seed, at, rank):
        if at == 3 and rank == 1 and o.out.endswith("stopped"):
            os.kill(os.getpid(), signal.SIGTERM)
        real(seed, at, rank)

    loop.seed_step = interrupting
    try:
        train(o)
    except Interrupted as stop:
        loop.seed_step = real
        open(o.out + ".rank" + os.environ["RANK"], "w").write(str(stop))
        train(o)
"""


def test_two_processes_add_their_pieces_and_stop_at_the_same_step(tiny: Tiny, textures: Path, tmp_path: Path) -> None:
    plain = {**EXACT, "data": str(pictures(tmp_path / "pictures")), "batch_size": 8, "ema": 0.9}
    plain |= {"clip_grad": None, "optimizer": "sgd", "epochs": 1}  # neither may hide a gradient of another length
    mixed = {**MIXED, "epochs": 1}
    shared = [tiny("whole", **mixed), *(tiny(name, accumulate=4, **mixed) for name in ("cut", "stopped"))]
    two = [tiny("two", accumulate=2, **plain), tiny("parts", accumulate=2, sharded=True, **{**plain, "ema": 0.0})]
    arguments = json.dumps([{**o.to_config(), "out": str(o.out), "progress": False} for o in [*two, *shared]])
    done = launch.run("-c", TOGETHER, arguments, world=2, env={"PYTHONPATH": str(textures)})
    assert done.returncode == 0, done.stderr

    # one of them has a picture less: the mean is still that of all that could be read
    train(tiny("one", **plain)), train(tiny("unaveraged", **{**plain, "ema": 0.0}))
    assert_equal(tiny("one"), tiny("two"))
    assert_equal(tiny("unaveraged"), tiny("parts"))
    # mixup and cutmix are those of the whole batch of a process
    assert_equal(tiny("whole"), tiny("cut"))
    # asked at one process, both stopped after the same step and saved it; what came of it are the same bits
    words = [Path(f"{tiny('stopped').out}.rank{rank}").read_text() for rank in range(2)]
    assert words[0] == words[1]
    for key, value in last(tiny("cut")).weights.items():
        assert torch.equal(value, last(tiny("stopped")).weights[key]), key
    assert Run.open(tiny("cut").out).table("training").equals(Run.open(tiny("stopped").out).table("training"))


KILLED = """
import json, os, signal, sys
from vitscope.training import TrainOptions, losses, train

real, seen = losses.Objective.__call__, iter(range(1000))

def killing(*args):
    if next(seen) == 4 * 9 + 2:  # the third of four pieces, after nine steps
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args)

losses.Objective.__call__ = killing
train(TrainOptions(**json.loads(sys.argv[1])))
"""


def test_killed_between_two_pieces_it_repeats_the_step_and_ends_with_the_same_bits(tiny: Tiny, textures: Path) -> None:
    settings = {"accumulate": 4, "checkpoint_steps": 4, "mixup": 0.8, "ema": 0.9}  # and dropout
    undisturbed, killed = tiny("undisturbed", **settings), tiny("killed", **settings)
    arguments = json.dumps({**killed.to_config(), "out": str(killed.out), "progress": False})
    assert launch.run("-c", KILLED, arguments, env={"PYTHONPATH": str(textures)}).returncode == -signal.SIGKILL
    assert last(killed).state["progress"]["step"] == 2  # of the second epoch: step 8 of steps of the optimiser
    train(undisturbed), train(killed)
    for file in ("checkpoints/last/model.safetensors", "checkpoints/last/ema.safetensors", "tables/training.csv"):
        assert (Path(killed.out) / file).read_bytes() == (Path(undisturbed.out) / file).read_bytes(), file


def test_a_run_goes_on_with_another_number_of_pieces_and_remarks_it(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = loop.seed_step

    def interrupting(seed: int, at: int, rank: int) -> None:
        if at == 7:
            os.kill(os.getpid(), signal.SIGINT)
        real(seed, at, rank)

    monkeypatch.setattr(loop, "seed_step", interrupting)
    with pytest.raises(Interrupted):
        train(tiny("changed", **MIXED))
    monkeypatch.undo()
    run = train(tiny("changed", accumulate=2, **MIXED))
    assert any("resumed with 1 process(es)" in w and "batches in 2 pieces" in w for w in run.warnings)
    train(tiny("whole", **MIXED))
    assert_equal(tiny("whole"), tiny("changed"))


@pytest.mark.parametrize(
    ("accumulate", "words"),
    [
        (0, "accumulate=0 makes no training: expected at least 1"),
        (5, "cannot be cut into accumulate=5 equal pieces: choose a divisor of 16, or batch_size=15"),
        (32, "cannot be cut into accumulate=32 equal pieces: choose a divisor of 16, or batch_size=32"),
    ],
)
def test_a_number_of_pieces_that_makes_none_is_refused(tiny: Tiny, accumulate: int, words: str) -> None:
    with pytest.raises(VitscopeError, match=words):
        tiny(accumulate=accumulate)


def test_the_pieces_of_all_processes_have_the_same_size(tiny: Tiny) -> None:
    with pytest.raises(VitscopeError, match=r"all 4 processes together in 8 pieces each and must be a multiple of 32"):
        open_data(tiny(accumulate=8), processes=4)
