"""Checkpoints: read without running code, cleaned, checked against the model."""

from __future__ import annotations

import argparse
import hashlib
import json
import pickle
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitscope.errors import NumericalError, WeightsError, first_line
from vitscope.models.naming import check_weights_file
from vitscope.models.prefixes import Unwrapped, partly_wrapped, under_names_of, unwrap

# Where training programs put the weights in their checkpoints, best first: averaged weights are what gets published.
_ENTRIES = ("state_dict_ema", "model_ema", "ema_state_dict", "ema", "state_dict", "model", "model_state_dict", "module")
_HEADS = ("head", "head_dist", "decoder.head")
_PRECISIONS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_MOST_CLASSES = 1_000_000  # of a head that is built because a file declares it; the largest published has 30,000


@dataclass(frozen=True)
class Checkpoint:
    """What a file of weights holds."""

    state: dict[str, Tensor] = field(repr=False)  # without the prefixes of wrappers, on the CPU
    entry: str = ""  # where in the file it was found; '' for a file that is the state dict itself
    passed_over: Sequence[str] = ()  # entries with weights that were not taken
    arguments: Mapping[str, Any] = field(default_factory=dict)  # the command line of its training, where it is kept
    wrapped: Unwrapped | None = field(default=None, repr=False)  # what its names were, behind a wrapper's prefix

    @property
    def origin(self) -> dict[str, str]:
        """What a run records."""
        return {"entry": self.entry} if self.entry else {}

    def remarks(self, where: str | Path) -> list[str]:
        """Which weights were taken, where there are averaged ones and plain ones, and under which names."""
        named = self.wrapped.remarks(Path(where).name) if self.wrapped else []
        entries = (self.entry, *self.passed_over)
        if len({_is_average(entry) for entry in entries}) < 2:
            return named
        kinds = [f"{'averaged' if _is_average(entry) else 'plain'} weights ({entry})" for entry in entries]
        switch = "--no-use-ema" if _is_average(self.entry) else "--use-ema"
        others = "; ".join(kinds[1:])
        taken = f"{Path(where).name}: the {kinds[0]} were taken, it also holds {others}. {switch} takes the others."
        return [*named, taken]


def read_weights(path: str | Path, use_ema: bool = True) -> Checkpoint:
    """The weights in a safetensors or .pth file; averaged ones where there are both, unless `use_ema` is False.

    A .pth file is unpickled with `weights_only=True`; of all classes only `argparse.Namespace` (which DeiT-style files
    carry beside their weights) is let in.
    """
    path = Path(path)
    check_weights_file(path)
    if path.stat().st_size == 0:
        raise WeightsError(f"{path} is empty (0 bytes).")
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        try:
            content: Any = load_file(path, device="cpu")
        except Exception as error:  # SafetensorError, OSError, or KeyError for a type that torch does not have
            raise WeightsError(f"{path} is not a readable safetensors file ({first_line(error)}).") from error
    else:
        try:
            with torch.serialization.safe_globals([argparse.Namespace]):
                content = torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise WeightsError(_refusal(path, str(error))) from None  # torch's own words advise to run its code
        except Exception as error:  # a damaged file fails anywhere in torch's reader
            raise WeightsError(f"{path} cannot be read as a checkpoint ({first_line(error)}).") from error
    if not isinstance(content, Mapping):
        raise WeightsError(f"Expected a state dict, found {type(content).__name__}.")
    entries = [e for e in _ENTRIES if _has_weights(content.get(e))]
    chosen = [e for e in entries if use_ema or not _is_average(e)]
    taken = (content[chosen[0]] if chosen else content).items()
    wrapped = unwrap({k: v for k, v in taken if isinstance(k, str) and isinstance(v, Tensor)})
    state = wrapped.state
    if not state and entries:
        raise WeightsError(f"{path} holds averaged weights only ({', '.join(entries)}): leave out --no-use-ema.")
    if not state:
        raise WeightsError(f"{path} holds no tensors: expected a state dict.")
    entry = chosen[0] if chosen else ""
    arguments = content.get("args")
    return Checkpoint(
        state,
        entry,
        [e for e in entries if e != entry],
        vars(arguments) if isinstance(arguments, argparse.Namespace) else {},
        wrapped,
    )


def _refusal(path: Path, reason: str) -> str:
    """Why the unpickler stopped, with the class that it met."""
    found = re.search(r"(?:GLOBAL|class|type|function) ([\w.]+\.\w+)", reason)
    if found is None:
        return f"{path} is damaged, or not a checkpoint: expected a state dict saved by torch.save, or safetensors."
    refusal = (
        f"{path} holds more than weights: {found[1]}. A checkpoint may carry tensors, plain values and an "
        "argparse.Namespace; anything else could run code and is refused. Re-save its state dict alone, best as "
        "safetensors."
    )
    if not found[1].rpartition(".")[2][0].isupper():  # a function: no way on is offered to what calls one
        return refusal
    exported = str(path.with_name(f"{path.stem}-weights.pth"))
    return (
        f"{refusal} If it is a whole model, and you trust whoever made it, type in Python, where its own code can be "
        f"imported (this runs what the file says):\n  import torch\n  torch.save(torch.load({str(path)!r}, "
        f"map_location='cpu', weights_only=False).state_dict(), {exported!r})\nand then open {exported}."
    )


def _has_weights(content: Any) -> bool:
    return isinstance(content, Mapping) and any(isinstance(v, Tensor) and v.ndim for v in content.values())


def _is_average(entry: str) -> bool:
    return "ema" in entry


def count_classes(state: Mapping[str, Tensor], where: str = "The checkpoint") -> int | None:
    """Rows of the classifier in a state dict; None where there is no classifier."""
    for head in _HEADS:
        weight = state.get(f"{head}.weight")
        if weight is None:
            continue
        if weight.ndim != 2 or not 0 < weight.shape[0] <= _MOST_CLASSES:
            raise WeightsError(
                f"{where}: {head}.weight of shape {tuple(weight.shape)} is no classifier. Expected (classes, width) "
                f"with 1 to {_MOST_CLASSES:,} classes, or no {head}.weight at all."
            )
        return weight.shape[0]
    embeddings = state.get("decoder.cls_emb")  # of Segmenter's mask decoder, (1, classes, width)
    return None if embeddings is None or embeddings.ndim != 3 else embeddings.shape[1]


def check_types(own: Mapping[str, Tensor], state: Mapping[str, Tensor], where: str) -> None:
    """Refuse weights whose numbers are not those of the model: torch would copy integers, and drop imaginary parts."""
    wrong = [key for key in sorted(own.keys() & state.keys()) if not _is_plain(state[key], own[key])]
    if wrong:
        first = state[wrong[0]]
        dense = first.layout is torch.strided and not first.is_meta
        raise WeightsError(
            f"{where} holds {wrong[0]} as {first.dtype if dense else 'something else than a dense array'}, and so "
            f"{len(wrong):,} of {len(state):,} tensors: expected float32, float64, float16 or bfloat16. Quantised "
            "weights mean nothing without their scales, and a ViT has no complex ones: give the dequantised weights."
        )


def _is_plain(value: Tensor, own: Tensor) -> bool:
    if value.is_quantized or value.is_meta or value.layout is not torch.strided:
        return False
    if own.is_floating_point():
        return value.dtype in _PRECISIONS
    return not value.is_floating_point() and not value.is_complex()  # a buffer of counts or positions


def load_into(module: nn.Module, state: Mapping[str, Tensor], where: str) -> None:
    """Copy weights into a model of the same architecture; list every difference otherwise."""
    own = module.state_dict()
    state = under_names_of(own, state)
    check_types(own, state, where)
    missing = sorted(own.keys() - state.keys())
    unexpected = sorted(state.keys() - own.keys())
    shapes = [
        f"{k} {tuple(state[k].shape)} instead of {tuple(own[k].shape)}"
        for k in sorted(own.keys() & state.keys())
        if state[k].shape != own[k].shape
    ]
    if missing or unexpected or shapes:
        parts = [_listing("missing", missing), _listing("unexpected", unexpected), _listing("other shape", shapes)]
        hint = (
            " A position embedding of another size means another img_size=."
            if any("pos_embed" in s for s in shapes)
            else partly_wrapped(own, unexpected)
        )
        raise WeightsError(
            f"The weights in {where} are of another architecture: {'; '.join(p for p in parts if p)}.{hint}"
        )
    module.load_state_dict(dict(state))


def _listing(title: str, names: list[str], most: int = 12) -> str:
    if not names:
        return ""
    more = f", and {len(names) - most} more" if len(names) > most else ""
    return f"{len(names)} {title} ({', '.join(names[:most])}{more})"


def check_finite(module: nn.Module, where: str) -> None:
    for name, value in module.state_dict().items():
        if value.is_floating_point() and not torch.isfinite(value).all():
            bad = int((~torch.isfinite(value)).sum())
            raise NumericalError(f"{where}: {name} holds {bad} NaN or infinite value(s) of {value.numel()}.")


def is_damaged(path: Path) -> bool:
    """Does a weights file differ from the checksum in the `checkpoint.json` beside it? Without one, nobody knows."""
    try:
        expected = json.loads((path.parent / "checkpoint.json").read_text(encoding="utf-8"))["sha256"][path.name]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False
    return sha256(path) != expected


def sha256(path: str | Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
