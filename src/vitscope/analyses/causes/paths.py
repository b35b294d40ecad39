"""Path patching: what does one head tell another one, and nobody else?

The sender speaks as in the other run. Everything between it and the receiver, other heads and all MLPs, says what it
said in the base run, so that the receiver alone hears of it, by the residual stream; its q, k and v (or some of them)
then go into the base run. Goldowsky-Dill et al., "Localizing model behavior with path patching" (2023).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from vitscope.analyses.causes.components import Component, component_named, exchange
from vitscope.analyses.causes.prefix import Edits, Prefix
from vitscope.capture import Edit
from vitscope.errors import VitscopeError
from vitscope.models import Model

THROUGH = "qkv"


@dataclass(frozen=True)
class Path:
    """From a head to a head of a later block, through its queries, keys or values."""

    sender: Component
    receiver: Component
    through: str = THROUGH

    @property
    def between(self) -> list[str]:
        """The points that say what they said."""
        first, last = self.sender.block, self.receiver.block
        attention = [f"blocks.{b}.hook_attn_out" for b in range(first + 1, last)]
        return attention + [f"blocks.{b}.hook_mlp_out" for b in range(first, last)]

    @property
    def heard(self) -> list[str]:
        return [f"blocks.{self.receiver.block}.attn.hook_{letter}" for letter in self.through]

    def edits(self, base: Prefix, own: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> Edits:
        """What to do to the base run. `own` and `new`: values of points in it, and in the other run."""
        sent: dict[str, Edit] = {name: _saying(own[name]) for name in self.between}
        sent[self.sender.point] = exchange(self.sender, self.sender.part(new[self.sender.point]))
        heard = base.read(sent, self.heard)
        return {name: exchange(self.receiver, self.receiver.part(value)) for name, value in heard.items()}


def _saying(value: Tensor) -> Edit:
    return lambda old, point: value


def path_named(word: str, model: Model | None = None) -> Path:
    """'8.1>11.2', or '8.1>11.2:v' through its values alone."""
    match = re.fullmatch(r"([^>:]+)>([^>:]+)(?::([qkv]{1,3}))?", str(word).strip())
    if match is None:
        raise VitscopeError(f"{word!r} is no path: expected HEAD>HEAD, such as 8.1>11.2, or 8.1>11.2:v.")
    sender, receiver = (component_named(part, model) for part in match.groups()[:2])
    if sender.head is None or receiver.head is None or sender.block >= receiver.block:
        raise VitscopeError(f"{word!r} is no path: expected a head, and a head of a later block behind it.")
    return Path(sender, receiver, "".join(dict.fromkeys(match[3] or THROUGH)))
