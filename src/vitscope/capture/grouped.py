"""Keys and values that several heads share (grouped keys), as each head sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def is_grouped(call: Mapping[str, Any]) -> bool:
    """Does a call of scaled_dot_product_attention hold keys and values once for several heads?

    Either it says so (`enable_gqa`), or its heads stand where tokens are expected: transformers does that with the
    query of a text of one token, (B, H, 1, D) -> (B, key heads, heads per key head, D).
    """
    return bool(call.get("enable_gqa")) or _is_packed(call)


def _is_packed(call: Mapping[str, Any]) -> bool:
    return call["key"].shape[-2] == 1 and call["query"].shape[-2] > 1


def per_head(call: Mapping[str, Any]) -> dict[str, Any]:
    """The same call with a key and a value for every head: q, k, v (B, H, N, D)."""
    q, k, v = (call[name] for name in ("query", "key", "value"))
    if _is_packed(call):
        heads, share = q.shape[1] * q.shape[2], q.shape[2]
        q = q.reshape(q.shape[0], heads, 1, q.shape[-1])
    else:
        share = q.shape[-3] // k.shape[-3]
    found = {**call, "query": q, "key": _repeated(k, share), "value": _repeated(v, share)}
    found.pop("enable_gqa", None)
    return found


def _repeated(x: Tensor, times: int) -> Tensor:
    return x.repeat_interleave(times, -3) if times > 1 else x
