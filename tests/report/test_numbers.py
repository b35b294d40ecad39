"""Three significant digits, thousands separated, the full value on hover."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitscope.report.numbers import full, hover, memory, percent, seconds, short


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234.567, "1,230"),
        (0.00012345, "0.000123"),
        (0.000012345, "1.23e−5"),
        (9.996, "10.0"),
        (99.95, "100"),
        (0.5, "0.500"),
        (-2.5, "−2.50"),
        (0.0, "0"),
        (1234567, "1,234,567"),
        (np.int64(12), "12"),
        (np.float32(0.25), "0.250"),
        (1.5e12, "1.50e12"),
        (math.nan, "–"),
        (math.inf, "∞"),
        ("text", "text"),
        (True, "True"),
    ],
)
def test_short_numbers(value: Any, text: str) -> None:
    assert short(value) == text


@given(st.floats(-1e300, 1e300))
def test_a_short_number_is_within_half_a_percent_of_the_value(value: float) -> None:
    read = float(short(value).replace(",", "").replace("−", "-"))
    assert math.isclose(read, value, rel_tol=0.00501, abs_tol=0)


@given(st.floats(allow_nan=False))
def test_the_full_value_is_the_value(value: float) -> None:
    assert float(full(value)) == value
    assert f'title="{full(value)}"' in hover(value)


def test_units_that_people_read() -> None:
    assert percent(0.7354) == "73.5 %"
    assert hover(93.4567, "%") == '<span class="number" title="93.4567">93.5 %</span>'
    assert hover(1.0, "<px>").endswith("1.00 &lt;px&gt;</span>")
    assert [seconds(s) for s in (12.34, 245, 7620)] == ["12.3 s", "4 min 05 s", "2 h 07 min"]
    assert [memory(b) for b in (812_345_678, 3.2e9)] == ["812 MB", "3.20 GB"]
