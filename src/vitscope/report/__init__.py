"""The report: one offline page that answers questions from a run's tables."""

from vitscope.report.panel import Finding, Panel, register_panel

__all__ = ["Finding", "Panel", "register_panel"]
