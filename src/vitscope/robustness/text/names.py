"""What tables of changed texts call things, for those who write them and those who draw them."""

from __future__ import annotations

CLEAN = "clean"
ALL, UNSWAPPED = OVER = ("all", "unswapped")  # which targets a perplexity is over
GROUPS = ("before", "0", "1", "2-4", "5-16", "further")  # tokens behind the last one of a changed word
