"""Numbers that analyses count by and panels name. Pages are drawn without torch, so they stand apart from both."""

from __future__ import annotations

BINS = 15  # of confidence, equally wide: those of the expected calibration error
