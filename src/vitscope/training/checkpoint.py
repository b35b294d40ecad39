"""Checkpoints that survive a kill at any moment.

A checkpoint is a folder: `model.safetensors` (weights), `ema.safetensors` (their average, where one is kept),
`training_state.pt` (the optimiser and how far it got; loaded
with `weights_only=True`, so it cannot run code) and `checkpoint.json` (a SHA-256 of each file). It is written under
another name and renamed when it is complete. The one before it stays as `previous`: if `last` turns out to be
damaged, training goes on from there and arrives at the same weights.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitscope.errors import NumericalError, WeightsError
from vitscope.runs.files import atomic_write, explain, make_folder

LAST, PREVIOUS, BEST = "last", "previous", "best"
WEIGHTS, AVERAGE, STATE, MANIFEST = "model.safetensors", "ema.safetensors", "training_state.pt", "checkpoint.json"


@dataclass(frozen=True)
class Checkpoint:
    """What one folder holds. `state` is empty for `best`, which is there to be used and not to be continued."""

    weights: dict[str, Tensor]
    state: dict[str, Any] = field(default_factory=dict)
    average: dict[str, Tensor] = field(default_factory=dict)  # empty where none is kept


def save_checkpoint(
    folder: Path,
    name: str,
    weights: Mapping[str, Tensor],
    state: Mapping[str, Any] | None = None,
    average: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write `folder/name`. A former `last` becomes `previous`. At no moment is there no complete checkpoint.

    Weights that are not finite are refused: the checkpoint before them is the last good one.
    """
    files = {WEIGHTS: _packed(weights)}
    if average is not None:
        files[AVERAGE] = _packed(average)
    if state is not None:
        buffer = io.BytesIO()
        torch.save(dict(state), buffer)
        files[STATE] = buffer.getvalue()

    target, writing = folder / name, folder / f"{name}.writing"
    _remove(writing)
    make_folder(writing)
    try:
        for file, content in files.items():
            atomic_write(writing / file, content)
        sums = {file: hashlib.sha256(content).hexdigest() for file, content in files.items()}
        atomic_write(writing / MANIFEST, json.dumps({"sha256": sums}, indent=2) + "\n")
    except BaseException:  # a full disk, Ctrl-C: the checkpoint before this one is untouched
        shutil.rmtree(writing, ignore_errors=True)
        raise
    _swap(folder, target, writing)
    return target


def load_checkpoint(path: Path) -> Checkpoint:
    """Read and verify one checkpoint folder. Raises WeightsError where a file is missing, cut short or altered."""
    from safetensors.torch import load

    content: dict[str, bytes] = {}
    try:
        sums = json.loads((path / MANIFEST).read_text(encoding="utf-8"))["sha256"]
        for file, expected in sums.items():
            content[file] = (path / file).read_bytes()
            if hashlib.sha256(content[file]).hexdigest() != expected:
                raise WeightsError(f"{path / file} is damaged: its checksum is not the one in {MANIFEST}.")
        weights = load(content[WEIGHTS])
        average = load(content[AVERAGE]) if AVERAGE in content else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsError(f"{path} is not a complete checkpoint: {error or type(error).__name__}.") from error
    state = {}
    if STATE in content:
        try:
            state = torch.load(io.BytesIO(content[STATE]), weights_only=True, map_location="cpu")
        except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
            raise WeightsError(
                f"{path / STATE} holds something else than numbers and is not loaded: {error}"
            ) from error
    return Checkpoint(weights, state, average)


def _packed(weights: Mapping[str, Tensor]) -> bytes:
    from safetensors.torch import save

    weights = {key: value.detach().cpu().contiguous() for key, value in weights.items()}
    for key, value in weights.items():
        if not value.isfinite().all():
            raise NumericalError(f"The weights {key} are NaN or infinite: no checkpoint is written of them.")
    return save(weights, metadata={"format": "pt"})


def newest_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """The checkpoint to continue from, None at the beginning, and a remark for each damaged one that was passed over.

    A damaged one is set aside as `<name>.damaged`, so that the next save cannot put it in the place of a good one.
    """
    remarks: list[str] = []
    for name in (LAST, PREVIOUS):
        path = folder / name
        if not path.is_dir():
            continue
        try:
            load_checkpoint(path)
        except WeightsError as error:
            remarks.append(f"{error} Training went on from the checkpoint before it.")
            _remove(folder / f"{name}.damaged")
            _rename(path, folder / f"{name}.damaged")
        else:
            return path, remarks
    return None, remarks


def _swap(folder: Path, target: Path, writing: Path) -> None:
    """Put `writing` in the place of `target`. Folders cannot be replaced in one step, so the old one moves first."""
    aside = folder / (PREVIOUS if target.name == LAST else f"{target.name}.old")
    if target.exists():
        _remove(aside)
        _rename(target, aside)
    _rename(writing, target)
    if target.name != LAST:
        _remove(aside)


def _rename(old: Path, new: Path) -> None:
    try:
        os.rename(old, new)
    except OSError as error:
        raise explain(error, new) from error


def _remove(path: Path) -> None:
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise explain(error, path) from error
