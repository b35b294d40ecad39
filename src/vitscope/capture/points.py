"""Points: named places in a model. The names are those that TransformerLens users know.

| point | shape | what |
|---|---|---|
| `hook_embed` | (B, T, C) | embedding of patches or words, before positions and prefix tokens |
| `blocks.i.hook_resid_pre` / `mid` / `post` | (B, N, C) | residual before the block, between its branches, after it |
| `blocks.i.hook_attn_out`, `hook_mlp_out` | (B, N, C) | what is *added*: after LayerScale, gamma, post-norm |
| `blocks.i.attn.hook_q`, `hook_k`, `hook_v` | (B, H, N, D) | effective: after q/k-norm *and after RoPE* |
| `blocks.i.attn.hook_bias` | broadcasts to (B, H, N, N) | additive attention bias; absent where a model has none |
| `blocks.i.attn.hook_attn_scores` | (B, H, N, N) | q k^T scale + bias, recomputed when asked for |
| `blocks.i.attn.hook_pattern` | (B, H, N, N) | softmax of the scores, recomputed when asked for |
| `blocks.i.attn.hook_z` | (B, H, N, D) | pattern @ v, before the output projection |
| `blocks.i.attn.hook_out`, `mlp.hook_out` | (B, N, C) | bare output of the sub-layer |
| `blocks.i.mlp.hook_pre` | (B, N, M) | input of the activation (of the gate, in gated MLPs) |
| `blocks.i.mlp.hook_post` | (B, N, M) | what the last linear layer of the MLP multiplies |
| `ln_final.hook_normalized` | (B, N, C) | output of the final norm |

B images or texts, N tokens, T image tokens, C width, H heads, D head size, M MLP width. Heads come before tokens, as
`scaled_dot_product_attention` takes them (TransformerLens puts tokens first).

mid = pre + attn_out and post = mid + mlp_out, but in blocks that normalise the sum (`small`, BERT), where
mid = norm1(pre + attn_out) and post = norm2(mid + mlp_out), and in parallel ones (Pythia), where there is no mid and
post = pre + attn_out + mlp_out. A point that a model does not have is left out of globs; asking for it says why.

The scale is 1 / sqrt(D) unless a model's call of attention says another one. Keys and values that several heads share
are shown to each of these heads as its own, and edited so. Masks are part of the bias: causal, sliding and padding.
Tokens that are padding have values, too, and nobody should read them: a padding token that may see nothing at all has
a pattern of zeros.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache

from vitscope.errors import MissingPointError, VitscopeError, suggest

BLOCK_POINTS = (
    "hook_resid_pre",
    "attn.hook_q",
    "attn.hook_k",
    "attn.hook_v",
    "attn.hook_bias",
    "attn.hook_attn_scores",
    "attn.hook_pattern",
    "attn.hook_z",
    "attn.hook_out",
    "hook_attn_out",
    "hook_resid_mid",
    "mlp.hook_pre",
    "mlp.hook_post",
    "mlp.hook_out",
    "hook_mlp_out",
    "hook_resid_post",
)
# read and edited where attention is computed, and nowhere else; hook_bias exists only where a model adds one
ATTENTION_POINTS = tuple(f"attn.hook_{kind}" for kind in ("q", "k", "v", "bias", "attn_scores", "pattern", "z"))
FIRST_POINT, LAST_POINT = "hook_embed", "ln_final.hook_normalized"


class Point(str):
    """One point, as edit functions receive it: its own name, so that `cache[point]` and `point.endswith(...)` work.

    `name` is the bare text, `block` the block that the point lies in (None outside the blocks).
    """

    __slots__ = ("block",)
    block: int | None

    def __new__(cls, name: str) -> Point:
        point = super().__new__(cls, name)
        point.block = block_of(str(name))
        return point

    @property
    def name(self) -> str:
        return str(self)

    def layer(self) -> int | None:
        """TransformerLens' spelling of `block`."""
        return self.block


def all_points(blocks: int) -> list[str]:
    """Every point name of a model with that many blocks, in the order in which a forward pass meets them."""
    inside = [f"blocks.{i}.{kind}" for i in range(blocks) for kind in BLOCK_POINTS]
    return [FIRST_POINT, *inside, LAST_POINT]


@lru_cache(4096)  # asked again for every forward pass
def block_of(name: str) -> int | None:
    match = re.match(r"blocks\.(\d+)\.", name)
    return int(match[1]) if match else None


def full_name(key: tuple[object, ...], blocks: int) -> str:
    """('resid_post', 3) -> 'blocks.3.hook_resid_post', ('out', 3, 'mlp') -> 'blocks.3.mlp.hook_out'; -1 is the last."""
    kind, block, part = (*key, None, None, None)[:3]
    if len(key) not in (2, 3) or not isinstance(kind, str) or not isinstance(block, int):
        raise MissingPointError(f"{key!r} is no point: expected ('resid_post', 3), or ('out', 3, 'mlp').")
    if not -blocks <= block < blocks:
        raise MissingPointError(f"{key!r}: the model has {blocks} blocks, 0 to {blocks - 1}.")
    bare = kind.removeprefix("hook_")
    names = {point: point.rpartition("hook_")[2] for point in BLOCK_POINTS}
    known = [p for p, name in names.items() if name == bare]
    found = [p for p in known if part is None or p.startswith(f"{part}.")]
    if len(found) != 1:
        meant = " or ".join(str((bare, block, *p.split(".")[:-1])) for p in known)
        hint = f" Did you mean {meant}?" if known else suggest(bare, dict.fromkeys(names.values()))
        raise MissingPointError(f"{key!r} is no point.{hint}")
    return f"blocks.{block % blocks}.{found[0]}"


def is_attention_point(name: str) -> bool:
    return name.endswith(ATTENTION_POINTS)


def resolve(names: str | Iterable[str], blocks: int, absent: Mapping[str, str] | None = None) -> list[str]:
    """Names and globs -> point names in forward order. A name that matches nothing is an error.

    absent: points that the model does not have, each with the reason.
    """
    found = _resolve((names,) if isinstance(names, str) else tuple(names), blocks, frozenset(absent or ()))
    if isinstance(found, str):
        raise VitscopeError(f"There is no {found}: {(absent or {})[found]}.")
    return list(found)


@lru_cache(256)
def _resolve(names: tuple[str, ...], blocks: int, absent: frozenset[str]) -> tuple[str, ...] | str:
    """The points, or an absent one that is all that some name stands for."""
    known = all_points(blocks)
    wanted: set[str] = set()
    for pattern in names:
        found = [p for p in known if fnmatchcase(p, pattern)]
        if not found:
            index = block_of(pattern)
            if index is not None and index >= blocks:
                raise VitscopeError(f"No point {pattern!r}: the model has {blocks} blocks, 0 to {blocks - 1}.")
            raise VitscopeError(f"No point matches {pattern!r}.{suggest(pattern, known)} docs/capture.md lists them.")
        if absent.issuperset(found):
            return found[0]
        wanted.update(found)
    return tuple(p for p in known if p in wanted and p not in absent)
