"""model.json: what a training writes beside its weights, so that they open without being told what they are."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from vitscope.errors import VitscopeError
from vitscope.models.preprocessing import Preprocess
from vitscope.options import check_fields


@dataclass(frozen=True)
class Description:
    """model.json: what `vitscope train` writes beside the weights."""

    name: str
    preprocess: dict[str, Any]
    kwargs: dict[str, Any] = field(default_factory=dict)  # of the architecture
    attention: str | dict[str, Any] | list[Any] | None = None
    modules: list[Any] = field(default_factory=list)  # outside of the package, that define the attention
    classes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def of_text(self) -> bool:
        return "tokenizer" in self.preprocess


def read_description(file: Path) -> Description:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        known = Description(**{f.name: content[f.name] for f in fields(Description) if f.name in content})
        if not known.of_text:
            check_fields(Preprocess.from_dict(known.preprocess))
        elif not isinstance(known.preprocess.get("length"), int):
            raise ValueError("its preprocess has no length")
    except (OSError, ValueError, TypeError, RecursionError, VitscopeError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise VitscopeError(
            f"{file} is damaged, or not a model's description by `vitscope train` ({reason})."
        ) from error
    return known
