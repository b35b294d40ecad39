"""Compiled modules are refused wherever a model is opened or changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from vitscope.errors import UnsupportedModelError


def refuse_compiled(module: nn.Module) -> None:
    """Hooks do not fire inside compiled code, so points would silently be missing."""
    for part in module.modules():
        if (
            hasattr(part, "_orig_mod")  # torch.compile(module)
            or getattr(part, "_compiled_call_impl", None) is not None  # module.compile()
            or _is_compiled(part.forward)  # module.forward = torch.compile(module.forward)
        ):
            raise UnsupportedModelError(
                "A compiled module cannot be looked into: hooks do not fire inside compiled code. "
                "Open the original instead: `compiled._orig_mod`, or the model before `.compile()`."
            )


def _is_compiled(function: Callable[..., Any]) -> bool:
    """Wrapped by torch.compile, and not by torch.compiler.disable, which leaves the same mark and one more."""
    return hasattr(function, "_torchdynamo_orig_callable") and not hasattr(function, "_torchdynamo_disable")
