"""Where did the NaN come from? The first tensor of a step that is not finite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


@torch.no_grad()
def first_bad_tensor(module: nn.Module, inputs: Any) -> str | None:
    """The first of: the inputs, the weights, the outputs of the modules in forward order; None if all are finite.

    One more forward pass in the mode the module is in; the caller seeds it so that dropout falls as it did.
    """
    for images in inputs.values() if isinstance(inputs, Mapping) else [inputs]:
        if not images.isfinite().all():
            bad = [i for i, image in enumerate(images) if not image.isfinite().all()]
            return f"the images of the batch (number {', '.join(map(str, bad[:5]))} in it)"
    for name, value in module.named_parameters():
        if not value.isfinite().all():
            return f"the weights {name}, which the step before has spoilt"
    found: list[str] = []

    def note(name: str) -> Any:
        def hook(_: nn.Module, args: Any, output: Any) -> None:
            if not found and isinstance(output, Tensor) and not output.isfinite().all():
                found.append(f"the output of {name}")

        return hook

    handles = [part.register_forward_hook(note(name)) for name, part in module.named_modules() if name]
    try:
        module(**inputs) if isinstance(inputs, Mapping) else module(inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None
