"""The residual stream, and the logits, as a sum over the parts of a model that wrote them.

Behind the last block the stream is  embedding + sum over blocks (heads + attention's bias + MLP + MLP's bias),  where
blocks add their branches to it. Blocks that normalise the sum (BERT) have no such split and are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from vitscope.architectures.families import block_row
from vitscope.capture.cache import Parts
from vitscope.errors import UnsupportedModelError, VitscopeError
from vitscope.models.branches import Branches, branches_of
from vitscope.models.linear_readout import Readout

if TYPE_CHECKING:
    from vitscope.capture import Cache
    from vitscope.models.model import Model

Classes = int | Sequence[int] | Tensor
FIRST = "blocks.0.hook_resid_pre"


class Part(NamedTuple):
    """What writes: `kind` is embedding, head, attn_bias, mlp, mlp_bias, attn (heads and bias), norm_bias, head_bias."""

    kind: str
    block: int = -1  # the readout's is the number of blocks
    head: int = -1  # -1 where it is no head

    @property
    def name(self) -> str:
        inside = {"head": f"head.{self.head}", "attn_bias": "attn.bias", "mlp_bias": "mlp.bias"}
        outside = {"embedding": "embedding", "norm_bias": "norm.bias", "head_bias": "head.bias"}
        return outside.get(self.kind) or f"blocks.{self.block}.{inside.get(self.kind, self.kind)}"


def block_parts(block: int, heads: int) -> list[Part]:
    """In the order in which `Decomposition.written` has them."""
    others = ("attn_bias", "mlp", "mlp_bias")
    return [*(Part("head", block, head) for head in range(heads)), *(Part(kind, block) for kind in others)]


class Decomposition:
    """How the parts of a model add up. It reads caches and single blocks alike, and computes no forward pass."""

    def __init__(self, model: Model) -> None:
        self.model, self.layout = model, model.layout

    @cached_property
    def readout(self) -> Readout:
        return Readout(self.model)

    @cached_property
    def branches(self) -> list[Branches]:
        try:
            return [branches_of(block, i) for i, block in enumerate(self.model.blocks)]
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"What heads write cannot be told in {self.model.name}: {error}.") from error

    @property
    def parts(self) -> list[Part]:
        """All that adds up to a logit, in their order."""
        blocks, heads = self.layout.blocks, self.layout.heads
        inside = [part for block in range(blocks) for part in block_parts(block, heads)]
        return [Part("embedding"), *inside, Part("norm_bias", blocks), Part("head_bias", blocks)]

    def needs(self) -> list[str]:
        """The points that a logit is split by."""
        bare = [f"blocks.{i}.mlp.hook_out" for i, branches in enumerate(self.branches) if branches.mlp_normed]
        last = f"blocks.{self.layout.blocks - 1}.hook_resid_post"
        return [FIRST, "blocks.*.attn.hook_z", "blocks.*.hook_mlp_out", *bare, last]

    def written(self, block: int, points: Mapping[str, Tensor]) -> Tensor:
        """z, mlp_out and, where it is needed, mlp.hook_out of tokens (..., N, C) -> (..., N, H + 3, C).

        z comes as (..., N, H, D) here, as all else with its tokens in front.
        """
        branches, name = self.branches[block], f"blocks.{block}."
        heads, bias = branches.heads(points[name + "attn.hook_z"])
        mlp = points[name + "hook_mlp_out"]
        offset = branches.mlp_offset(mlp, points[name + "mlp.hook_out"] if branches.mlp_normed else None)
        return torch.cat([heads, torch.stack([bias, mlp - offset, offset], -2)], -2)

    # --- of a cache ---------------------------------------------------------------------------------------------

    def head_results(self, cache: Cache, block: int | None) -> Tensor:
        """What each head adds to the stream: (B, N, H, C) of one block, (L, B, N, H, C) of all."""
        if block is None:
            return torch.stack([self.head_results(cache, i) for i in range(self.layout.blocks)])
        z = cache["z", block].transpose(1, 2)  # (B, N, H, D)
        return self.branches[block % self.layout.blocks].heads(z)[0]

    def accumulated(self, cache: Cache) -> Parts:
        """The stream before the first block and after each: (1 + L, B, N, C)."""
        names = [FIRST, *(f"blocks.{i}.hook_resid_post" for i in range(self.layout.blocks))]
        labels = ["embedding", *(f"blocks.{i}" for i in range(self.layout.blocks))]
        return Parts(torch.stack([cache[name] for name in names]), labels)

    def decompose(self, cache: Cache, token: int | slice | None, heads: bool, block: int | None) -> Parts:
        """Who wrote the stream behind a block, at some tokens: (parts, B, [n,] C)."""
        self._refuse_summed()
        last = self._block(block)
        where = (slice(None), slice(None) if token is None else self._token(token, cache[FIRST].shape[1]))
        found, labels = [cache[FIRST][where][None]], ["embedding"]
        for i in range(last + 1):
            if heads:
                found.append(torch.movedim(self.written(i, self._points(cache, i, where)), -2, 0))
                labels += [part.name for part in block_parts(i, self.layout.heads)]
            else:
                found.append(torch.stack([cache[name, i][where] for name in ("attn_out", "mlp_out")]))
                labels += [Part(kind, i).name for kind in ("attn", "mlp")]
        return Parts(torch.cat(found), labels)

    def attribute(self, cache: Cache, classes: Classes, minus: Classes | None) -> Parts:
        """What each part gives to the logit of a class per image, or per token of a text: (parts, B[, N])."""
        if not isinstance(cache, Mapping):
            raise VitscopeError("That is no cache: expected that of logits, cache = model.run_with_cache(...).")
        readout, first = self.readout, cache[FIRST]
        chosen = self._classes(classes, first)
        rows = self.rows(cache[f"blocks.{self.layout.blocks - 1}.hook_resid_post"])
        scale = readout.inverse_scale(rows)  # (B, R)
        other = None if minus is None else self._classes(minus, first)
        taken, norm_bias, head_bias = readout.directions(chosen, other)
        if readout.each:
            taken = taken.squeeze(-2)  # (B, N, C): each token by itself
        given = [(self.rows(first).unsqueeze(-2) @ taken.unsqueeze(-1)).squeeze(-1)]  # each (B, R, parts)
        for i in range(self.layout.blocks):
            given.append((self.block_rows(i, self._points(cache, i)) @ taken.unsqueeze(-1)).squeeze(-1))
        values = torch.cat(given, -1) * scale.unsqueeze(-1)
        values = values if readout.each else values.sum(1)
        values = torch.cat([values, torch.stack([norm_bias, head_bias], -1)], -1)
        return Parts(torch.movedim(values, -1, 0), [part.name for part in self.parts])

    # --- the rows that a logit is read from ---------------------------------------------------------------------

    def rows(self, x: Tensor) -> Tensor:
        """(B, N, ...) -> (B, R, ...): the tokens that the head reads, or their mean where that comes first."""
        return self.readout.pooled(self.readout.tokens(x))

    def block_points(self, block: int, points: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What must be kept of a block's points to know later what it wrote for the logits; z as (B, R, H, D).

        The mean over tokens is taken at once where what is written is linear in them.
        """
        branches = self.branches[block]
        found = {}
        for name in ("attn.hook_z", "hook_mlp_out", *(["mlp.hook_out"] if branches.mlp_normed else [])):
            x = points[f"blocks.{block}.{name}"]
            x = self.readout.tokens(x.transpose(1, 2) if name.endswith("hook_z") else x)
            found[f"blocks.{block}.{name}"] = self.readout.pooled(x) if self._pools_early(branches) else x
        return found

    def block_rows(self, block: int, kept: Mapping[str, Tensor]) -> Tensor:
        """What a block wrote for the logits, from what `block_points` or a cache keeps: (B, R, H + 3, C)."""
        written = self.written(block, kept)
        return written if self._pools_early(self.branches[block]) else self.readout.pooled(written)

    @staticmethod
    def _pools_early(branches: Branches) -> bool:
        return branches.linear and not branches.mlp_normed

    def _points(self, cache: Cache, block: int, where: tuple[slice | int, ...] | None = None) -> dict[str, Tensor]:
        if where is None:
            return self.block_points(block, cache)
        found = {f"blocks.{block}.attn.hook_z": cache["z", block].transpose(1, 2)[where]}
        for name in ("hook_mlp_out", *(["mlp.hook_out"] if self.branches[block].mlp_normed else [])):
            found[f"blocks.{block}.{name}"] = cache[f"blocks.{block}.{name}"][where]
        return found

    # --- what is asked for --------------------------------------------------------------------------------------

    def _refuse_summed(self) -> None:
        if any(block_row(block).summed for block in self.model.blocks):
            raise UnsupportedModelError(
                f"{self.model.name} normalises the sum of stream and branch in every block: its stream is no sum of "
                "what was written. `cache.accumulated()` and `cache.head_results()` work."
            )

    def _block(self, block: int | None) -> int:
        blocks = self.layout.blocks
        if block is not None and not -blocks <= block < blocks:
            raise VitscopeError(f"block={block}: the model has {blocks} blocks, 0 to {blocks - 1}.")
        return blocks - 1 if block is None else block % blocks

    def _token(self, token: int | slice, tokens: int) -> int | slice:
        if isinstance(token, str):
            raise VitscopeError(f"token={token!r}: expected a number, a slice, or None for all.")
        if isinstance(token, int) and not -tokens <= token < tokens:
            raise VitscopeError(f"token={token}: there are {tokens} tokens, 0 to {tokens - 1}.")
        return token

    def _classes(self, classes: Classes, first: Tensor) -> Tensor:
        """(B,), or of a text (B, N), int64."""
        shape = tuple(first.shape[:2] if self.readout.each else first.shape[:1])
        per = "one for all, one per text, or one per token" if self.readout.each else "one for all or one per image"
        try:
            found = torch.as_tensor(classes, device=first.device)
        except (TypeError, ValueError, RuntimeError) as error:  # names, None, lists of unequal length
            raise VitscopeError(f"classes={classes!r}: expected whole numbers {shape}, {per}.") from error
        if found.is_floating_point() or found.ndim > len(shape) or found.shape not in ((), (1,), shape, shape[:1]):
            raise VitscopeError(f"classes of shape {tuple(found.shape)}: expected whole numbers {shape}, {per}.")
        if found.ndim < len(shape) and found.ndim:
            found = found[:, None]
        return found.long().expand(shape)
