"""Take tokens away after the position embedding, and see what the rest still knows.

Two ways that give the same result wherever both exist:

* *mask*: no token may attend to a removed one (its key gets a score of -inf), and pooled models average over the rest.
  Every image of a batch may lose other tokens. It holds for softmax attention, with any kind of positions.
* *drop*: the tokens are really left out, which is quicker the fewer are left. All images of a batch must keep equally
  many, and nothing after the embedding may depend on places (absolute positions only).

`stream_kept` chooses: attention that is not one softmax over the keys (`vitscope.attention`'s RPC and scaled) needs
dropping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from vitscope.analyses.attention_facts import attention_facts
from vitscope.architectures.families import block_row
from vitscope.capture import Edit, Point
from vitscope.errors import UnsupportedModelError, VitscopeError
from vitscope.models import Model

_PLACES_ADDED_FIRST = ("VisionTransformer", "VisionTransformerDistilled")  # positions are added before the blocks


def maskable(model: Model) -> bool:
    """Is every block's attention one softmax over the keys, so that masking a key equals leaving the token out?"""
    from vitscope.attention import RPCAttention, ScaledAttention  # their keys and values depend on other tokens

    attentions = [_attention(block) for block in model.blocks]
    mixing = any(
        isinstance(a, RPCAttention | ScaledAttention) or getattr(a, "attention_calls", 1) > 1 for a in attentions
    )
    return not mixing and attention_facts(model).softmax


def why_not_removable(model: Model) -> str | None:
    """Why no token can be taken away; None if it can."""
    if maskable(model) or droppable(model):
        return None
    return (
        f"Tokens of {model.name} can neither be masked (its attention is not one softmax over the keys) nor dropped "
        "(places matter inside its blocks, or its pooling is not known)."
    )


def droppable(model: Model) -> bool:
    """Does nothing after the embedding depend on a token's place in the sequence?"""
    module: Any = model.module
    known = any(c.__name__ in _PLACES_ADDED_FIRST for c in type(module).__mro__)
    attentions = [_attention(block) for block in module.blocks]
    places = any(getattr(a, name, None) is not None for a in attentions for name in ("rope", "rel_pos"))
    places |= any(getattr(getattr(a, "options", None), "form", "") == "matrix" for a in attentions)  # of N x N places
    return known and not places and _pooling(model) in ("token", "avg", "avgmax", "max")


def _attention(block: Any) -> Any:
    return block.get_submodule(block_row(block).attn)


def _pooling(model: Model) -> str:
    return str(getattr(model.module, "global_pool", "token") or "token")


def check_keep(model: Model, keep: Tensor) -> None:
    """(B, N) bool: class and register tokens stay, and something must stay."""
    n, image = model.layout.tokens, model.layout.image
    if keep.ndim != 2 or keep.shape[1] != n or keep.dtype != torch.bool:
        raise VitscopeError(f"keep must be a bool tensor (images, {n} tokens), not {tuple(keep.shape)} {keep.dtype}.")
    if not keep[:, : image.start].all():
        raise VitscopeError("Only image tokens can be removed: class and register tokens carry the answer.")
    if _pooling(model) != "token" and not keep[:, image].any(1).all():
        raise VitscopeError(f"{model.name} pools its image tokens: each image must keep at least one.")


def masking_edits(model: Model, keep: Tensor) -> dict[str, Edit]:
    """Edits under which removed tokens are seen by none, neither in attention nor in the pooling."""
    check_keep(model, keep)
    hidden = ~keep

    def hide(scores: Tensor, point: Point) -> Tensor:
        return scores.masked_fill(hidden[:, None, None, :].to(scores.device), float("-inf"))

    edits: dict[str, Edit] = {"blocks.*.attn.hook_attn_scores": hide}
    pooling, image = _pooling(model), model.layout.image
    if pooling == "token":
        return edits
    if pooling != "avg" or getattr(model.module, "pool_include_prefix", False):
        raise UnsupportedModelError(f"{model.name} pools by {pooling!r}: removed tokens cannot be left out of that.")

    def leave_out(x: Tensor, point: Point) -> Tensor:
        kept = keep[:, image].to(x.device, x.dtype)  # (B, T); the mean over all T becomes the mean over the kept ones
        weight = kept * (kept.shape[1] / kept.sum(1, keepdim=True))
        return torch.cat([x[:, : image.start], x[:, image] * weight[..., None]], 1)

    return edits | {"ln_final.hook_normalized": leave_out}


@contextmanager
def dropped(model: Model, indices: Tensor) -> Iterator[Model]:
    """Inside the block only the tokens `indices` (B, n), ascending, enter the first transformer block."""
    if not droppable(model):
        raise UnsupportedModelError(
            f"Tokens of {model.name} cannot be dropped: places matter inside its blocks (RoPE or relative positions)."
        )

    def gather(_: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        x = args[0]  # (B, N, C)
        chosen = indices.to(x.device)[..., None].expand(-1, -1, x.shape[-1])
        return (x.gather(1, chosen), *args[1:])

    first: Any = model.blocks[0]
    handle = first.register_forward_pre_hook(gather)
    try:
        yield model
    finally:
        handle.remove()


OnKept = Callable[[int, dict[str, Tensor], Tensor, Tensor], None]


def stream_kept(
    model: Model, images: Tensor, keep: Tensor, names: str | Sequence[str] = (), on_block: OnKept | None = None
) -> Tensor:
    """`model.stream` with only the tokens in `keep` (B, N): by masking where that holds, else by dropping.

    on_block(block, points, rows, tokens): `points` belong to the images `rows` (b,) and their tokens `tokens` (b, n).
    Under masking these are all tokens; what stands at removed ones is to be ignored.
    """
    if maskable(model):
        everything = torch.arange(len(keep)), torch.arange(keep.shape[1]).expand(len(keep), -1)
        with model.edits(masking_edits(model, keep)):
            return _stream(model, images, names, on_block, *everything)
    check_keep(model, keep)
    counts = keep.sum(1)
    logits: Tensor | None = None
    for count in counts.unique().tolist():  # images that keep equally many go together
        rows = (counts == count).nonzero().flatten()
        indices = kept_indices(keep[rows])
        with dropped(model, indices):
            part = _stream(model, images[rows.to(images.device)], names, on_block, rows, indices)
        logits = part.new_empty(len(keep), part.shape[1]) if logits is None else logits
        logits[rows.to(part.device)] = part
    assert logits is not None
    return logits


def _stream(
    model: Model, images: Tensor, names: str | Sequence[str], on_block: OnKept | None, rows: Tensor, tokens: Tensor
) -> Tensor:
    if on_block is None:
        return model(images)
    return model.stream(images, names, lambda block, points: on_block(block, points, rows, tokens))


def kept_indices(keep: Tensor) -> Tensor:
    """(B, N) bool with equally many per row -> (B, n) ascending indices."""
    n = int(keep[0].sum())
    return keep.nonzero()[:, 1].view(len(keep), n)
