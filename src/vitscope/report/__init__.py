"""The report: one offline page that answers questions from a run's tables."""

from vitscope.report.page import build_report, collect_findings
from vitscope.report.panel import Finding, Panel, register_panel

__all__ = ["Finding", "Panel", "build_report", "collect_findings", "register_panel"]
