"""Words in the tables of attacks that a panel looks for. Pages are drawn without torch."""

from __future__ import annotations

CLEAN, NOISE = "none", "noise"  # column `attack` of the lens: nobody, and the control that aims at nothing
