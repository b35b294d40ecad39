"""Where the heads look in a text: the statistics of `attention` for tokens that are known by what they stand for.

Let a[i, j] be the attention of query i to key j. Padding is neither: it is in no sum. Queries are of three kinds, the
`first` token of a text, `separator`s behind it, and `text`, which is the rest. For each text, head and kind, the mean
over the queries of that kind of

    entropy             - sum_j a[i, j] ln a[i, j], in nats
    entropy_normalised  the same divided by ln n_i, n_i the keys that query i sees: all tokens of the text, itself and
                        those before it in a causal model, those within the window of a block that has one. A query that
                        sees one key has nothing to choose from and is left out
    mass_first          a[i, 0]: what goes to the first token, which many models use as a sink
    mass_separator      the sum over separators j
    mass_self           a[i, i]

and of text queries

    distance            sum_ij a[i, j] |i - j| / sum_ij a[i, j], i and j of the kind text: how many tokens the attention
                        that stays in the text travels, without what goes into a sink.

A text without queries of a kind is not counted there. `uniform` is the same statistic of attention that gives every
key that a query sees 1 / n_i, mean over the same texts.
"""

from __future__ import annotations

import pandas as pd
import torch
from torch import Tensor

from vitscope.analyses.base import zeros
from vitscope.architectures.text_layout import TextLayout
from vitscope.data.batch import Batch
from vitscope.statistics.moments import mean_std

UNITS = {
    "entropy": "nats",
    "entropy_normalised": "share",
    "distance": "tokens",
    "mass_first": "share",
    "mass_separator": "share",
    "mass_self": "share",
}
KINDS = ("first", "separator", "text")
CAUSAL = (
    "a token sees itself and those before it: entropy is divided by ln of the keys that a query sees, and the first "
    "token, which sees only itself, has no entropy_normalised"
)


def metrics_of(layout: TextLayout) -> list[str]:
    """Without separators there is no attention to them."""
    return [metric for metric in UNITS if metric != "mass_separator" or layout.separators]


def seen_keys(layout: TextLayout, block: int, valid: Tensor) -> Tensor:
    """Which keys each query of a block sees, (B, N) bool -> (B, N, N) bool. Padding sees none, and is not seen."""
    place = torch.arange(valid.shape[1], device=valid.device)
    behind = place[:, None] - place  # how far key j lies before query i
    window = layout.windows[block] if layout.windows else None
    near = behind.abs() < (window or valid.shape[1])
    if layout.causal:
        near &= behind >= 0
    return near & valid[:, :, None] & valid[:, None, :]


def text_statistics(pattern: Tensor, seen: Tensor, groups: dict[str, Tensor]) -> dict[str, Tensor]:
    """`UNITS` of one block's pattern (B, H, N, N) -> (B, H, K), K `KINDS` of queries; NaN where there is nothing.

    `seen` (B, N, N) are the keys that queries see; `groups` (B, N) bool are the kinds of tokens.
    """
    from vitscope.analyses.attention import row_entropy

    pattern = pattern.masked_fill(~seen[:, None], 0.0).to(torch.promote_types(pattern.dtype, torch.float32))
    kinds = torch.stack([groups[kind] for kind in KINDS], -1)  # (B, N, K)
    keys = kinds.to(pattern.dtype)[:, None]
    place = torch.arange(pattern.shape[-1], device=pattern.device, dtype=pattern.dtype)
    away = (place[:, None] - place).abs()  # (N, N)
    entropy, n = row_entropy(pattern).double(), seen.sum(-1)[:, None]  # (B, H, N), (B, 1, N)
    to_kinds = (pattern @ keys).double()  # (B, H, N, K): the mass that goes to each
    travelled = ((pattern * away) @ keys[..., 2:]).double()[..., 0]  # (B, H, N) among text
    queries = kinds.double()[:, None]  # (B, 1, N, K)

    def mean(rows: Tensor, among: Tensor) -> Tensor:
        return torch.einsum("bhn,bhnk->bhk", rows, among.expand(-1, rows.shape[1], -1, -1)) / among.sum(2)

    choosing = queries * (n > 1)[..., None]
    text = groups["text"][:, None].double()
    distance = (travelled * text).sum(-1) / (to_kinds[..., 2] * text).sum(-1)  # (B, H)
    nothing = torch.full_like(distance, torch.nan)
    return {
        "entropy": mean(entropy, queries),
        "entropy_normalised": mean(entropy / n.clamp_min(2).double().log(), choosing),
        "distance": torch.stack([nothing, nothing, distance], -1),
        "mass_first": mean(to_kinds[..., 0], queries),
        "mass_separator": mean(to_kinds[..., 1], queries),
        "mass_self": mean(pattern.diagonal(dim1=-2, dim2=-1).double(), queries),
    }


def start_sums(layout: TextLayout) -> dict[str, Tensor]:
    """Accumulators: how many texts, their sum and that of squares; and of uniform attention, which has no heads."""
    sums = {"n": zeros(1, dtype=torch.int64)}
    for metric in metrics_of(layout):
        for name, heads in ((metric, layout.heads), (f"{metric}.uniform", 1)):
            shape = (layout.blocks, heads, len(KINDS))
            sums |= {name: zeros(*shape), f"{name}.n": zeros(*shape, dtype=torch.int64)}
        sums[f"{metric}.squared"] = zeros(layout.blocks, layout.heads, len(KINDS))
    return sums


def add_texts(sums: dict[str, Tensor], layout: TextLayout, block: int, pattern: Tensor, batch: Batch) -> None:
    """Add a batch's statistics of a block to the sums."""
    groups = {kind: inside.to(pattern.device) for kind, inside in layout.groups(batch).items()}
    seen = seen_keys(layout, block, torch.stack(list(groups.values())).any(0))
    uniform = (seen.double() / seen.sum(-1, keepdim=True).clamp_min(1))[:, None]  # (B, 1, N, N)
    found, even = (text_statistics(x, seen, groups) for x in (pattern, uniform))
    for metric in metrics_of(layout):
        for name, values in ((metric, found[metric]), (f"{metric}.uniform", even[metric])):
            values = values.cpu()
            there = values.isfinite()
            values = values.where(there, 0.0)
            sums[name][block] += values.sum(0)
            sums[f"{name}.n"][block] += there.sum(0)
            if f"{name}.squared" in sums:
                sums[f"{name}.squared"][block] += values.square().sum(0)


def texts_table(sums: dict[str, Tensor], layout: TextLayout) -> pd.DataFrame:
    """block, head, query, metric, mean, std, uniform, unit, n: as for pictures."""
    frames = []
    for metric in metrics_of(layout):
        n = sums[f"{metric}.n"]
        mean, std = mean_std(n, sums[metric], sums[f"{metric}.squared"])
        uniform = (sums[f"{metric}.uniform"] / sums[f"{metric}.uniform.n"]).expand(mean.shape)
        block, head, kind = (index.flatten() for index in torch.meshgrid(*map(torch.arange, mean.shape), indexing="ij"))
        place = {"block": block.numpy(), "head": head.numpy(), "query": [KINDS[k] for k in kind.tolist()]}
        cells = {name: x.flatten().numpy() for name, x in (("mean", mean), ("std", std), ("uniform", uniform))}
        frames.append(
            pd.DataFrame(place | {"metric": metric} | cells | {"unit": UNITS[metric], "n": n.flatten().numpy()})
        )
    return pd.concat(frames, ignore_index=True)


def looked_at(pattern: Tensor, layout: TextLayout, valid: Tensor) -> list[Tensor]:
    """What the token that sees the whole text looks at, mean over heads: one (n,) per text (B, H, N, N).

    The first token, or in a causal model the last.
    """
    rows = []
    for heads, inside in zip(pattern.float().cpu(), valid.cpu()):
        places = inside.nonzero().flatten()
        rows.append(heads[:, places[-1 if layout.causal else 0]][:, places].mean(0))
    return rows
