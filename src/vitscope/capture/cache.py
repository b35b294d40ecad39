"""What a forward pass hands over: a dict of points that knows which were asked for, and how they add up."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, NoReturn, Protocol

from torch import Tensor

from vitscope.capture.points import full_name, resolve
from vitscope.errors import MissingPointError, VitscopeError, suggest


class Parts(NamedTuple):
    """Values with the parts of the model first, and what each part is called: `values, labels = ...`."""

    values: Tensor  # (parts, ...)
    labels: list[str]

    def __getitem__(self, part: Any) -> Any:
        """By its name, `parts["blocks.3.mlp"]`; by number it is the pair."""
        if not isinstance(part, str):
            return tuple.__getitem__(self, part)
        if part not in self.labels:
            raise MissingPointError(f"No part {part!r}.{suggest(part, self.labels)}")
        return self.values[self.labels.index(part)]


class Splitter(Protocol):
    """What knows how a model's points add up: the model hands it to the caches that it fills."""

    def decompose(self, cache: Cache, token: int | slice | None, heads: bool, block: int | None) -> Parts: ...
    def accumulated(self, cache: Cache) -> Parts: ...
    def head_results(self, cache: Cache, block: int | None) -> Tensor: ...


class Cache(dict[str, Tensor]):
    """{point name: value}. It is a dict, but a name that it does not hold is answered with the reason.

    `cache["resid_post", 3]` and `cache["out", 3, "mlp"]` are short for the full names.
    """

    def __init__(
        self,
        asked: Iterable[str],
        blocks: int,
        values: Mapping[str, Tensor] | None = None,
        splitter: Splitter | None = None,
    ) -> None:
        super().__init__(values or {})
        self.asked = asked
        self.blocks = blocks
        self._splitter = splitter

    def only(self, names: Iterable[str]) -> Cache:
        """The part that one of several readers asked for."""
        return Cache(names, self.blocks, {name: self[name] for name in self if name in names})

    def decompose(self, token: int | slice | None = None, heads: bool = True, block: int | None = None) -> Parts:
        """Who wrote the residual stream behind the last block (or `block`): parts (P, B, N, C) that add up to it.

        token: one of them (P, B, C) or a slice; None: all. heads: every head, MLP and bias by itself; False: attention
        and MLP of each block, biases inside.
        """
        return self._split().decompose(self, token, heads, block)

    def accumulated(self) -> Parts:
        """The residual stream before the first block and after each: (1 + L, B, N, C)."""
        return self._split().accumulated(self)

    def head_results(self, block: int | None = None) -> Tensor:
        """What each head of a block adds to the stream, W_O[:, h] z_h: (B, N, H, C); of all blocks (L, B, N, H, C)."""
        return self._split().head_results(self, block)

    def _split(self) -> Splitter:
        if self._splitter is None:
            raise VitscopeError("Only the cache of `run_with_cache` can be taken apart: this one is a part of a pass.")
        return self._splitter

    def __getitem__(self, name: str | tuple[Any, ...]) -> Tensor:
        return super().__getitem__(self._full(name))

    def __contains__(self, name: object) -> bool:
        return super().__contains__(self._full(name))

    def get(self, name: Any, default: Any = None) -> Any:
        return super().get(self._full(name), default)

    def _full(self, name: Any) -> Any:
        return full_name(name, self.blocks) if isinstance(name, tuple) else name

    def __missing__(self, name: object) -> NoReturn:
        if not isinstance(name, str):
            raise KeyError(name)
        raise MissingPointError(self._why_not(name))

    def _why_not(self, name: str) -> str:
        try:
            found = resolve(name, self.blocks)
        except VitscopeError as error:
            return str(error)
        if found != [name]:
            return f"{name!r} stands for {len(found)} points, and a value belongs to one: give its full name."
        if name not in self.asked:
            asked = resolve(self.asked, self.blocks)
            listed = ", ".join(asked[:3]) + (f", ... ({len(asked)} points)" if len(asked) > 3 else "")
            return f"{name} was not asked for in this pass, only {listed or 'nothing'}: add it to the names."
        if name.endswith("hook_bias"):
            return f"{name} has no value: the attention of this model adds no bias to its scores."
        return f"{name} is not among the points at hand: blocks are handed over one by one, each with its own points."

    def __reduce__(self) -> tuple[Any, ...]:
        """Saved as what anybody can read: `torch.load` takes no class of ours."""
        return OrderedDict, (), None, None, iter(self.items())
