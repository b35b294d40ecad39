"""The saved state of one process's share of a run: all sums, and how far it got, in one file that replaces the last.

A safetensors file: the tensors are the sums, the header carries the rest as JSON. Loading it cannot run code.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from vitscope.analyses.base import Analysis
from vitscope.errors import RunError
from vitscope.runs.files import atomic_write
from vitscope.runs.shape import misfit

SEPARATOR = "::"  # analysis::key; names may contain dots
SHAPE = {
    "world": int, "next_batch": int, "images": int, "skipped": int, "done": bool, "seconds": float, "rows": {str: [int]}
}  # fmt: skip


@dataclass
class State:
    """How far a process got. Batches are numbered over the whole data, so they mean the same after a resume."""

    world: int  # processes that share the run; another number would deal the batches out differently
    next_batch: int = 0  # the first one not yet counted
    images: int = 0  # counted so far
    skipped: int = 0  # unreadable so far
    done: bool = False  # all batches of this process are counted
    seconds: float = 0.0  # spent so far, over all attempts
    rows: dict[str, list[int]] = field(default_factory=dict)  # table -> bytes and rows written
    sums: dict[str, Tensor] = field(default_factory=dict)  # analysis::key -> accumulator


def state_file(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.safetensors"


def save_state(folder: Path, rank: int, state: State, analyses: Sequence[Analysis]) -> None:
    """Write the state atomically: after a kill the file is the old one or the new one."""
    header = {k: v for k, v in asdict(State(**{**vars(state), "sums": {}})).items() if k != "sums"}
    tensors = {f"{a.name}{SEPARATOR}{key}": value.contiguous() for a in analyses for key, value in a.sums.items()}
    atomic_write(state_file(folder, rank), save(tensors, metadata={"state": json.dumps(header)}))


def load_state(folder: Path, rank: int) -> State | None:
    """The state that `save_state` wrote, None if there is none."""
    path = state_file(folder, rank)
    if not path.exists():
        return None
    try:
        with safe_open(str(path), framework="pt") as file:
            header = json.loads(file.metadata()["state"])
            if wrong := misfit(header, SHAPE):
                raise ValueError(wrong)
            return State(**header, sums={key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise RunError(
            f"{path} is not a saved state of this version ({error}). Start again with --overwrite."
        ) from error


def restore_sums(state: State, analyses: Sequence[Analysis]) -> None:
    """Put saved sums into analyses that were started for the same model.

    The numbers are copied into the analysis's own tensors. A file has another order than the analysis, which its tables
    may follow; and its tensors may begin at any byte, which changes the last digit of what is computed with them.
    """
    for analysis in analyses:
        prefix = analysis.name + SEPARATOR
        saved = {key.removeprefix(prefix): value for key, value in state.sums.items() if key.startswith(prefix)}
        fresh = {key: (value.shape, value.dtype) for key, value in analysis.sums.items()}
        if {key: (value.shape, value.dtype) for key, value in saved.items()} != fresh:
            raise RunError(
                f"The saved sums of analysis {analysis.name!r} do not fit this version of it "
                f"(saved: {sorted(saved)}; expected: {sorted(fresh)}). Start again with --overwrite."
            )
        for key, value in analysis.sums.items():
            value.copy_(saved[key])
