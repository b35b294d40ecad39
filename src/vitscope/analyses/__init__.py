"""Analyses: small objects that turn batches into tidy tables, and the one-pass engine that feeds them."""

from vitscope.analyses.base import Analysis, Figure, Setting, create_analysis, list_analyses, register_analysis, zeros
from vitscope.analyses.engine import analyze
from vitscope.analyses.interrupt import Interrupted
from vitscope.analyses.one_pass import measure

__all__ = [
    "Analysis",
    "Figure",
    "Interrupted",
    "Setting",
    "analyze",
    "create_analysis",
    "list_analyses",
    "measure",
    "register_analysis",
    "zeros",
]
