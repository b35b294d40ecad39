from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitscope.data.text import disjoint_windows, sliding_windows
from vitscope.errors import DataError

sizes = st.integers(0, 60), st.integers(2, 20), st.integers(1, 19), st.integers(0, 1)


def brute_force(n: int, context: int, stride: int, lead: int) -> list[tuple[int, int, list[int]]]:
    """(start, stop, targets): try every multiple of the stride, and cross off what was scored."""
    open_targets = set(range(1 - lead, n))
    found = []
    for start in range(0, n, stride):
        seen = list(range(start, min(start + context - lead + (stride == 1), n)))  # or the token behind them, too
        scored = [t for t in seen if t in open_targets and (lead or t > start)]
        if open_targets:
            found.append((seen[0], seen[-1] + 1, scored))
        open_targets -= set(scored)
    return found


@given(*sizes)
def test_sliding_windows_are_those_of_brute_force(n: int, context: int, stride: int, lead: int) -> None:
    stride = min(stride, context - 1)
    windows = sliding_windows(n, context, stride, lead)
    assert [(w.start, w.stop, list(range(w.first, w.stop))) for w in windows] == brute_force(n, context, stride, lead)


@given(*sizes)
def test_each_target_is_scored_once(n: int, context: int, stride: int, lead: int) -> None:
    windows = sliding_windows(n, context, stride := min(stride, context - 1), lead)
    assert [t for w in windows for t in range(w.first, w.stop)] == list(range(1 - lead, n))
    longest = context + (stride == 1)
    assert all(w.stop - w.start + lead <= longest and w.start < w.first + lead for w in windows)


def test_a_stride_of_one_is_the_published_evaluation() -> None:
    first, *later = sliding_windows(10, 4)
    assert first == (0, 5, 1)  # tokens 0 to 3 go in, 1 to 4 are foreseen
    assert later == [(i, i + 5, i + 4) for i in range(1, 6)]


@given(*sizes)
def test_disjoint_windows_score_all_but_the_first_token_of_each(n: int, context: int, stride: int, lead: int) -> None:
    windows = disjoint_windows(n, context, lead)
    room = context - lead
    assert [t for w in windows for t in range(w.first, w.stop)] == [t for t in range(n) if lead or t % room]
    assert all(w.start % room == 0 and w.first == w.start + 1 - lead for w in windows)


def test_eight_windows_of_512_tokens_have_511_targets_each() -> None:
    windows = disjoint_windows(5000, 512)[:8]
    assert [(w.start, w.stop - w.first) for w in windows] == [(512 * i, 511) for i in range(8)]


@pytest.mark.parametrize("stride", [0, 8, 9])
def test_a_stride_that_leaves_tokens_out_is_refused(stride: int) -> None:
    with pytest.raises(DataError, match=r"stride must lie in 1\.\.7"):
        sliding_windows(100, 8, stride)


def test_a_window_of_one_token_is_refused() -> None:
    with pytest.raises(DataError, match="at least 2 tokens"):
        disjoint_windows(10, 1)
