"""What a model is called with: a text model takes strings, too, and neither takes what is meant for the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from vitscope.errors import DataError
from vitscope.models.text_preprocess import TextPreprocess

Inputs = Tensor | Mapping[str, Tensor] | str | Sequence[str]  # one tensor, several by name, or texts


def prepared(model: Any, inputs: Inputs) -> Tensor | Mapping[str, Tensor]:
    """Strings become numbers of tokens, where the weights are; tensors stay as they are."""
    texts = _texts(inputs)
    if not model.row.text:
        if texts is not None:
            raise DataError(
                f"{model.name} does not read text: give pictures as a tensor (B, channels, height, width), or open a "
                "text model, `open_model(FOLDER)` with config.json, weights and tokenizer in it."
            )
        return inputs  # type: ignore[return-value]
    if texts is not None:
        preprocess = tokenizing(model)
        return model.place(preprocess.pad(preprocess.encode_all(texts)))
    found: Any = inputs if isinstance(inputs, Mapping) else {"input_ids": inputs}
    ids = found.get("input_ids")
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.ndim != 2:
        raise DataError(
            f"{model.name} reads text: give strings, model(['a text', ...]), or numbers of tokens (B, N), and for "
            "pictures open a model of pictures (`vitscope models` lists them)."
        )
    return found


def _texts(inputs: Any) -> list[str] | None:
    """The texts, where there are any among the inputs; None for tensors."""
    if isinstance(inputs, str):
        return [inputs]
    if isinstance(inputs, Tensor | Mapping):
        return None
    if isinstance(inputs, Sequence) and inputs and all(isinstance(text, str) for text in inputs):
        return list(inputs)
    raise DataError(f"A model is called with a tensor, or with a list of texts, not with {type(inputs).__name__}.")


def tokenizing(model: Any) -> TextPreprocess:
    """The tokenizer of a text model."""
    if isinstance(model.preprocess, TextPreprocess):
        return model.preprocess
    if not model.row.text:
        raise DataError(f"{model.name} does not read text, so there are no tokens with names.")
    raise DataError(
        f"{model.name} was opened without a tokenizer: open its folder, open_model(FOLDER), or give one with the "
        "module, open_model(module, tokenizer=...). Numbers of tokens (B, N) go in as they are."
    )
