"""What a paper takes from runs: tables of numbers with intervals, and the works to cite. Reads run folders alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitscope.lazy import lazy

if TYPE_CHECKING:
    from vitscope.papers.citing import bibliography as bibliography
    from vitscope.papers.formats import FORMATS as FORMATS
    from vitscope.papers.formats import written as written
    from vitscope.papers.table import PaperTable as PaperTable
    from vitscope.papers.table import paper_table as paper_table

__getattr__, __dir__, __all__ = lazy(__name__)
