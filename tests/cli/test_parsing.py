from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from vitscope.cli import run
from vitscope.cli.parsing import key_values, many_valued, parse
from vitscope.errors import VitscopeError


@dataclass(frozen=True)
class Options:
    """Some options."""

    name: str = "a"
    size: int = 1


def test_values_of_a_configuration_stand_where_the_command_line_is_silent():
    assert parse(Options, "x", ["--size", "3"], "", Options(name="b", size=2)) == Options(name="b", size=3)


def test_words_become_typed_values():
    words = ["save.dtype=float16", "kpca.spectrum.rank=[1, 2]", "a.share=0.5", "a.on=true", "a.b=x=y", "a.none=null"]
    assert key_values(words) == {
        "save.dtype": "float16",
        "kpca.spectrum.rank": [1, 2],
        "a.share": 0.5,
        "a.on": True,
        "a.b": "x=y",
        "a.none": None,
    }


@pytest.mark.parametrize("word", ["save", "save.dtype", "=4"])
def test_a_word_of_another_form_is_refused_with_an_example(word):
    with pytest.raises(VitscopeError, match=r"NAME=VALUE, such as save\.dtype=float16"):
        key_values([word])


def test_a_value_that_is_broken_yaml_is_refused():
    with pytest.raises(VitscopeError, match=r"^a\.b=\[1, cannot be read"):
        key_values(["a.b=[1,"])


@dataclass(frozen=True)
class ManyOptions:
    """Options with several words."""

    names: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None
    set: Mapping[str, Any] = field(default_factory=dict)
    images: int | None = 5


def test_repeating_a_flag_adds_to_it():
    words = ["--set", "a=1", "--names", "x", "--set", "b=2", "c=3", "--set=d=4", "--names", "y"]
    options = parse(ManyOptions, "x", words, "")
    assert options.set == {"a": 1, "b": 2, "c": 3, "d": 4}
    assert options.names == ("x", "y")


def test_flags_with_several_words_are_found_by_their_type():
    assert many_valued(ManyOptions) == ["--names", "--only", "--set"]


def test_the_word_none_stands_for_none():
    assert parse(ManyOptions, "x", ["--images", "none"], "").images is None
    assert parse(ManyOptions, "x", ["--images", "3"], "").images == 3
    assert parse(ManyOptions, "x", [], "").images == 5


def test_a_value_of_the_wrong_type_ends_with_2_and_names_the_flag(capsys):
    with pytest.raises(SystemExit) as stop:
        parse(ManyOptions, "x", ["--images", "many"], "")
    assert stop.value.code == 2
    assert "--images" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--dropout", "0.3"], ["--dropout=0.3"]])
def test_an_unknown_option_that_may_be_the_models_says_how_it_is_given(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        run(["train", *words])
    assert capsys.readouterr().err.endswith("--model-options dropout=0.3\n")


@pytest.mark.parametrize("words", [["--images", "2000"], ["--per-class=5"]])
def test_a_training_on_a_part_of_the_images_says_how_it_is_asked_for(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        run(["train", *words])
    assert capsys.readouterr().err.endswith("its share: --share 0.1\n")


def test_a_bad_value_of_a_known_option_has_no_such_hint(capsys):
    with pytest.raises(SystemExit, match="2"):
        run(["train", "--no-progress", "--epochs", "many"])
    assert "--model-options" not in capsys.readouterr().err
