"""A norm held at its own value: with the scale that it had, it is a linear map and an offset.

    LayerNorm(x) = gain * (x - mean x) / s(x) + bias,   s(x) = sqrt(var x + eps)
    RMSNorm(x)   = gain * x / s(x),                     s(x) = sqrt(mean x^2 + eps)

s is the only part that is not linear. Kept at the s of the actual x, the norm of a sum is the sum of its parts' shares,
exactly, plus the bias (the frozen LayerNorm of direct logit attribution: Elhage et al. 2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from vitscope.errors import UnsupportedModelError


@dataclass(frozen=True)
class FrozenNorm:
    """The parts of a norm over the last dimension, C."""

    gain: Tensor | None  # (C,)
    bias: Tensor | None  # (C,)
    centred: bool  # LayerNorm takes the mean away, RMSNorm does not
    eps: float

    def inverse_scale(self, x: Tensor) -> Tensor:
        """1 / s(x), (..., C) -> (..., 1)"""
        return (self._centre(x).square().mean(-1, keepdim=True) + self.eps).rsqrt()

    def linear(self, part: Tensor, inverse_scale: Tensor) -> Tensor:
        """A part's share of the normalised sum, without the bias: (..., C) -> (..., C)"""
        share = self._centre(part) * inverse_scale
        return share if self.gain is None else share * self.gain

    def pulled_back(self, direction: Tensor) -> Tensor:
        """d with <d, part> = <direction, linear(part)> * s: (..., C) -> (..., C)"""
        return self._centre(direction if self.gain is None else direction * self.gain)

    def _centre(self, x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True) if self.centred else x


def frozen(norm: nn.Module) -> FrozenNorm | None:
    """The parts of a norm; None of an identity, and UnsupportedModelError of what is neither."""
    if isinstance(norm, nn.Identity):
        return None
    own: Any = norm
    weight: Any = getattr(own, "weight", None)
    kind = type(norm).__name__
    if isinstance(norm, nn.LayerNorm):
        return FrozenNorm(weight, norm.bias, True, norm.eps)
    if kind.lower().removesuffix("fp32").endswith("rmsnorm"):
        eps = next((float(getattr(own, name)) for name in ("variance_epsilon", "eps") if getattr(own, name, None)), 0.0)
        gain = 1 + weight if kind.startswith("Gemma") else weight
        return FrozenNorm(gain, None, False, eps)
    raise UnsupportedModelError(f"{kind} is neither a LayerNorm nor an RMSNorm: at which scale to hold it is not known")
