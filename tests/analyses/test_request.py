from __future__ import annotations

import copy
import dataclasses

import pytest

from vitscope.analyses import create_analysis
from vitscope.analyses.request import AnalyzeOptions
from vitscope.errors import VitscopeError

CONFIG = {  # as the engine writes it
    "label": "test_vit",
    "model": {"name": "test_vit", "options": {"depth": 2}, "weights": "w.pth", "sha256": "0", "path": "/there/w.pth"},
    "preprocess": {},
    "data": {
        "name": "digits",
        "split": "test",
        "source": "digits",
        "root": None,
        "images": 20,
        "per_class": None,
        "list_file": None,
        "share": 0.5,
        "seed": 3,
        "masks": True,
        "n": 20,
        "num_classes": 10,
        "fingerprint": "f",
    },
    "analyses": {"accuracy": {"bins": 7}, "save": {"points": ["hook_embed"], "dtype": "float16"}},
    "batch_size": 16,
    "seed": 3,
    "gallery": 2,
}


def test_only_names_analyses_and_says_where_objects_go():
    with pytest.raises(VitscopeError, match=r"objects are given as analyses="):
        AnalyzeOptions(only=[create_analysis("accuracy")])  # type: ignore[arg-type]


def test_the_configuration_of_a_run_leads_back_to_its_options():
    options = AnalyzeOptions.from_config(CONFIG)
    assert options == AnalyzeOptions(
        models=("test_vit",),
        weights=("/there/w.pth",),
        model_options={"depth": 2},
        data="digits",
        split="test",
        images=20,
        share=0.5,
        seed=3,
        only=("accuracy", "save"),
        set={"accuracy.bins": 7, "save.points": ["hook_embed"], "save.dtype": "float16"},
        batch_size=16,
        gallery=2,
    )


@pytest.mark.parametrize(("entry", "use_ema"), [(None, True), ("model_ema", True), ("model", False)])
def test_the_entry_of_a_checkpoint_that_was_read_is_read_again(entry, use_ema):
    model = {**CONFIG["model"], **({"entry": entry} if entry else {})}
    assert AnalyzeOptions.from_config({**CONFIG, "model": model}).use_ema is use_ema


@pytest.mark.parametrize(("source", "words"), [("a tag", None), ("--preprocess squash,std=1", "squash,std=1")])
def test_the_preprocessing_that_was_asked_for_is_asked_for_again(source, words):
    assert AnalyzeOptions.from_config({**CONFIG, "preprocess": {"source": source}}).preprocess == words


def test_random_weights_and_another_attention_are_kept():
    attention = [{"name": "rpc", "layers": "0,2", "lambda": 4.0}, {"name": "symmetric", "layers": "1"}]
    model = {"name": "m", "options": {}, "weights": "random, seed 3", "attention": attention}
    options = AnalyzeOptions.from_config({**CONFIG, "model": model})
    assert options.weights == ("random",)
    assert options.attention == "rpc:layers=0,2,lambda=4.0;symmetric:layers=1"


def test_a_trained_model_is_found_by_its_run_folder():
    model = {"name": "m", "options": {"depth": 2}, "path": "/r/checkpoints/best/model.safetensors", "run_path": "/r"}
    options = AnalyzeOptions.from_config({**CONFIG, "model": model})
    assert (options.models, options.weights) == (("/r",), (model["path"],))
    assert options.model_options == {}  # the run folder knows them


def test_relative_paths_are_meant_from_where_the_run_was_started(tmp_path):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "mnist5k").mkdir()
    for source, meant in {"pictures": str(tmp_path / "pictures"), "mnist5k": "mnist5k"}.items():
        config = {**CONFIG, "data": {**CONFIG["data"], "source": source}}
        assert AnalyzeOptions.from_config(config, tmp_path).data == meant


def test_names_of_analyses_may_be_joined_by_commas():
    assert AnalyzeOptions(only=("accuracy,attention", "save")).only == ("accuracy", "attention", "save")
    assert AnalyzeOptions.from_config({"only": "accuracy, attention"}).only == ("accuracy", "attention")


def test_lists_of_a_file_become_tuples():
    assert AnalyzeOptions.from_config({"models": ["a"], "save": ["b"]}) == AnalyzeOptions(models=("a",), save=("b",))


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("batch_size", "many", "a whole number"),
        ("batch_size", 2.5, "a whole number"),
        ("batch_size", True, "a whole number"),
        ("share", "half", "a number"),
        ("strict", "yes", "true or false"),
        ("data", 3, "text"),
        ("models", "vit", "a list of text"),
        ("images", [3], "a whole number or nothing"),
        ("set", 3, "key: value lines"),
        ("only", 1.5, "a list of text or nothing"),
        ("only", [3], "a list of text or nothing"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_what_was_expected(name, value, expected):
    with pytest.raises(VitscopeError, match=f"{name}: expected {expected}"):
        AnalyzeOptions.from_config({name: value})


def test_whole_numbers_are_numbers_too():
    assert AnalyzeOptions(share=1).share == 1


def test_weights_come_one_per_model_or_not_at_all():
    with pytest.raises(VitscopeError, match="1 weights for 2 models"):
        AnalyzeOptions(models=("a", "b"), weights=("w",))


def test_options_of_analyses_go_to_the_analyses_that_run():
    options = AnalyzeOptions(only=("accuracy",), save=("hook_embed",), set={"save.dtype": "float16"})
    assert options.analyses() == {"accuracy": {}, "save": {"points": ["hook_embed"], "dtype": "float16"}}
    with pytest.raises(VitscopeError, match="Did you mean accuracy"):
        dataclasses.replace(options, set={"acuracy.bins": 3}).analyses()


def test_without_a_choice_the_default_analyses_run():
    assert AnalyzeOptions().analyses() is None
    assert AnalyzeOptions(only=("attention",)).analyses() == {"attention": {}}


@pytest.mark.parametrize(
    ("where", "key"),
    [((), "batchsize"), (("data",), "per_clas"), (("model",), "seed"), (("preprocess",), "size"), ((), "vary")],
)
def test_a_key_that_no_run_saves_is_an_error_and_is_not_dropped(where, key):
    config = copy.deepcopy(CONFIG)
    inner = config
    for name in where:
        inner = inner[name]
    inner[key] = 3
    with pytest.raises(VitscopeError, match=f"has no '{'.'.join([*where, key])}'"):
        AnalyzeOptions.from_config(config)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("analyses", None, "analyses should be an object and is None"),
        ("analyses", ["accuracy"], "analyses should be an object"),
        ("analyses", {"accuracy": 3}, r"analyses\.accuracy should be an object or null and is 3"),
        ("model", "vit", "model should be an object"),
        ("model", {"options": {}}, r"model\.name is missing"),
        ("seed", "three", "seed should be a whole number and is 'three'"),
        ("data", {"source": "digits"}, r"data\.split is missing"),
        ("batch_size", True, "batch_size should be a whole number and is True"),
    ],
)
def test_half_of_a_configuration_or_another_type_is_named(key, value, message):
    with pytest.raises(VitscopeError, match=message):
        AnalyzeOptions.from_config({**CONFIG, key: value})
    rest = {k: v for k, v in CONFIG.items() if k != "seed"}
    with pytest.raises(VitscopeError, match="seed is missing"):
        AnalyzeOptions.from_config(rest)


def test_a_run_of_an_edited_model_cannot_be_made_from_its_configuration():
    with pytest.raises(VitscopeError, match=r"edited \(blocks\.0\.hook_attn_out\) .* in Python"):
        AnalyzeOptions.from_config({**CONFIG, "edits": {"blocks.0.hook_attn_out": ["silence"]}})
