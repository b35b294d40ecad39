"""Texts that are harder to foresee: swapped words and typos, and what a language model makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitscope.lazy import lazy

if TYPE_CHECKING:
    from vitscope.robustness.text.alter import Altered as Altered
    from vitscope.robustness.text.alter import keyboard_typos as keyboard_typos
    from vitscope.robustness.text.alter import swap_words as swap_words

__getattr__, __dir__, __all__ = lazy(__name__)
