"""Names of weights inside of wrappers: DDP's `module.`, torch.compile's `_orig_mod.`, a class's own `model.`.

A wrapper's prefix is before *every* name, however wrappers are nested. Where only some names have it, the file holds
more than the model, and nothing is taken off: loading then lists what does not fit. Nothing is loaded in part.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

PREFIXES = ("_orig_mod.", "module.", "model.", "backbone.")


@dataclass(frozen=True)
class Unwrapped:
    """Weights without the prefix of their wrappers."""

    state: dict[str, Tensor]
    prefix: str = ""  # what all names began with
    left_out: tuple[str, ...] = ()  # numbers that a wrapper kept for itself, such as `n_averaged`

    def remarks(self, where: str) -> list[str]:
        if not self.prefix:
            return []
        remark = f"{where}: all names begin with {self.prefix!r}, the prefix of a wrapper. They were read without it."
        if self.left_out:
            remark += f" Left out: {', '.join(self.left_out)}, one number each, which stood beside the wrapped model."
        return [remark]


def unwrap(state: Mapping[str, Tensor]) -> Unwrapped:
    """Take off every prefix of `PREFIXES` that all names share; single numbers beside them are the wrapper's own."""
    found, prefix, left_out = dict(state), "", list[str]()
    while outer := next((p for p in PREFIXES if _shared(found, p)), ""):
        left_out += [prefix + name for name in found if not name.startswith(outer)]
        found = {name[len(outer) :]: value for name, value in found.items() if name.startswith(outer)}
        prefix += outer
    return Unwrapped(found, prefix, tuple(left_out))


def _shared(state: Mapping[str, Tensor], prefix: str) -> bool:
    inside = [name.startswith(prefix) and name != prefix for name in state]
    # averaging wrappers add a counter of their own (`n_averaged`) beside `module.*`
    return any(inside) and all(has or value.ndim == 0 for has, value in zip(inside, state.values()))


def under_names_of(own: Collection[str], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights as they are, or behind a prefix again where it belongs to the model's own names."""
    own = set(own)
    if not own or own & state.keys():
        return dict(state)
    name = next(iter(state), "")
    for prefix in sorted({key[: -len(name)] for key in own if name and key.endswith(name)}, key=len):
        if own == {prefix + key for key in state}:
            return {prefix + key: value for key, value in state.items()}
    return dict(state)


def partly_wrapped(own: Collection[str], unexpected: Iterable[str]) -> str:
    """A sentence for names that would fit without a prefix that others in their file do not have; else ''."""
    unexpected = list(unexpected)
    for prefix in PREFIXES:
        inside = [name for name in unexpected if name.removeprefix(prefix) in own and name not in own]
        if inside:
            return (
                f" {len(inside):,} names would fit without {prefix!r}, the prefix of a wrapper, but others in the file "
                "do not have it: it holds more than this model. Save the state dict of the wrapped model alone."
            )
    return ""
