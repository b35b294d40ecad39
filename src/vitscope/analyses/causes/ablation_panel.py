"""The pictures of `causes.ablation`: which parts does the right answer rest on?"""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from vitscope.report import figures as f
from vitscope.report.card import Card, Value
from vitscope.report.lens_drawing import draw_heads
from vitscope.report.numbers import in_brackets, short
from vitscope.report.panel import Finding, Panel, Runs, Tables, register_panel
from vitscope.report.panel_parts import counts, protocol, stacked, tables_of, told

TABLE, MORE = "causes_ablation", tuple(f"causes_ablation_{name}" for name in ("together", "tokens", "agreement"))
BRANCHES = {"attn": "attention", "mlp": "MLP"}
WHAT = {"resid": "the residual stream behind a block", "attn": "the attention of a block", "mlp": "the MLP of a block"}
CHANGE = "change of the true logit"


@register_panel("causes_ablation")
def ablation_panel(runs: Runs) -> Panel | None:
    """A heat map of heads; lines over blocks for attention, MLP and the residual stream at groups of tokens."""
    tables = tables_of(runs, TABLE)
    together, tokens, agreement = (tables_of(runs, name) for name in MORE)
    shown = tables or tokens
    if not shown:
        return None
    figures: dict[str, Figure] = {}
    captions, alt = {}, {}
    heads = heads_by_tokens(tables)
    said = f"Change of the true class's logit when a part is set to {_methods(shown)}"
    if heads:
        figures["causes_ablation_heads"] = draw_heads(heads, "logit_change", CHANGE)
        captions["causes_ablation_heads"] = f"{said}: head by head. {_sizes(tables)}; intervals are in the table."
        alt["causes_ablation_heads"] = "Change of the true logit for each head that is switched off"
    for kinds, name, what in (
        (("attn", "mlp"), "causes_ablation_branches", "the attention or the MLP of a block"),
        (("resid",), "causes_ablation_tokens", "the residual stream behind a block, at some tokens"),
    ):
        chosen = {label: t[t["kind"].isin(kinds)] for label, t in tables.items() if t["kind"].isin(kinds).any()}
        if chosen:
            figures[name] = draw_blocks(chosen, "logit_change", CHANGE)
            captions[name] = f"{said}: {what}. {_sizes(tables)}; bands: 95 % intervals over images, paired."
            alt[name] = f"Change of the true logit, block by block: {what}"
    maps = [(label, what, table) for label, t in tokens.items() for what, table in each_map(t).items()]
    for number, (label, what, table) in enumerate(maps):
        name, who = f"causes_ablation_map_{number}", f"{label}: " if len(runs) > 1 else ""
        figures[name] = draw_maps(table, "logit_change", CHANGE)
        captions[name] = f"{who}{said}: {what}, at one token. Mean over {_sizes({label: table})}."
        alt[name] = f"{who}Change of the true logit for each token that is switched off, a picture per block"
    return Panel(
        key="causes_ablation",
        lens="Causes",
        title="Which parts does the right answer rest on?",
        figures=figures,
        alt=alt,
        captions=captions,
        reading=(
            "Below zero the right answer needed what was switched off; near zero it is not missed, perhaps because "
            "others say the same. Zeros are unlike anything that later blocks have seen: the mean over the data is the "
            "gentler question."
        ),
        tables={n: stacked(t) for n, t in zip((TABLE, *MORE), (tables, together, tokens, agreement)) if t},
        protocol=protocol(
            runs, TABLE if tables else MORE[1], f"set to {_methods(shown)}; same images before and after"
        ),
        findings=told(
            {label: _findings(t, together.get(label), agreement.get(label)) for label, t in tables.items()},
            len(runs) > 1,
        ),
        order=41,
        card=_card(tables),
    )


def _card(tables: Tables) -> Card | None:
    """The part that is missed most: a head where heads were switched off, else an attention or an MLP."""
    kinds = set.intersection(*(set(t["kind"]) for t in tables.values())) if tables else set()
    if not (asked := [kind for kind in ("head", "attn", "mlp", "resid") if kind in kinds]):
        return None
    parts = {label: t[t["kind"] == asked[0]] for label, t in tables.items()}
    if all((t["tokens"] == "all").any() for t in parts.values()):
        parts = {label: t[t["tokens"] == "all"] for label, t in parts.items()}
    worst: dict[str, Any] = {label: t.sort_values("logit_change").iloc[0] for label, t in parts.items()}
    part = {"head": "head", "attn": "attention", "mlp": "MLP", "resid": "token group"}[asked[0]]
    where = {f"block {row['block']}" for row in worst.values()}
    return Card(
        question="Which part is needed most?",
        values={label: Value.of(row, "logit_change", unit="") for label, row in worst.items()},
        says=f"on the true class's logit (its score) without the {part} missed most, in {' or '.join(sorted(where))}",
        name=f"logit without the {part} missed most",
        larger=None,
        lines={label: t.groupby("block")["logit_change"].min().tolist() for label, t in parts.items()},
        across="blocks",
        order=26,
    )


def draw_blocks(tables: Tables, value: str, name: str, null: str = "") -> Figure:
    """A line per kind, or per group of tokens, over blocks; a column per table. `null`: drawn dashed, if given."""
    fig, axes = f.new_figure(height=2.7, columns=len(tables))
    for ax, (label, table) in zip(axes, tables.items()):
        names = [*dict.fromkeys(zip(table["kind"], table["tokens"]))]
        styles = f.model_styles([f"{kind} {tokens}" for kind, tokens in names])
        for kind, tokens in names:
            part = table[(table["kind"] == kind) & (table["tokens"] == tokens)].sort_values("block")
            style = styles[f"{kind} {tokens}"]
            ends = {end: part[f"{value}_{end}"].to_numpy() for end in ("low", "high")}
            told = ", ".join(filter(None, (BRANCHES.get(kind), tokens if kind == "resid" or tokens != "all" else "")))
            f.line_per_block(ax, part["block"], part[value], style=style, label=told, **ends)
            if null and null in part:
                ax.plot(part["block"], part[null], color=style.colour, linewidth=0.8, linestyle=":")
        ax.axhline(0, color=f.MUTED, linewidth=0.8)
        f.block_axis(ax, 1 + int(table["block"].max()))
        f.label_axes(ax, y=name, title=f.ellipsis(label, 40) if len(tables) > 1 else "")
        f.direct_labels(ax)
    return fig


def heads_by_tokens(tables: Tables) -> dict[str, pd.DataFrame]:
    """Rows of heads, by model; where they were taken apart by groups of tokens, by model and group."""
    found = {}
    for label, table in tables.items():
        heads = table[table["kind"] == "head"]
        for tokens in dict.fromkeys(heads["tokens"]):
            found[label if tokens == "all" else f"{label}, {tokens}"] = heads[heads["tokens"] == tokens]
    return found


def each_map(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Rows of single tokens, by what was changed there: the stream, a branch, or one head over all blocks."""
    found = {WHAT[kind]: table[table["kind"] == kind] for kind in dict.fromkeys(table["kind"]) if kind in WHAT}
    heads = {int(head) for head in table["head"].dropna()}
    return found | {f"head {head} of a block": table[table["head"] == head] for head in sorted(heads)}


def draw_maps(table: pd.DataFrame, value: str, name: str) -> Figure:
    """One picture of the grid per block, one symmetric scale; in its title the first token where that is no patch."""
    blocks = sorted(table["block"].unique())
    fig, axes = f.small_multiples(len(blocks), columns=6 if len(blocks) > 4 else 4, row_height=1.5)
    inside = table["row"].notna()
    largest = float(table.loc[inside, value].abs().max()) or 1.0
    for ax, block in zip(axes, blocks):
        here = table["block"] == block
        grid = table[here & inside].pivot(index="row", columns="column", values=value).to_numpy()
        mesh = f.heat_map(fig, ax, grid, low=-largest, high=largest, cmap=f.DIVERGING, colour_bar=False)
        first = table[here & ~inside].sort_values("token")[value]
        ax.set_title(
            f"block {block}" + (f"\nfirst token {short(float(first.iloc[0]))}" if len(first) else ""), fontsize=7
        )
        ax.set_aspect("equal")
        ax.set_xticks([])
        ax.set_yticks([])
    bar = fig.colorbar(mesh, ax=axes, shrink=0.7, pad=0.02, aspect=25)
    bar.outline.set_visible(False)
    bar.set_label(name, fontsize=8, color=f.MUTED)
    return fig


def _methods(tables: Tables) -> str:
    names = {"zero": "zero", "mean": "its mean over the data"}
    found = dict.fromkeys(str(m) for table in tables.values() for m in table["method"])
    return " or ".join(names.get(method, method) for method in found)


def _sizes(tables: Tables) -> str:
    return f"{counts(tables, 'n_images')} images"


def _findings(table: pd.DataFrame, together: pd.DataFrame | None, agreement: pd.DataFrame | None) -> list[Finding]:
    found: list[Finding] = []
    heads = table[(table["kind"] == "head") & (table["tokens"] == "all")].sort_values("logit_change")
    for row in heads.to_dict("records")[:1]:
        text = (
            f"the most needed head is head {round(row['head'])} of block {row['block']}: without it the logit of "
            f"the true class changes by {short(float(row['logit_change']))}{in_brackets(row, 'logit_change')}, the "
            f"median head by {short(float(heads['logit_change'].median()))}."
        )
        found.append(Finding(text, 0.6))
    heard = [] if agreement is None else agreement[agreement["kind"] == "head"].to_dict("records")
    for row in heard:
        text = (
            f"what heads write for the true class (attribution) and what their loss costs (ablation) rank them "
            f"with a correlation of {short(float(row['of_means']))}{in_brackets(row, 'of_means')}; 1 is the same order."
        )
        found.append(Finding(text, 0.45))
    if together is None:
        return found
    for row in together[together["drawn"] == "asked"].to_dict("records"):
        null = together[(together["set"] == row["set"]) & (together["drawn"] != "asked")]["accuracy_change"]
        beside = f"; {len(null)} random sets: {short(float(null.mean()))} points" if len(null) else ""
        text = f"without {row['set']} accuracy changes by {short(float(row['accuracy_change']))} points{beside}."
        found.append(Finding(text, 0.55))
    return found
