"""What models are made of, as data: the families that open, the points of their blocks, the order of their tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitscope.lazy import lazy

if TYPE_CHECKING:
    from vitscope.architectures.families import register_family as register_family
    from vitscope.architectures.layout import Layout as Layout
    from vitscope.architectures.rows import BlockRow as BlockRow
    from vitscope.architectures.rows import Family as Family
    from vitscope.architectures.text_layout import TextLayout as TextLayout

__getattr__, __dir__, __all__ = lazy(__name__)
