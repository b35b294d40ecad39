"""What a reader calls the things that a run is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Words:
    """One item of the data and one token of the model, and several of them."""

    item: str = "image"
    items: str = "images"
    token: str = "patch"
    tokens: str = "patches"

    def to_dict(self) -> dict[str, str]:
        return asdict(self)

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> Words:
        """Those of a run, from its configuration; a run that names no task looked at pictures."""
        task = config.get("task")
        words = task.get("words") if isinstance(task, Mapping) else None
        known = {f.name for f in fields(cls)}
        return cls(**{k: str(v) for k, v in words.items() if k in known}) if isinstance(words, Mapping) else cls()


PICTURES = Words()
