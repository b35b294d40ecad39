from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from vitscope.errors import VitscopeError
from vitscope.training import TrainOptions, train
from vitscope.training.side_by_side import reached, train_side_by_side

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


def test_what_is_reached_is_told_in_the_figure_that_a_training_is_judged_by() -> None:
    scenes = pd.DataFrame({"test_accuracy": [0.5, 0.75], "test_mean_iou": [0.1, 0.125]})
    assert reached([("a", scenes), ("b", scenes[:1])]) == "held-out mean IoU: a 12.5%, b 10.0%"
    texts = pd.DataFrame({"test_accuracy": [0.25], "test_perplexity": [49.21]})
    assert reached([("a", texts)]) == "held-out perplexity: a 49.2"
    assert reached([("a", scenes.drop(columns="test_mean_iou"))]) == "held-out accuracy: a 75.0%"
