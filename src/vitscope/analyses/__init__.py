"""Analyses: small objects that turn batches into tidy tables, and the one-pass engine that feeds them."""

from vitscope.analyses.base import Analysis, Figure, create_analysis, list_analyses, register_analysis

__all__ = ["Analysis", "Figure", "create_analysis", "list_analyses", "register_analysis"]
