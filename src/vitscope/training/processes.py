"""One process or many: the Accelerator that fits what the user started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from accelerate import Accelerator, InitProcessGroupKwargs
from accelerate.state import AcceleratorState, PartialState
from torch import Tensor

from vitscope.data.randomness import derive_seed, preserved_globals, seed_globals
from vitscope.errors import VitscopeError

PATIENCE = timedelta(hours=12)  # a process may wait that long for one that evaluates or reads slowly


@contextmanager
def accelerated(device: str, mixed_precision: str) -> Iterator[Accelerator]:
    """An Accelerator over the processes that `torchrun` or `accelerate launch` started, or over this one alone.

    Accelerate keeps its state in the process. What this block sets up it also clears, so that the next training may
    use another device or precision; an Accelerator that the caller already has is left alone.
    """
    fresh = not PartialState._shared_state
    # without cpu=True, Accelerate on a machine without GPU runs every process of torchrun as if it were alone
    cpu = device == "cpu" or not _has_accelerator()
    try:
        accelerator = Accelerator(
            cpu=cpu, mixed_precision=mixed_precision, kwargs_handlers=[InitProcessGroupKwargs(timeout=PATIENCE)]
        )
    except ValueError as error:  # another Accelerator of this process, or a precision that the hardware lacks
        raise VitscopeError(
            f"Accelerate cannot train on {device} with precision {mixed_precision!r}: {error}"
        ) from error
    try:
        _check_processes(accelerator)
        yield accelerator
    finally:
        if fresh:
            AcceleratorState._reset_state(reset_partial_state=True)


def _check_processes(accelerator: Accelerator) -> None:
    """Accelerate must see all that were started, and leave the model whole."""
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if accelerator.num_processes != started:
        raise VitscopeError(
            f"{started} processes were started, but Accelerate sees {accelerator.num_processes}: each would go alone. "
            "Start them with `torchrun --nproc_per_node N -m vitscope train ...`."
        )
    if (kind := str(accelerator.distributed_type.value)) in ("FSDP", "DEEPSPEED", "MEGATRON_LM"):
        raise VitscopeError(
            f"Accelerate was told to use {kind}; vitscope divides a model among processes by itself: start plain "
            "processes (torchrun, or accelerate launch without it) and say --sharded."
        )


def _has_accelerator() -> bool:
    return torch.accelerator.is_available()


@contextmanager
def preserved_randomness(device: torch.device) -> Iterator[None]:
    """Whatever is seeded inside, the global generators of Python, NumPy and torch are as before afterwards."""
    with preserved_globals(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


def seed_step(seed: int, step: int, rank: int) -> None:
    """Dropout, drop-path and mixup draw from the global generators: make those a function of (seed, step, process).

    This is why a checkpoint needs no states of generators, and why a probe between two steps cannot disturb them.
    """
    value = derive_seed("step", seed, step, rank)
    seed_globals(value)
    torch.manual_seed(value)  # on GPUs, too


def onto(device: torch.device, batch: Tensor) -> Tensor:
    """A batch on the device. From pinned memory, a GPU fetches it when it gets there and nobody waits."""
    return batch.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else batch.to(device)
