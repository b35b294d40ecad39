"""What texts ask of the preprocessing of a language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from vitscope.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor


class Tokenizes(Protocol):
    """What is asked of the preprocessing of a language model."""

    length: int  # the most tokens that the model takes
    bos: int | None  # the token that begins a text
    pad_id: int | None

    def encode(self, text: str, *, special: bool = True) -> list[int]: ...
    def encode_all(self, texts: Sequence[str], *, special: bool = True) -> list[list[int]]: ...
    def pad(self, rows: list[list[int]]) -> dict[str, Tensor]: ...
    def to_dict(self) -> dict[str, Any]: ...


def check_tokenizer(preprocess: Any, name: str) -> None:
    """Raise where a model of pictures is given texts."""
    if not hasattr(preprocess, "encode"):
        raise DataError(
            f"{name} are texts, and the model takes pictures: choose pictures, such as --data mnist5k or a folder of "
            "images, or a language model (a folder with config.json, weights and tokenizer.json)."
        )


def most_tokens(preprocess: Tokenizes, context: int | None) -> int:
    """How many tokens of a text are used: as many as the model takes, or fewer where somebody says so."""
    if context is not None and context > preprocess.length:
        raise DataError(f"context={context:,} is more than the {preprocess.length:,} tokens that the model takes.")
    return preprocess.length if context is None else context
