"""What a reader calls the things that a run is about."""

from __future__ import annotations

import re
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

    def say(self, text: str) -> str:
        """A sentence for pictures in these words: 'image tokens of 5 images' -> 'tokens of 5 texts'."""
        if self == PICTURES:
            return text
        said = {"image token": self.token, "image tokens": self.tokens, "image": self.item, "images": self.items}
        said |= {"image-token": self.token, "image-tokens": self.tokens, "patch": self.token, "patches": self.tokens}
        said |= {"picture": self.item, "pictures": self.items}

        def other(found: re.Match[str]) -> str:
            new = said[found[0].lower()]
            return new[:1].upper() + new[1:] if found[0][0].isupper() else new

        return _OF_PICTURES.sub(other, text)

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
_OF_PICTURES = re.compile(r"\b(image token|image-token|image|picture)s?\b|\bpatch(es)?\b", re.IGNORECASE)
