from __future__ import annotations

from pathlib import Path

import pytest

from vitscope.errors import VitscopeError
from vitscope.training import TrainOptions, train
from vitscope.training.side_by_side import train_side_by_side

TINY = {"img_size": 28, "patch_size": 14, "in_chans": 1, "embed_dim": 16, "depth": 1, "num_heads": 2}
SHORT = {"data": "mnist5k", "model_options": TINY, "epochs": 1, "share": 0.03, "batch_size": 30, "progress": False}


def test_two_trainings_give_what_each_gives_alone_and_are_opened_when_they_are_finished(tmp_path: Path) -> None:
    options = [TrainOptions(out=tmp_path / f"seed{seed}", seed=seed, **SHORT) for seed in (0, 1)]
    runs = train_side_by_side(options)
    alone = train(TrainOptions(out=tmp_path / "alone", seed=1, **SHORT))
    assert [run.status for run in runs] == ["finished", "finished"]
    assert runs[1].table("training").equals(alone.table("training"))
    before = (tmp_path / "seed0" / "run.json").stat().st_mtime_ns
    train_side_by_side(options)
    assert (tmp_path / "seed0" / "run.json").stat().st_mtime_ns == before


def test_one_that_fails_is_named_with_its_reason_and_the_other_one_finishes(tmp_path: Path) -> None:
    good = TrainOptions(out=tmp_path / "good", **SHORT)
    bad = TrainOptions(out=tmp_path / "bad", **{**SHORT, "batch_size": 10_000})
    with pytest.raises(VitscopeError, match=r"bad failed.*larger than the 120 training images"):
        train_side_by_side([bad, good])
    assert train_side_by_side([good])[0].status == "finished"
