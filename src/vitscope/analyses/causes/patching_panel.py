"""The pictures of `causes.patching`: what restores a decision, and in which block?"""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from vitscope.analyses.causes.ablation_panel import draw_blocks, draw_maps, each_map, heads_by_tokens
from vitscope.report.card import Card, Value
from vitscope.report.lens_drawing import draw_heads
from vitscope.report.numbers import in_brackets, short
from vitscope.report.panel import Finding, Panel, Runs, Tables, register_panel
from vitscope.report.panel_parts import protocol, stacked, tables_of, told

TABLE = "causes_patching"
MORE = tuple(f"{TABLE}_{name}" for name in ("tokens", "paths", "agreement", "pairs"))
READING = (
    "At 1 a part carries the whole decision from one run to the other, at 0 nothing of it; parts add up only if they "
    "do not work through each other."
)
NULL = (
    " What is far above its dotted null carries what tells the two inputs apart, and not merely a change of that size."
)
SHARES = {"denoising": "share that comes back", "noising": "share that is lost"}


@register_panel("causes_patching")
def patching_panel(runs: Runs) -> Panel | None:
    """Per kind of pairs: lines over blocks, heads, and maps of single tokens where they were asked for."""
    tables, more = tables_of(runs, TABLE), {name: tables_of(runs, name) for name in MORE}
    if not tables and not more[MORE[0]]:
        return None
    figures: dict[str, Figure] = {}
    captions: dict[str, str] = {}
    for number, (key, part) in enumerate(_by_pairs(tables, len(runs) > 1).items()):
        stem = f"causes_patching_{number}"
        shown = {
            SHARES[d]: part[(part["direction"] == d) & (part["kind"] == "resid")]
            for d in SHARES
            if ((part["direction"] == d) & (part["kind"] == "resid")).any()
        }
        n = f"{int(part['n_pairs'].max()):,} pairs"
        if shown:
            figures[f"{stem}_tokens"] = draw_blocks(shown, "share", "share of the logit difference", "null_share")
            captions[f"{stem}_tokens"] = (
                f"{key}: the residual stream behind each block is exchanged at some tokens. {n}; bands: 95 % "
                "intervals over images"
                + ("; dotted: a random direction of equal length." if "null_share" in part else ".")
            )
        parts = part[(part["direction"] == part["direction"].iloc[0]) & part["kind"].isin(["attn", "mlp"])]
        if len(parts):
            name = SHARES[str(parts["direction"].iloc[0])]
            figures[f"{stem}_branches"] = draw_blocks({name: parts}, "share", name, "null_share")
            captions[f"{stem}_branches"] = f"{key}: the attention or the MLP of one block is exchanged. {n}."
        heads = heads_by_tokens({key: part[part["direction"] == part["direction"].iloc[0]]})
        if heads:
            name = SHARES[str(part["direction"].iloc[0])]
            figures[f"{stem}_heads"] = draw_heads(heads, "share", name)
            captions[f"{stem}_heads"] = f"{key}: one head is exchanged. {n}."
    single = _by_pairs(more[MORE[0]], len(runs) > 1)
    maps = [(key, what, rows) for key, part in single.items() for what, rows in each_map(part).items()]
    for number, (key, what, part) in enumerate(maps):
        for direction in dict.fromkeys(part["direction"]):
            name, mine = f"causes_patching_map_{number}_{direction}", part[part["direction"] == direction]
            figures[name] = draw_maps(mine, "share", SHARES[str(direction)])
            captions[name] = (
                f"{key}: {SHARES[str(direction)]} when {what} is exchanged at one token, block by block; mean over "
                f"{int(mine['n_pairs'].max()):,} pairs."
            )
    return Panel(
        key="causes_patching",
        lens="Causes",
        title="What restores the decision?",
        figures=figures,
        alt={stem: caption.split(".")[0] for stem, caption in captions.items()},
        captions=captions,
        reading=READING + (NULL if any("null_share" in table for table in tables.values()) else ""),
        tables={n: stacked(t) for n, t in {TABLE: tables, **more}.items() if t},
        protocol=protocol(runs, TABLE if tables else MORE[0], _left_out(more[MORE[3]])),
        findings=told({x: _findings(t, more[MORE[2]].get(x)) for x, t in tables.items()}, len(runs) > 1),
        order=42,
        card=_card(tables),
    )


def _card(tables: Tables) -> Card | None:
    """Of the first kind of pairs that all models have: the attention or MLP that brings most back by itself."""
    common = set.intersection(*(set(t["pairs"]) for t in tables.values())) if tables else set()
    pairs = next((p for t in tables.values() for p in t["pairs"] if p in common), None)
    asked = {label: t[(t["pairs"] == pairs) & (t["direction"] == "denoising")] for label, t in tables.items()}
    parts = {label: t[t["kind"].isin(["attn", "mlp"]) & (t["tokens"] == "all")] for label, t in asked.items()}
    if not parts or any(t.empty for t in parts.values()):
        return None
    best: dict[str, Any] = {label: t.sort_values("share").iloc[-1] for label, t in parts.items()}
    where = {f"the {'MLP' if r['kind'] == 'mlp' else 'attention'} of block {r['block']}" for r in best.values()}
    return Card(
        question="What brings the answer back?",
        values={label: Value.of(row, "share", 100) for label, row in best.items()},
        says=f"of what {pairs} took comes back with the clean output of {' or '.join(sorted(where))}",
        name="what the best part brings back",
        larger=None,
        lines={label: t.groupby("block")["share"].max().tolist() for label, t in parts.items()},
        across="blocks",
        order=27,
    )


def _by_pairs(tables: Tables, several: bool) -> dict[str, pd.DataFrame]:
    """{'pgd@1/255': rows}, with the model in front where there are several."""
    found = {}
    for label, table in tables.items():
        for pairs in dict.fromkeys(table["pairs"]):
            found[f"{label}, {pairs}" if several else str(pairs)] = table[table["pairs"] == pairs]
    return found


def _left_out(counts: Tables) -> str:
    rows = [row for table in counts.values() for row in table.to_dict("records")]
    told = [
        f"{r['pairs']}: {r['used']} of {r['items']} used, {r['clean_wrong']} were wrong when clean, "
        f"{r['agree_already']} agreed already"
        for r in rows
    ]
    return "; ".join(["exchanged place by place", *told])


def _findings(table: pd.DataFrame, agreement: pd.DataFrame | None) -> list[Finding]:
    found: list[Finding] = []
    for pairs in dict.fromkeys(table["pairs"]):
        mine = table[(table["pairs"] == pairs) & (table["direction"] == "denoising")]
        mine = mine[mine["kind"].isin(["attn", "mlp"]) & (mine["tokens"] == "all")]
        for row in mine.sort_values("share").to_dict("records")[-1:]:
            what = f"{'the attention' if row['kind'] == 'attn' else 'the MLP'} of block {row['block']}"
            share = f"{short(100 * float(row['share']))} % of the decision{in_brackets(row, 'share', 100)}"
            text = f"after {pairs}, {what} alone brings back {share}."
            found.append(Finding(text, 0.6))
    heads = agreement[agreement["kind"] == "head"] if agreement is not None else None
    for row in heads.to_dict("records")[:1] if heads is not None else ():
        text = (
            f"attribution patching ranks heads like exact patching with a correlation of "
            f"{short(float(row['rank_correlation']))} per pair ({row['pairs']}, {row['direction']})."
        )
        found.append(Finding(text, 0.4))
    return found
