"""The help topics of Python's standard library: text that is always there."""

from __future__ import annotations

import sys

from vitscope.data.registry import register_dataset
from vitscope.data.selection import proportional_order
from vitscope.data.splits import ALL
from vitscope.data.text.source import TextSource
from vitscope.data.text.texts import listed
from vitscope.errors import DataError

_HELD_OUT = 0.1  # of the topics, for 'val' and for 'test' each


@register_dataset("pydoc", splits=("train", "val", "test", ALL))
def pydoc(split: str) -> TextSource:
    """About 80 topics, 0.5 million characters; a tenth of the topics each for `val` and `test`."""
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise DataError("This Python has no pydoc_data.topics: install the whole standard library.") from error
    names = [name for name in sorted(topics) if topics[name].strip()]
    chosen = [names[i] for i in _split(names, split)]
    documents, content = listed([topics[name] for name in chosen], chosen, "pydoc")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return TextSource(documents, content, holds=split, notes=(f"Topics of Python {version}: others differ a little.",))


def _split(names: list[str], split: str) -> list[int]:
    """Which topics, in the order of their names. A topic's part depends on the names alone, on nobody's seed."""
    order = proportional_order(names, [-1] * len(names), "split")
    n = max(1, round(_HELD_OUT * len(names)))
    return sorted({"test": order[:n], "val": order[n : 2 * n], "train": order[2 * n :], ALL: order}[split])
