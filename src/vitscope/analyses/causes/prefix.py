"""One forward pass that is kept, so that passes with an edit begin where the edit is.

What lies before an edit gives what it gave without it. So it need not run again: blocks before the edited one, the
attention of a block whose MLP is edited, and the embedding answer from what was kept (`capture.standing_in`). All that
comes after is run by the model's own modules, whatever its family: masks, positions, norms, pooling and head are its
own code. At equal batch shape the result is that of the whole pass, bit for bit.

    prefix = Prefix(model, images)
    logits = prefix.run([{"blocks.7.hook_mlp_out": edit}])

Several edits that begin at the same place go through the model together, as copies of the batch.

Cost of an edit in block b of L: about (L - b) / L of a forward pass; edits of what a block adds or hands on cost less.
Memory: for each item 3 L tensors of the residual's size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vitscope.architectures.families import block_row, family_of
from vitscope.capture import Cache, Edit
from vitscope.capture.points import FIRST_POINT, Point, all_points, block_of
from vitscope.capture.standing_in import Answer, standing_in
from vitscope.models import Model

Edits = Mapping[str, "Edit"]  # {full name of a point: fn(value, point)}
# the points of a block before which its attention is done, and its MLP as well
_AFTER_ATTENTION = ("attn.hook_out", "hook_attn_out", "hook_resid_mid", "mlp.hook_pre", "mlp.hook_post", "mlp.hook_out")
_AFTER_MLP = ("hook_mlp_out",)
_BEFORE_ANYTHING = (-1, "")


class Prefix:
    """The pass of a batch without edits: `outputs`, and what is needed to begin anywhere."""

    def __init__(self, model: Model, inputs: Any) -> None:
        self.model, self.inputs = model, model.place(inputs)
        self.shares = not model.active_edits()  # those of somebody else would be applied to kept values once more
        self._order = {name: i for i, name in enumerate(all_points(model.layout.blocks))}
        self._embedding = model.module.get_submodule(family_of(model.module).embedding)
        self._blocks = model.blocks
        self._parts = [_parts(block) for block in self._blocks]  # per block: {"attn": module, "mlp": module}
        self._kept: dict[nn.Module, Any] = {}
        with torch.no_grad(), standing_in(self._keepers()):
            self.outputs = model(self.inputs)

    def __len__(self) -> int:
        return _rows(self.inputs)

    def _keepers(self) -> dict[nn.Module, Answer]:
        """What notes the answers of the modules that may stand in later."""

        def keeper(module: nn.Module, forward: Answer) -> Answer:
            def keep(*args: Any, **kwargs: Any) -> Any:
                self._kept[module] = forward(*args, **kwargs)
                return self._kept[module]

            return keep

        parts = [module for parts in self._parts for module in parts.values()]
        known = [self._embedding, *self._blocks, *parts] if self.shares else []
        return {module: keeper(module, module.forward) for module in known}

    def begins(self, points: Sequence[str]) -> tuple[int, str]:
        """Where a pass that changes these points has to begin: (block, what of this block is done before it)."""
        if not points or not self.shares:
            return (len(self._blocks), "") if self.shares else _BEFORE_ANYTHING
        first = min(points, key=self._order.__getitem__)
        block = block_of(first)
        if block is None:
            return _BEFORE_ANYTHING if first == FIRST_POINT else (len(self._blocks), "")
        kind = first.split(".", 2)[2]
        if kind == "hook_resid_post":
            return block + 1, ""
        done = "mlp" if kind in _AFTER_MLP else "attn" if kind in _AFTER_ATTENTION else ""
        return block, done if done in self._parts[block] or not done else "attn" * ("attn" in self._parts[block])

    def run(self, copies: Sequence[Edits]) -> Tensor:
        """Outputs (copies * B, ...): of each copy of the batch under its own edits, one copy after the other."""
        names = {name for edits in copies for name in edits}
        changes = {name: _of_copies([edits.get(name) for edits in copies]) for name in names}
        answers = self._answers(*self.begins([*names]), len(copies))
        with torch.no_grad(), standing_in(answers), self.model.edits(changes):
            return self.model(_tiled(self.inputs, len(copies)))

    def read(self, edits: Edits, names: Sequence[str]) -> Cache:
        """The values of points, which lie behind the edits, under them."""
        answers = self._answers(*self.begins([*edits, *names]), 1)
        with torch.no_grad(), standing_in(answers), self.model.edits(edits):
            return self.model.run_with_cache(self.inputs, names)[1]

    def run_each(self, edits: Sequence[Edits], rows: int = 1) -> Iterator[tuple[int, Tensor]]:
        """(number, outputs (B, ...)) of each edit, those that begin at the same place one after the other. `rows` go
        through the model at a time, as far as edits begin at the same place; one copy of the batch at least."""
        places: dict[tuple[int, str], list[int]] = {}
        for number, edit in enumerate(edits):
            places.setdefault(self.begins([*edit]), []).append(number)
        together = max(1, rows // len(self))
        for numbers in places.values():
            for first in range(0, len(numbers), together):
                chosen = numbers[first : first + together]
                yield from zip(chosen, self.run([edits[i] for i in chosen]).split(len(self)))

    def _answers(self, block: int, done: str, copies: int) -> dict[nn.Module, Answer]:
        """Who stands in for a pass that begins there."""
        if block < 0:
            return {}
        modules = [self._embedding]
        if block:  # the last one before the beginning hands on what it handed on; those before pass things through
            modules.append(self._blocks[block - 1])
        if done:
            modules += [self._parts[block][part] for part in ("attn", "mlp")[: 1 + (done == "mlp")]]
        answers = {module: _answering(_tiled(self._kept[module], copies)) for module in modules}
        return answers | {module: _passing(self._kept[module]) for module in self._blocks[: max(block - 1, 0)]}


def _parts(block: nn.Module) -> dict[str, nn.Module]:
    """The modules of a block that can stand in: not those inside of which what they add is read."""
    row = block_row(block)
    found = {}
    for part, name, inside in (("attn", row.attn, (row.attn_added, row.attn_out)), ("mlp", row.mlp, (row.mlp_added,))):
        if name and not any(place.startswith(f"{name}.") for place in inside):
            found[part] = block.get_submodule(name)
    return found if "attn" in found else {}


def _of_copies(edits: Sequence[Edit | None]) -> Edit:
    """The edits of one point in all copies of the batch as one."""

    def edit(value: Tensor, point: Point) -> Tensor:
        parts = []
        for part, change in zip(value.chunk(len(edits)), edits):
            new = None if change is None else change(part, point)
            parts.append(part if new is None else new)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    return edit


def _answering(output: Any) -> Answer:
    return lambda *args, **kwargs: output


def _passing(output: Any) -> Answer:
    """What comes in goes out, in the shape in which this module answers."""

    def answer(*args: Any, **kwargs: Any) -> Any:
        value = args[0] if args else kwargs["hidden_states"]
        return (value, *output[1:]) if isinstance(output, tuple) else value

    return answer


def _tiled(value: Any, copies: int) -> Any:
    """Copies of a batch one after the other: of a tensor (B, ...), of several by name, or of the first of a tuple."""
    if copies == 1:
        return value
    if isinstance(value, Mapping):
        return {name: _tiled(part, copies) for name, part in value.items()}
    if isinstance(value, tuple):
        return (_tiled(value[0], copies), *value[1:])
    return value.repeat(copies, *(1,) * (value.ndim - 1))


def _rows(inputs: Any) -> int:
    return len(next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs)
