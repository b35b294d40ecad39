from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from vitscope.errors import VitscopeError
from vitscope.training import RECIPES, TrainOptions, list_recipes, recipe_options
from vitscope.training.recipes import options_of


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_makes_options_and_says_what_it_costs_and_reaches(name: str) -> None:
    recipe_options(name)
    assert RECIPES[name].cost
    assert RECIPES[name].reaches


def test_the_page_says_what_the_recipes_say(repository: Path) -> None:
    page = (repository / "docs" / "training.md").read_text()
    for name, recipe in RECIPES.items():
        assert f"| `{name}` | {recipe.about} | {recipe.cost} | {recipe.reaches} |" in page


def test_the_deit_recipe_has_every_published_setting() -> None:
    o = recipe_options("deit")
    assert (o.epochs, o.optimizer, o.weight_decay, o.schedule, o.warmup_epochs) == (300, "adamw", 0.05, "cosine", 5)
    assert o.peak_lr == pytest.approx(5e-4 * 1024 / 512)
    assert (o.smoothing, o.mixup, o.cutmix, o.randaugment) == (0.1, 0.8, 1.0, "rand-m9-mstd0.5-inc1")
    assert (o.erase, o.repeats, o.clip_grad, o.model_options["drop_path_rate"]) == (0.25, 3, None, 0.1)
    assert o.ema > 0.9999


def test_the_fan_recipe_has_every_published_setting() -> None:
    o = recipe_options("fan")
    assert (o.model, o.epochs, o.optimizer, o.peak_lr, o.weight_decay) == (
        "fan_tiny_12_p16_224",
        300,
        "adamw",
        2e-3,
        0.05,
    )
    assert (o.batch_size, o.schedule, o.warmup_epochs, o.warmup_lr, o.min_lr) == (4 * 128, "cosine", 5, 1e-6, 1e-6)
    assert (o.smoothing, o.mixup, o.cutmix, o.erase, o.randaugment) == (0.1, 0.8, 1.0, 0.25, "rand-m9-mstd0.5-inc1")
    assert (o.ema, o.clip_grad, o.model_options) == (0.99992, None, {})


def test_the_small_recipe_is_that_of_the_separation_study() -> None:
    o = recipe_options("small")
    assert (o.data, o.model, o.augment, o.loss) == ("fashion-mnist", "small", "none", "cross_entropy")
    assert o.model_options == {"norm_eps": 1e-5, "dropouts": 1, "attention_init": "xavier"}
    assert (o.epochs, o.batch_size, o.optimizer, o.peak_lr, o.schedule) == (150, 64, "adam", 1e-3, "constant")
    assert (o.weight_decay, o.warmup_epochs, o.clip_grad, o.smoothing) == (0, 0, None, 0)
    assert (o.preprocess, o.probe_images) == ("separation", "all")


def test_a_recipe_can_be_changed_in_one_detail_of_its_model() -> None:
    plain, changed = recipe_options("quick"), recipe_options("quick", model_options={"depth": 2}, epochs=1)
    assert changed.model_options == {**plain.model_options, "depth": 2}
    assert changed.epochs == 1
    assert changed.lr == plain.lr


def test_an_unknown_recipe_suggests_the_nearest() -> None:
    with pytest.raises(VitscopeError, match="Did you mean quick"):
        recipe_options("quik")


def test_train_takes_a_recipe_by_name_or_options_with_changes(tmp_path):
    by_name = options_of("quick", {"out": tmp_path, "epochs": 2})
    assert by_name == recipe_options("quick", out=tmp_path, epochs=2)
    assert options_of(by_name, {"epochs": 3, "seed": 1}) == replace(by_name, epochs=3, seed=1)
    assert options_of(by_name, {}) == by_name
    assert options_of(None, {"data": "mnist5k"}) == TrainOptions(data="mnist5k")
    with pytest.raises(VitscopeError, match="or the name of a recipe, such as 'quick', not 3"):
        options_of(3, {})  # type: ignore[arg-type]
    with pytest.raises(VitscopeError, match="Did you mean epochs"):
        options_of("quick", {"epoch": 3})
