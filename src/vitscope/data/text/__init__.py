"""Texts: where they come from, how they are cut into lines, documents or windows, and batches of their tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitscope.lazy import lazy

if TYPE_CHECKING:
    from vitscope.data.text.dataset import TextData as TextData
    from vitscope.data.text.dataset import TextItem as TextItem
    from vitscope.data.text.source import TextSource as TextSource
    from vitscope.data.text.window_data import WindowData as WindowData
    from vitscope.data.text.windows import Window as Window
    from vitscope.data.text.windows import disjoint_windows as disjoint_windows
    from vitscope.data.text.windows import sliding_windows as sliding_windows

__getattr__, __dir__, __all__ = lazy(__name__)
