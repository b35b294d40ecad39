from __future__ import annotations

import pytest

from vitscope.errors import VitscopeError
from vitscope.robustness.epsilons import UnitError, parse_epsilons


def texts(given, norm="linf"):
    return [e.text for e in parse_epsilons(given, norm)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("4/255", ["4/255"]),
        ("1/255..4/255", ["1/255", "2/255", "3/255", "4/255"]),
        ("2/255, 1/255,2/255", ["1/255", "2/255"]),
        (["1/255", "0.01..0.03:0.01"], ["1/255", "0.01", "0.02", "0.03"]),
        ([8 / 255, 0.5], ["8/255", "0.5"]),
        ("0.1,0.2", ["0.1", "0.2"]),  # 51/255 by itself
        ("0.2", ["51/255"]),
        ("0", ["0"]),
    ],
)
def test_lists_and_ranges_are_ascending_and_each_is_there_once(given, expected):
    assert texts(given) == expected


def test_other_norms_keep_their_decimals_and_count_whole_numbers():
    assert texts("0.2,1.5", "l2") == ["0.2", "1.5"]
    assert texts("1..3", "l1") == ["1", "2", "3"]


def test_values_are_those_of_python():
    assert [e.value for e in parse_epsilons("1/255..6/255")] == [k / 255 for k in range(1, 7)]


def test_eight_where_eight_255ths_are_meant_is_refused_with_what_to_type():
    with pytest.raises(UnitError, match="--eps 1/255,8/255") as error:
        parse_epsilons(["8", 1])
    assert error.value.instead == "1/255,8/255"
    assert texts("8", "l2") == ["8"]  # a length of 8 is possible


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("0.1..0.3", "0.1..0.3:0.05"),
        ("4/255..1/255", "LOW..HIGH"),
        ("four", "not a number"),
        ("1/0", "not a number"),
        ("-1/255", "negative"),
        ([], "No epsilon"),
        ("0..0.5:0.00001", "larger step"),
        (float("nan"), "finite"),
    ],
)
def test_what_cannot_be_a_budget_is_refused(given, complaint):
    with pytest.raises(VitscopeError, match=complaint):
        parse_epsilons(given)
