"""Run folders: configuration, environment, tables and provenance on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitscope.lazy import lazy

if TYPE_CHECKING:
    from vitscope.runs.files import atomic_write as atomic_write
    from vitscope.runs.lock import lock_holder as lock_holder
    from vitscope.runs.run import FORMAT as FORMAT
    from vitscope.runs.run import Run as Run

__getattr__, __dir__, __all__ = lazy(__name__)
