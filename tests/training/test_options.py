from __future__ import annotations

from typing import get_args

import pytest

from vitscope.errors import VitscopeError
from vitscope.runs.config import dump_yaml
from vitscope.training import TrainOptions
from vitscope.training.augment import AUGMENTATIONS
from vitscope.training.options import Augment


def test_options_survive_the_way_through_yaml() -> None:
    import yaml

    options = TrainOptions(probe=("accuracy",), model_options={"depth": 3}, clip_grad=None, out="elsewhere")
    back = TrainOptions.from_config(yaml.safe_load(dump_yaml(options.to_config())), out="elsewhere")
    assert back == options


def test_the_configuration_does_not_say_where_the_run_lies() -> None:
    assert TrainOptions(out="a", progress=False).to_config() == TrainOptions(out="b", overwrite=True).to_config()


def test_names_may_be_separated_by_commas() -> None:
    assert TrainOptions(probe=("accuracy,attention", "separation")).probe == ("accuracy", "attention", "separation")
    assert TrainOptions(track=("wandb,tensorboard",)).track == ("wandb", "tensorboard")


def test_the_rate_follows_the_batch_where_that_is_asked_for() -> None:
    assert TrainOptions(lr=5e-4, lr_batch=512, batch_size=1024).peak_lr == 1e-3
    assert TrainOptions(lr=5e-4, batch_size=1024).peak_lr == 5e-4


def test_every_offered_augmentation_exists() -> None:
    assert set(get_args(Augment)) == set(AUGMENTATIONS)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epochs": 0}, "epochs=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"lr": float("nan")}, "lr=nan"),
        ({"share": 1.5}, "between"),
        ({"augment": "blur"}, "Known: none, digits, flip, crop, resized"),
        ({"schedule": "plateau"}, "cosine"),
        ({"mixed_precision": "fp8"}, "bf16"),
        ({"probe_splits": ("val",)}, "'val'"),
        ({"epochs": "many"}, "epochs: expected a whole number, not 'many'"),
        ({"lr": [1e-3]}, "lr: expected a number"),
        ({"probe": None}, "probe: expected a list of text"),
        ({"model": 3}, "model: expected text"),
        ({"model_options": [1]}, "model_options: expected key: value lines"),
    ],
)
def test_a_senseless_value_is_named(changes: dict, words: str) -> None:
    with pytest.raises(VitscopeError, match=words.replace("(", r"\(")):
        TrainOptions(**changes)


def test_an_unknown_option_suggests_the_nearest() -> None:
    with pytest.raises(VitscopeError, match="Did you mean batch_size"):
        TrainOptions.from_config({"batchsize": 3})


def test_a_run_s_whole_configuration_holds_the_options_and_nothing_unknown():
    saved = {"label": "a", "options": {"epochs": 3}, "steps_per_epoch": 7, "device": "cpu"}
    assert TrainOptions.from_config(saved) == TrainOptions(epochs=3)
    with pytest.raises(VitscopeError, match="has no 'epochs'"):
        TrainOptions.from_config({**saved, "epochs": 5})
    with pytest.raises(VitscopeError, match="options should be an object and is 3"):
        TrainOptions.from_config({"options": 3})
