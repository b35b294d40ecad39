from __future__ import annotations

from dataclasses import dataclass

import pytest

from vitscope.cli.parsing import analysis_options, parse, split_commas
from vitscope.errors import VitscopeError


@dataclass(frozen=True)
class Options:
    """Some options."""

    name: str = "a"
    size: int = 1


def test_values_of_a_configuration_stand_where_the_command_line_is_silent():
    assert parse(Options, "x", ["--size", "3"], "", Options(name="b", size=2)) == Options(name="b", size=3)


def test_names_are_split_at_commas():
    assert split_commas("accuracy, attention,") == ["accuracy", "attention"]
    assert split_commas(None) is None


def test_settings_become_typed_options_by_analysis():
    settings = ["attention.maps=4", "kpca.spectrum.rank=[1, 2]", "attention.share=0.5", "attention.on=true", "a.b=x=y"]
    assert analysis_options(settings) == {
        "attention": {"maps": 4, "share": 0.5, "on": True},
        "kpca.spectrum": {"rank": [1, 2]},
        "a": {"b": "x=y"},
    }


@pytest.mark.parametrize("setting", ["attention", "attention.maps", "maps=4", ".maps=4", "attention.=4"])
def test_a_setting_of_another_form_is_refused_with_an_example(setting):
    with pytest.raises(VitscopeError, match=r"ANALYSIS\.OPTION=VALUE, such as attention\.maps=4"):
        analysis_options([setting])


def test_a_setting_whose_value_is_broken_yaml_is_refused():
    with pytest.raises(VitscopeError, match="cannot be read"):
        analysis_options(["a.b=[1,"])
