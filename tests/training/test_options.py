from __future__ import annotations

from pathlib import Path
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


def test_options_that_older_runs_do_not_name_are_saved_only_where_they_say_something() -> None:
    older = {"mask_decoding", "use_ema", "rate_set", "decay_rate", "lr_noise", "auto_augment", "erase_mode"}
    assert not older & set(TrainOptions().to_config())
    changed = TrainOptions(schedule="step", decay_rate=0.5, lr_noise=(0.4, 0.9), probe_images="all")
    saved = changed.to_config()
    assert (saved["decay_rate"], saved["lr_noise"], saved["probe_images"]) == (0.5, [0.4, 0.9], "all")
    assert TrainOptions.from_config(saved) == changed


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
        ({"schedule": "platau"}, "Did you mean plateau"),
        ({"decay_rate": float("nan")}, "decay_rate=nan"),
        ({"decay_rate": -0.1}, "decay_rate=-0.1 makes no training: expected between 0 and 1"),
        ({"decay_epochs": 0.0}, "decay_epochs=0.0"),
        ({"patience_epochs": -1}, "patience_epochs=-1"),
        ({"lr_noise": (0.9, 0.4)}, "lr_noise=0.9 0.4: expected one or two rising shares"),
        ({"lr_noise": (1.5,)}, "lr_noise=1.5"),
        ({"lr_noise": (float("nan"),)}, "lr_noise=nan"),
        ({"lr_noise_pct": 0.0}, "lr_noise_pct=0.0"),
        ({"rate_set": "late", "schedule": "plateau"}, "no accuracy to wait for"),
        ({"color_jitter": -0.4}, "color_jitter=-0.4"),
        ({"auto_augment": "v0", "randaugment": "rand-m9"}, "leave one out"),
        ({"train_interpolation": "bicubic"}, "augment='resized'"),
        ({"train_interpolation": "bicubik"}, "Did you mean bicubic"),
        ({"erase_mode": "pixels"}, "Did you mean pixel"),
        ({"erase_count": 0}, "erase_count=0"),
        ({"cutmix_minmax": (0.2,)}, "cutmix_minmax=0.2: expected two rising shares"),
        ({"cutmix_minmax": (0.2, 1.8)}, "cutmix_minmax=0.2 1.8"),
        ({"mixup_prob": 1.5}, "mixup_prob=1.5"),
        ({"mixup_mode": "element"}, "Known: batch, pair, elem"),
        ({"inat_category": "genus"}, "goes with --data inaturalist, not with mnist5k"),
        ({"inat_category": "species", "data": "inaturalist"}, "Known: kingdom, phylum, class, order"),
        ({"preprocess": "separatoin"}, "Did you mean separation"),
        ({"probe_images": 0}, "probe_images=0"),
        ({"probe_images": "every"}, "probe_images: expected a whole number or 'all', not 'every'"),
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


def test_an_option_that_lies_elsewhere_says_where() -> None:
    with pytest.raises(VitscopeError, match=r"model_options=\{'img_size': 48\}"):
        TrainOptions.from_config({"img_size": 48})
    with pytest.raises(VitscopeError, match=r"share=0\.1"):
        TrainOptions.from_config({"images": 2000})


def test_data_are_named_and_not_handed_over(tmp_path: Path) -> None:
    assert TrainOptions(data=tmp_path) == TrainOptions(data=str(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(VitscopeError, match="expected a name, a folder or file:function, not list"):
        TrainOptions(data=["mnist5k"])  # type: ignore[arg-type]


def test_a_run_s_whole_configuration_holds_the_options_and_nothing_unknown():
    saved = {"label": "a", "options": {"epochs": 3}, "steps_per_epoch": 7, "device": "cpu"}
    assert TrainOptions.from_config(saved) == TrainOptions(epochs=3)
    with pytest.raises(VitscopeError, match="has no 'epochs'"):
        TrainOptions.from_config({**saved, "epochs": 5})
    with pytest.raises(VitscopeError, match="options should be an object and is 3"):
        TrainOptions.from_config({"options": 3})
