"""What an attention costs in a model: parameters, FLOPs, time and peak memory per image, inference and training."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vitscope.attention.description import convert_from_description, parse_attention
from vitscope.attention.peak import peak_memory
from vitscope.attention.registry import list_attentions
from vitscope.errors import VitscopeError

MODES = ("inference", "training")
# in all layers as they are, and the settings whose results were published
SETTINGS = (
    "softmax",
    "symmetric",
    "rpc",
    "symmetric; rpc:layers=0,iterations=4,lambda=4",
    "rpc:iterations=2,lambda=3",
    "rpc:symmetric=false",
    "scaled:form=scalar",
    "scaled:form=matrix",
    "standardised",
)


@dataclass(frozen=True)
class Cost:
    """Of one attention in one mode. Training is a forward and a backward pass, without the step of an optimiser."""

    attention: str  # its description
    mode: str  # 'inference' or 'training'
    parameters: int
    flops: int  # per image: matrix products, a multiplication and an addition count as two
    seconds: list[float] = field(repr=False)  # per image, one per repeat
    peak_bytes: int | None  # per image, above parameters, gradients and input; None where the device does not tell

    @property
    def ms(self) -> float:
        """The repeat that was disturbed least."""
        return 1000 * min(self.seconds)


def default_settings() -> list[str]:
    """The settings that `vitscope cost` compares: SETTINGS, and whatever else is registered."""
    covered = {entry["name"] for text in SETTINGS for entry in parse_attention(text)}
    return [*SETTINGS, *(name for name in list_attentions() if name not in covered)]


def measure_costs(
    module: nn.Module,
    input_size: tuple[int, int, int],
    settings: Sequence[str],
    *,
    batch: int = 8,
    repeats: int = 9,
    device: str | torch.device = "cpu",
    progress: Callable[[str], None] | None = None,
) -> list[Cost]:
    """Costs of every setting in both modes. Settings run interleaved, so that a busy machine slows all of them alike.

    module: a plain timm model; it is not converted itself, but its gradients are gone afterwards.
    input_size: (channels, height, width).
    """
    if batch < 1 or repeats < 1:
        raise VitscopeError(f"batch and repeats are at least 1, not {batch} and {repeats}.")
    try:
        device = torch.device(device)
        module.to(device)
    except (RuntimeError, AssertionError) as error:
        raise VitscopeError(f"There is no device {str(device)!r} here: {str(error).splitlines()[0]}") from error
    shape = (batch, *input_size)
    images = torch.linspace(-1, 1, math.prod(shape), device=device).reshape(shape)  # any values: no RNG is touched
    runs: dict[tuple[str, str], Callable[[], object]] = {}
    fixed: dict[tuple[str, str], tuple[int, int, int | None]] = {}
    for text in settings:
        # modules of its own, parameters shared: ten variants of a large model fit where one does
        shared = {id(p): p for p in module.parameters()}
        variant = convert_from_description(copy.deepcopy(module, shared), text)
        for mode in MODES:
            if progress:
                progress(f"{text}, {mode}")
            key = (text, mode)
            runs[key] = _pass(variant, images, mode)
            runs[key]()  # warms up, and allocates the gradients that the peak is to leave out
            peak = _peak(runs[key], device)
            fixed[key] = (
                sum(p.numel() for p in variant.parameters()),
                count_flops(_pass(variant, images[:1], mode)),
                None if peak is None else peak // batch,
            )
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
    for repeat in range(repeats):
        if progress:
            progress(f"timing, round {repeat + 1} of {repeats}")
        for key, run in runs.items():
            seconds[key].append(_seconds(run, device) / batch)
    module.zero_grad()
    return [Cost(*key, *values[:2], seconds[key], values[2]) for key, values in fixed.items()]


def count_flops(run: Callable[[], object]) -> int:
    """FLOPs of the matrix products in `run()`. Attention counts as its formula, not as what a fused kernel repeats."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with sdpa_kernel(SDPBackend.MATH), counter:
        run()
    return int(counter.get_total_flops())


def _pass(module: nn.Module, images: Tensor, mode: str) -> Callable[[], object]:
    def inference() -> object:
        module.eval()
        with torch.inference_mode():
            return module(images)

    def training() -> object:
        module.train()
        module.zero_grad(set_to_none=False)
        logits: Any = module(images)
        # a distilled model returns the logits of both heads in training
        loss = sum(part.float().logsumexp(-1).mean() for part in (logits if isinstance(logits, tuple) else (logits,)))
        return loss.backward()

    return training if mode == "training" else inference


def _peak(run: Callable[[], object], device: torch.device) -> int | None:
    try:
        return peak_memory(run, device)
    except NotImplementedError:
        return None


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    accelerator = device.type != "cpu"
    if accelerator:
        torch.accelerator.synchronize()
    start = time.perf_counter()
    run()
    if accelerator:
        torch.accelerator.synchronize()
    return time.perf_counter() - start
