"""Growing .npy shards against plain numpy arrays."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitscope.analyses.shards import ShardWriter, cut_shards
from vitscope.errors import RunError


def load(folder, rank=0):
    parts = [np.load(path, mmap_mode="r") for path in sorted(folder.glob(f"r{rank}-*.npy"))]
    return np.concatenate(parts) if parts else None


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 7), st.sampled_from(["float32", "float16"]))
def test_rows_written_in_parts_are_the_whole_array_in_bounded_files(tmp_path_factory, parts, rows_per_shard, dtype):
    folder = tmp_path_factory.mktemp("shards")
    whole = np.random.default_rng(0).normal(size=(sum(parts), 2, 3)).astype(dtype)
    writer = ShardWriter(folder, 0, (2, 3), np.dtype(dtype), rows_per_shard)
    first = 0
    for n in parts:
        writer.write(first, whole[first : first + n])
        first += n
    writer.flush()
    assert np.array_equal(load(folder), whole)
    assert all(len(np.load(p, mmap_mode="r")) <= rows_per_shard for p in folder.iterdir())


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 20), st.integers(0, 20), st.integers(1, 6), st.booleans())
def test_after_a_cut_writing_goes_on_as_if_nothing_had_been_there(tmp_path_factory, n, keep, rows_per_shard, flushed):
    folder = tmp_path_factory.mktemp("shards")
    keep = min(n, keep)
    whole = np.arange(2 * n, dtype=np.float32).reshape(n, 2)
    writer = ShardWriter(folder, 0, (2,), np.dtype("float32"), rows_per_shard)
    writer.write(0, whole[:keep])
    writer.flush()
    writer.write(keep, -whole[keep:])  # the part that a kill loses
    if flushed:
        writer.flush()
    cut_shards(folder, 0, keep, rows_per_shard)
    if keep:
        assert np.array_equal(load(folder), whole[:keep])
    again = ShardWriter(folder, 0, (2,), np.dtype("float32"), rows_per_shard)
    again.write(keep, whole[keep:])
    again.flush()
    assert np.array_equal(load(folder), whole)


def test_processes_do_not_touch_each_others_files(tmp_path):
    for rank in (0, 1, 10):
        writer = ShardWriter(tmp_path, rank, (1,), np.dtype("float32"), 4)
        writer.write(0, np.full((6, 1), rank, dtype=np.float32))
        writer.flush()
    cut_shards(tmp_path, 1, 0, 4)
    assert load(tmp_path, 1) is None
    assert (load(tmp_path, 0) == 0).all()
    assert len(load(tmp_path, 10)) == 6


def test_a_file_shorter_than_the_state_says_is_refused(tmp_path):
    writer = ShardWriter(tmp_path, 0, (4,), np.dtype("float32"), 100)
    writer.write(0, np.zeros((3, 4), dtype=np.float32))
    writer.flush()
    with pytest.raises(RunError, match="shorter than the saved state"):
        cut_shards(tmp_path, 0, 5, 100)
