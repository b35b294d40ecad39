"""The report: one offline page that answers questions from a run's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitscope.lazy import lazy

if TYPE_CHECKING:
    from vitscope.report.page import build_report as build_report
    from vitscope.report.page import collect_findings as collect_findings
    from vitscope.report.panel import Finding as Finding
    from vitscope.report.panel import Panel as Panel
    from vitscope.report.panel import register_panel as register_panel

__getattr__, __dir__, __all__ = lazy(__name__)
