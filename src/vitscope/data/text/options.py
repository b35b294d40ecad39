"""How texts are cut and chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from vitscope.data.text.source import UNITS, WINDOWS
from vitscope.errors import DataError, suggest


@dataclass(frozen=True)
class TextOptions:
    """What can be said of texts and not of pictures."""

    unit: str | None = None  # 'lines', 'documents' or 'windows'; None: lines of plain files, else documents
    min_chars: int = 1  # shorter texts are left out; white space at the ends of lines does not count
    column: str | None = None  # of .jsonl, .csv and .tsv; None: 'text', or 'sentence' where there is no such column
    label_column: str | None = None  # the column of their classes, or 'folders'; None: no classes are wanted
    context: int | None = None  # tokens of a text or window that are used; None: as many as the model takes
    stride: int | None = None  # tokens between the beginnings of windows; None: windows do not overlap
    joined: bool = False  # windows over the whole text instead of each document
    bos: bool = False  # every window begins with the token that begins a text
    windows: int | None = None  # the first so many windows only

    def __post_init__(self) -> None:
        if self.unit is not None and self.unit not in UNITS:
            raise DataError(f"There is no unit {self.unit!r}.{suggest(self.unit, UNITS)} Known: {', '.join(UNITS)}.")
        for name in ("min_chars", "stride", "windows"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise DataError(f"{name} must be at least 1, not {value}.")
        if self.context is not None and self.context < 2:
            raise DataError(f"context must be at least 2 tokens, not {self.context}.")
        extra = [name for name in ("stride", "joined", "bos", "windows") if getattr(self, name)]
        if extra and self.unit != WINDOWS:
            raise DataError(f"{', '.join(extra)} is for windows: say unit='windows' (--unit windows) too.")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> TextOptions:
        """From keywords, of which a misspelt one is answered with the nearest."""
        known = [f.name for f in fields(cls)]
        for name in given:
            if name not in known:
                raise DataError(
                    f"There is no option {name!r} for data.{suggest(name, known)} For texts: {', '.join(known)}."
                )
        return cls(**given)

    def changed(self) -> dict[str, Any]:
        """The options that are not at their defaults."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}
