"""Tables go to CSV and back without losing a bit, and refuse what is not tidy."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitscope.errors import NumericalError, RunError
from vitscope.runs.tables import check_name, check_table, read_csv, to_csv


def _round_trip(table: pd.DataFrame, folder: Path) -> pd.DataFrame:
    path = folder / "t.csv"
    path.write_text(to_csv(table), encoding="utf-8", newline="")
    return read_csv(path)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30))
def test_every_float64_reads_back_to_the_same_bits(
    tmp_path_factory: pytest.TempPathFactory, values: list[float]
) -> None:
    back = _round_trip(pd.DataFrame({"x": np.array(values)}), tmp_path_factory.mktemp("t"))
    assert back["x"].to_numpy(dtype=np.float64).tobytes() == np.array(values).tobytes()


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1), min_size=1))
def test_text_stays_text_whatever_it_looks_like(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    table = pd.DataFrame({"n": range(len(names)), "name": names, "x": 0.5})
    back = _round_trip(table, tmp_path_factory.mktemp("t"))
    assert list(back["name"]) == names
    assert list(back["n"]) == list(range(len(names)))


def test_names_that_look_like_numbers_or_missing_values_stay_text(tmp_path: Path) -> None:
    table = pd.DataFrame(
        {"class_name": ["7", "NA", "nan", "", "None"], "n": [1, 2, 3, 4, 5], "right": [True, False] * 2 + [True]}
    )
    back = _round_trip(table, tmp_path)
    assert list(back["class_name"]) == ["7", "NA", "nan", "", "None"]
    assert back["n"].dtype.kind == "i"
    assert back["right"].dtype == bool


def test_float32_is_written_with_its_own_shortest_digits(tmp_path: Path) -> None:
    values = np.array([0.1, 1 / 3, 1e-30], dtype=np.float32)
    back = _round_trip(pd.DataFrame({"x": values}), tmp_path)
    assert back["x"].to_numpy().astype(np.float32).tobytes() == values.tobytes()


def test_plain_csv_readers_can_read_it() -> None:
    text = to_csv(pd.DataFrame({"name": ['a"b, <script>'], "x": [0.1]}))
    assert list(csv.reader(text.splitlines())) == [["name", "x"], ['a"b, <script>', "0.1"]]


def test_missing_numbers_are_empty_cells_and_come_back_as_nan(tmp_path: Path) -> None:
    table = pd.DataFrame({"x": [np.nan, 1.5], "name": ["a", "b"]})
    check_table("t", table, allow_nan=["x"])
    back = _round_trip(table, tmp_path)
    assert np.isnan(back["x"][0])
    assert back["x"][1] == 1.5


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused_with_column_and_row(bad: float) -> None:
    with pytest.raises(NumericalError, match=r"'t', column 'x': 1 of 3 .*row 2.*allow_nan=\['x'\]"):
        check_table("t", pd.DataFrame({"x": [0.0, 1.0, bad]}))
    check_table("t", pd.DataFrame({"x": [0.0, 1.0, bad]}), allow_nan=["x"])


def test_missing_text_is_refused_too() -> None:
    with pytest.raises(NumericalError, match="column 'name'"):
        check_table("t", pd.DataFrame({"name": ["a", None]}))


def test_lists_in_cells_doubled_columns_and_unknown_exceptions_are_refused() -> None:
    with pytest.raises(RunError, match="row 1 holds a list"):
        check_table("t", pd.DataFrame({"x": ["a", [1, 2]]}))
    with pytest.raises(RunError, match="column twice"):
        check_table("t", pd.DataFrame([[1, 2]], columns=["x", "x"]))
    with pytest.raises(RunError, match="named columns"):
        check_table("t", pd.DataFrame([[1, 2]]))
    with pytest.raises(RunError, match="no column 'y'"):
        check_table("t", pd.DataFrame({"x": [1]}), allow_nan=["y"])


@pytest.mark.parametrize("name", ["../evil", "a/b", "", ".hidden", "a b"])
def test_table_names_cannot_leave_the_folder(name: str) -> None:
    with pytest.raises(RunError, match="cannot be the name"):
        check_name(name)


def test_an_empty_table_keeps_its_columns(tmp_path: Path) -> None:
    assert list(_round_trip(pd.DataFrame({"a": [], "b": []}), tmp_path).columns) == ["a", "b"]


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"")
    with pytest.raises(RunError, match=r"Cannot read the table .*t\.csv"):
        read_csv(tmp_path / "t.csv")
