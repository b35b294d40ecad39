"""One binary answer per picture: a head in JSON, then arrays.

    b"vsx1" | length of the head (uint32, little endian) | head, padded to 8 bytes | arrays, each padded to 8 bytes

The head lists the arrays, {"name", "type", "shape", "at"}, `at` in bytes behind the head. Attention comes in eight
bits with one scale per row: value = level * scale. The scale is that row's largest weight / 255 (/ 127 where weights
can be negative), so a value is off by half a level at most.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

MAGIC = b"vsx1"
MOST = 2_500_000  # bytes of one transfer; a view that would be larger leaves attention out, rows come on request
MOST_ROWS = 400_000  # bytes of one token's rows


def quantise(weights: Tensor, signed: bool = False) -> tuple[Tensor, Tensor]:
    """Attention (..., N) -> levels (..., N) uint8 or int8, scales (...) float32. Overwrites nothing."""
    top = 127.0 if signed else 255.0
    largest = weights.abs().amax(-1) if signed else weights.amax(-1)
    scale = (largest / top).clamp_min(torch.finfo(torch.float32).tiny)
    levels = (weights / scale[..., None]).round_()
    return levels.clamp_(-top if signed else 0, top).to(torch.int8 if signed else torch.uint8), scale.float()


def pack(head: Mapping[str, Any], arrays: Mapping[str, Tensor | np.ndarray]) -> bytes:
    """Head and arrays as one answer. float64 becomes float32: nothing that is drawn needs more."""
    listed, parts, at = [], [], 0
    for name, array in arrays.items():
        a = array.detach().cpu().numpy() if isinstance(array, Tensor) else np.asarray(array)
        a = np.ascontiguousarray(a.astype(np.float32) if a.dtype == np.float64 else a)
        a = a.astype(np.int32) if a.dtype == np.int64 else a
        listed.append({"name": name, "type": a.dtype.str.lstrip("<|"), "shape": list(a.shape), "at": at})
        content = a.astype(a.dtype.newbyteorder("<"), copy=False).tobytes()
        parts.append(content + bytes(-len(content) % 8))
        at += len(parts[-1])
    text = json.dumps({**head, "arrays": listed}, separators=(",", ":"), allow_nan=False).encode()
    text += b" " * (-(len(text) + 8) % 8)
    return b"".join([MAGIC, len(text).to_bytes(4, "little"), text, *parts])


def unpack(content: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The inverse, as the page does it: for clients in Python, and for tests."""
    assert content[:4] == MAGIC
    length = int.from_bytes(content[4:8], "little")
    head = json.loads(content[8 : 8 + length])
    arrays = {}
    for entry in head.pop("arrays"):
        count = int(np.prod(entry["shape"]))
        first = 8 + length + entry["at"]
        arrays[entry["name"]] = np.frombuffer(content, f"<{entry['type']}", count, first).reshape(entry["shape"])
    return head, arrays
