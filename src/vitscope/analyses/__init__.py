"""Analyses: small objects that turn batches into tidy tables, and the one-pass engine that feeds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitscope.lazy import lazy

if TYPE_CHECKING:
    from vitscope.analyses.base import Analysis as Analysis
    from vitscope.analyses.base import Headline as Headline
    from vitscope.analyses.base import Setting as Setting
    from vitscope.analyses.base import create_analysis as create_analysis
    from vitscope.analyses.base import list_analyses as list_analyses
    from vitscope.analyses.base import register_analysis as register_analysis
    from vitscope.analyses.base import tables_of as tables_of
    from vitscope.analyses.base import zeros as zeros
    from vitscope.analyses.engine import analyze as analyze
    from vitscope.analyses.one_pass import measure as measure
    from vitscope.analyses.request import AnalyzeOptions as AnalyzeOptions
    from vitscope.interrupt import Interrupted as Interrupted

__getattr__, __dir__, __all__ = lazy(__name__, old={"Figure": "Headline"})
