"""Run folders: configuration, environment, tables and provenance on disk."""

from vitscope.runs.files import atomic_write
from vitscope.runs.lock import lock_holder
from vitscope.runs.repeat import rerun
from vitscope.runs.request import AnalyzeOptions
from vitscope.runs.run import FORMAT, Run

__all__ = ["FORMAT", "AnalyzeOptions", "Run", "atomic_write", "lock_holder", "rerun"]
