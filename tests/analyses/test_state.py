"""The saved state: what goes in comes out, bit for bit, and nothing else is accepted."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitscope.analyses.base import Analysis
from vitscope.analyses.state import State, load_state, restore_sums, save_state, state_file
from vitscope.errors import RunError


class Sums(Analysis):
    name = "sums.of.something"

    def __init__(self, **sums):
        super().__init__()
        self.sums = sums

    def options(self):
        return {}


doubles = st.floats(allow_nan=False, width=64)
sums = st.lists(doubles, max_size=20).map(lambda xs: torch.tensor(xs, dtype=torch.float64))
counts = st.lists(st.integers(-(2**62), 2**62), max_size=20).map(lambda xs: torch.tensor(xs, dtype=torch.int64))
lengths = st.lists(st.integers(0, 10**12), min_size=2, max_size=2)


@settings(max_examples=40, deadline=None)
@given(sums, counts, st.integers(0, 10**9), st.dictionaries(st.text("abc_.", min_size=1), lengths))
def test_a_state_comes_back_bit_for_bit(tmp_path_factory, values, numbers, next_batch, rows):
    folder = tmp_path_factory.mktemp("state")
    state = State(world=3, next_batch=next_batch, images=7, skipped=1, seconds=0.1, rows=rows)
    save_state(folder, 2, state, [Sums(values=values, numbers=numbers)])
    found = load_state(folder, 2)
    fresh = Sums(values=torch.zeros_like(values), numbers=torch.zeros_like(numbers))
    restore_sums(found, [fresh])
    assert torch.equal(fresh.sums["values"], values)
    assert torch.equal(fresh.sums["numbers"], numbers)
    found.sums = {}
    assert found == state


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(-(2**40), 2**40), min_size=3, max_size=3), min_size=1, max_size=12), st.data())
def test_merging_is_exact_and_does_not_depend_on_the_split(parts, data):
    """Integers of up to 40 bits: their float64 sums are exact, so any grouping must give the very same bits."""
    where = data.draw(st.lists(st.integers(0, 3), min_size=len(parts), max_size=len(parts)))
    tensors = [torch.tensor(p, dtype=torch.float64) for p in parts]
    ranks = [Sums(x=torch.zeros(3, dtype=torch.float64)) for _ in range(4)]
    for tensor, rank in zip(tensors, where):
        ranks[rank].add("x", tensor)
    for other in ranks[1:]:
        ranks[0].merge(other)
    assert torch.equal(ranks[0].sums["x"], torch.stack(tensors).sum(0))


def test_without_a_file_there_is_no_state(tmp_path):
    assert load_state(tmp_path, 0) is None


def test_a_damaged_or_foreign_file_is_refused(tmp_path):
    save_state(tmp_path, 0, State(world=1), [Sums(x=torch.ones(3))])
    path = state_file(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(RunError, match="--overwrite"):
        load_state(tmp_path, 0)
    path.write_bytes(b"nonsense")
    with pytest.raises(RunError, match="--overwrite"):
        load_state(tmp_path, 0)


def test_sums_of_another_version_of_an_analysis_are_refused(tmp_path):
    save_state(tmp_path, 0, State(world=1), [Sums(x=torch.ones(3))])
    state = load_state(tmp_path, 0)
    for other in (Sums(x=torch.ones(4)), Sums(y=torch.ones(3)), Sums(x=torch.ones(3, dtype=torch.int64)), Sums()):
        with pytest.raises(RunError, match=r"sums\.of\.something"):
            restore_sums(state, [other])


def test_sums_come_back_as_copies_in_the_order_of_the_analysis(tmp_path):
    """A file orders its tensors in its own way (block10 before block2) and lets them begin at any byte."""
    names = ["odd", *(f"block{i}" for i in range(12))]
    saved = {name: torch.full((3,), float(i), dtype=torch.float64) for i, name in enumerate(names)}
    save_state(tmp_path, 0, State(world=1), [Sums(**saved)])
    fresh = Sums(**{name: torch.zeros_like(value) for name, value in saved.items()})
    own = {name: value.data_ptr() for name, value in fresh.sums.items()}
    restore_sums(load_state(tmp_path, 0), [fresh])
    assert list(fresh.sums) == names
    assert all(torch.equal(fresh.sums[name], saved[name]) for name in names)
    assert {name: value.data_ptr() for name, value in fresh.sums.items()} == own
