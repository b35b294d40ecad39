"""Per-image rows: order, merging over processes, and going back to a saved length."""

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitscope.analyses.rows import RowWriter, merge_rows
from vitscope.errors import NumericalError, RunError, VitscopeError
from vitscope.runs.tables import read_csv, to_csv


def frame(images, text="a"):
    return pd.DataFrame({"image": images, "value": [i / 3 for i in images], "path": [f"{text}{i}" for i in images]})


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(1, 7), st.integers(1, 30), st.data())
def test_merged_rows_are_those_of_one_process_whatever_the_split(tmp_path_factory, world, batch, n, data):
    folder = tmp_path_factory.mktemp("rows")
    texts = data.draw(st.lists(st.text('a",\n é', max_size=4), min_size=n, max_size=n))
    whole = pd.DataFrame({"image": range(n), "value": [i / 7 for i in range(n)], "path": texts})
    writers = [RowWriter(folder / "rows", rank) for rank in range(world)]
    for b in range(-(-n // batch)):
        writers[b % world].append("t", [whole.iloc[b * batch : (b + 1) * batch]])
    assert merge_rows(folder / "rows", folder / "tables", [writer.lengths() for writer in writers]) == ["t"]
    assert (folder / "tables" / "t.csv").read_bytes().decode() == to_csv(whole)


def test_rows_that_are_emitted_block_by_block_come_out_image_by_image(tmp_path):
    writer = RowWriter(tmp_path, 0)
    frames = [pd.DataFrame({"image": [0, 1], "block": b}) for b in range(3)]
    writer.append("maps", frames)
    merge_rows(tmp_path, tmp_path / "out", [writer.lengths()])
    table = read_csv(tmp_path / "out" / "maps.csv")
    assert list(zip(table.image, table.block)) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_cutting_back_to_a_saved_length_forgets_exactly_what_came_after(tmp_path):
    writer = RowWriter(tmp_path / "rows", 0)
    writer.append("t", [frame([0, 1])])
    saved = writer.lengths()
    writer.append("t", [frame([2, 3])])
    writer.append("later", [frame([2])])
    again = RowWriter(tmp_path / "rows", 0)
    again.cut(saved)
    again.append("t", [frame([2, 3], "b")])
    assert merge_rows(tmp_path / "rows", tmp_path / "out", [again.lengths()]) == ["t"]
    assert list(read_csv(tmp_path / "out" / "t.csv").path) == ["a0", "a1", "b2", "b3"]


def test_a_file_shorter_than_the_saved_state_is_refused(tmp_path):
    writer = RowWriter(tmp_path, 0)
    writer.append("t", [frame([0])])
    with pytest.raises(RunError, match="shorter than the saved state"):
        writer.cut({"t": [10_000, 1]})


def test_rows_that_would_spoil_a_table_are_refused(tmp_path):
    writer = RowWriter(tmp_path, 0)
    writer.append("t", [frame([0])])
    with pytest.raises(VitscopeError, match="same columns in every batch"):
        writer.append("t", [frame([1]).rename(columns={"value": "other"})])
    with pytest.raises(VitscopeError, match="begin with the column 'image'"):
        writer.append("u", [pd.DataFrame({"value": [1.0], "image": [0]})])
    with pytest.raises(NumericalError, match="NaN"):
        writer.append("v", [pd.DataFrame({"image": [0], "value": [float("nan")]})])


def test_a_file_that_another_process_has_changed_is_an_error_at_the_next_row_save_and_merge(tmp_path):
    writer = RowWriter(tmp_path / "rows", 0)
    file = tmp_path / "rows" / "t.rank0.csv"
    for change in (file.unlink, lambda: file.write_bytes(b""), lambda: file.write_bytes(file.read_bytes() * 2)):
        writer.cut({})
        writer.append("t", [frame([0, 1])])
        saved = writer.lengths()
        change()
        with pytest.raises(RunError, match=r"t\.rank0\.csv has .* bytes, but this run has written"):
            writer.append("t", [frame([2])])
        with pytest.raises(RunError, match=r"t\.rank0\.csv has .* bytes, but this run has written"):
            merge_rows(tmp_path / "rows", tmp_path, [saved])
        assert not (tmp_path / "t.csv").exists()
    with pytest.raises(RunError, match="another process or program"):
        writer.lengths()


def test_a_table_with_other_rows_than_were_measured_is_an_error_and_not_a_result(tmp_path):
    writer = RowWriter(tmp_path / "rows", 0)
    writer.append("t", [frame(range(20))])
    file = tmp_path / "rows" / "t.rank0.csv"
    (tmp_path / "t.csv").write_text("of an earlier save")
    whole = file.read_bytes()
    lines = whole.splitlines(keepends=True)
    joined = lines[1].rstrip(b"\n") + b"," + b"".join(lines[2:])  # as many bytes, one row less
    for damage, message in (
        (lines[0] + joined, "would have 19 rows, but 20 were measured"),
        (b"x" * (len(whole) - 1) + b"\n", "0 rows, but 20"),
        (whole.replace(b"0,", b"?,", 1), "are damaged"),
    ):
        file.write_bytes(damage)
        with pytest.raises(RunError, match=message):
            merge_rows(tmp_path / "rows", tmp_path, [writer.lengths()])
    assert (tmp_path / "t.csv").read_text() == "of an earlier save"
    assert list(tmp_path.glob(".*")) == []
