"""What a forward pass hands over: a dict of points that knows which were asked for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from torch import Tensor

from vitscope.capture.points import resolve
from vitscope.errors import MissingPointError, VitscopeError


class Cache(dict[str, Tensor]):
    """{point name: value}. It is a dict, but a name that it does not hold is answered with the reason."""

    def __init__(self, asked: Iterable[str], blocks: int, values: Mapping[str, Tensor] | None = None) -> None:
        super().__init__(values or {})
        self.asked = asked
        self.blocks = blocks

    def only(self, names: Iterable[str]) -> Cache:
        """The part that one of several readers asked for."""
        return Cache(names, self.blocks, {name: self[name] for name in self if name in names})

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
