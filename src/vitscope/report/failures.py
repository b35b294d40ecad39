"""Parts of a page that cannot be drawn: a damaged table must not cost the reader all others."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from vitscope.errors import VitscopeError

logger = logging.getLogger(__name__)


@dataclass
class Failures:
    """One sentence for each part that failed. With `strict` its error is raised instead."""

    strict: bool = False
    told: list[str] = field(default_factory=list)

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        """Try to draw a part of the page inside the block."""
        try:
            yield
        except Exception as error:
            if self.strict:
                raise
            logger.debug("%s could not be drawn.", part, exc_info=True)
            kind = "" if isinstance(error, VitscopeError) else f"{type(error).__name__}: "
            text = f"{part} could not be drawn ({kind}{' '.join(str(error).split())})."
            if text not in self.told:
                self.told.append(text)
