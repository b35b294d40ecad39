"""Tasks: what answers are compared with, what counts as right, and the words for it. One file per task.

Names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitscope.lazy import lazy

if TYPE_CHECKING:
    from vitscope.tasks.base import Measure as Measure
    from vitscope.tasks.base import Task as Task
    from vitscope.tasks.base import register_task as register_task
    from vitscope.tasks.base import task_of as task_of
    from vitscope.tasks.classification import Classification as Classification
    from vitscope.tasks.words import Words as Words

__getattr__, __dir__, __all__ = lazy(__name__)
