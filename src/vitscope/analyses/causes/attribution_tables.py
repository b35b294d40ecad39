"""Tables of an attribution, from sums per image or document: what is drawn and read is computed here, once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from vitscope.models.decomposition import Part
from vitscope.statistics.clusters import means_of_clusters

VALUES = ("mean", "size", "null", "specific")
INTERVALS = tuple(f"{value}_{end}" for value in (*VALUES, "share") for end in ("low", "high"))
GROUPS = {"all": slice(0, 2), "right": slice(1, 2), "wrong": slice(0, 1)}
COUNTS = (1, 2, 3, 5, 10, 20, 50)  # how many heads together
DRAWS = 2000  # sets of random heads


def attribution_tables(n: Tensor, values: Tensor, parts: Sequence[Part], seed: int) -> dict[str, pd.DataFrame]:
    """Counts (D, 2), sums (D, 2, 3, P) of wrong and right answers -> the three tables; none where nothing was seen.

    Fewer than four images, or documents, have no halves to choose the best heads on: no third table.
    """
    if float(n.sum()) == 0:
        return {}
    single = [part._asdict() | {"part": part.name} for part in parts]
    blocks, together = _by_block(parts)
    rows = list(_rows(n, values, single))
    sums = list(_rows(n, torch.einsum("...p,bp->...b", values, together), blocks))
    for group in GROUPS:
        so_far = 0.0
        for row in sums:
            if row["images"] == group:
                so_far += row["mean"]
                row["so_far"] = so_far
    first = ["part", "kind", "block", "head", "images"]
    table = pd.DataFrame(rows)
    found = {
        "causes_attribution": table[[*first, *(c for c in table.columns if c not in first)]],
        "causes_attribution_blocks": pd.DataFrame(sums).drop(columns=["size", "size_low", "size_high"]),  # of parts
    }
    top = _top(n, values, parts, seed)
    return {**found, "causes_attribution_top": pd.DataFrame(top)} if top else found


def _by_block(parts: Sequence[Part]) -> tuple[list[dict[str, Any]], Tensor]:
    """Embedding, attention and MLP of each block with their biases, readout: keys, and which parts belong (rows, P)."""
    kinds = {"head": "attention", "attn_bias": "attention", "mlp_bias": "mlp"}
    kinds |= dict.fromkeys(("norm_bias", "head_bias"), "readout")
    owners = [(part.block, kinds.get(part.kind, part.kind)) for part in parts]
    keys = list(dict.fromkeys(owners))
    together = torch.tensor([[float(owner == key) for owner in owners] for key in keys], dtype=torch.float64)
    return [{"block": block, "kind": kind} for block, kind in keys], together


def _rows(n: Tensor, values: Tensor, keys: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """One row per group of images and part: the four values with their intervals, and the share of the specific."""
    for group, where in GROUPS.items():
        count, total = n[:, where].sum(1), values[:, where].sum(1)  # (D,), (D, 3, P)
        if float(count.sum()) == 0:
            continue
        mean, size, null = total.unbind(1)
        found = {
            name: [part.tolist() for part in means_of_clusters(y, count)]
            for name, y in zip(VALUES, (mean, size, null, mean - null))
        }
        whole = (mean - null).sum(1, keepdim=True).expand_as(mean)
        share = [(100 * part).tolist() for part in means_of_clusters(mean - null, whole)]
        for place, key in enumerate(keys):
            row: dict[str, Any] = {**key, "images": group}
            for name, (value, low, high) in {**found, "share": share}.items():
                row |= {name: value[place], f"{name}_low": low[place], f"{name}_high": high[place]}
            yield row | {"answers": round(float(count.sum())), "n": int((count > 0).sum())}


def _top(n: Tensor, values: Tensor, parts: Sequence[Part], seed: int) -> list[dict[str, Any]]:
    """What the k best heads carry of the specific logit: chosen on one half of the rows, measured on the other."""
    seen = n.sum(1) > 0
    specific = (values[:, :, 0] - values[:, :, 2]).sum(1)[seen]  # (D, P)
    if len(specific) < 4:
        return []
    heads = [place for place, part in enumerate(parts) if part.kind == "head"]
    of_heads, whole = specific[:, heads], specific.sum(1)
    halves = torch.arange(len(specific)) % 2
    generator = torch.Generator().manual_seed(seed)
    orders = torch.rand(DRAWS, len(heads), generator=generator, dtype=torch.float64).argsort(1)
    shares = 100 * of_heads.sum(0) / whole.sum()
    rows = []
    for k in (*(c for c in COUNTS if c < len(heads)), len(heads)):
        carried = torch.empty_like(whole)
        for half in (0, 1):
            best = of_heads[halves != half].sum(0).argsort(descending=True, stable=True)[:k]
            carried[halves == half] = of_heads[halves == half][:, best].sum(1)
        share, low, high = (100 * float(x) for x in means_of_clusters(carried, whole))
        random = shares[orders[:, :k]].sum(1)
        ends = [float(x) for x in random.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64))]
        row = {"heads": k, "share": share, "share_low": low, "share_high": high, "random": float(random.mean())}
        rows.append(row | {"random_low": ends[0], "random_high": ends[1], "n": len(specific)})
    return rows
