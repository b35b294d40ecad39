"""The slider's markup; its behaviour is tested in a browser."""

from __future__ import annotations

import pytest
from markupsafe import Markup

from vitscope.errors import VitscopeError
from vitscope.report.slider import slider


def test_one_frame_is_visible_and_foreign_text_is_escaped() -> None:
    html = slider("k", "epoch", [1, "<2>"], [Markup("<b>one</b>"), "<script>two</script>"])
    assert html.count(" hidden>") == 1
    assert "<b>one</b>" in html
    assert "<script>" not in html
    assert 'data-label="&lt;2&gt;"' in html
    assert 'value="1"' in html


def test_the_first_frame_can_be_chosen() -> None:
    assert 'value="0"' in slider("k", "epoch", [1, 2], ["a", "b"], start=0)


def test_labels_and_frames_must_pair() -> None:
    with pytest.raises(VitscopeError, match="2 labels, 1 frames"):
        slider("k", "epoch", [1, 2], ["a"])
