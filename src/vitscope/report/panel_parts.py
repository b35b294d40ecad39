"""What panels share: the tables of all models, their names, and the protocol line (images, preparation, seed)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from vitscope.report import figures as f
from vitscope.report.panel import Finding, Runs, Tables
from vitscope.report.provenance import data_of
from vitscope.report.sources import owner_of


def tables_of(runs: Runs, name: str) -> dict[str, pd.DataFrame]:
    """{label: table} of the runs that have it and in which it is not empty."""
    found = {label: run.table(name) for label, run in runs.items()}
    return {label: table for label, table in found.items() if table is not None and len(table)}


def stacked(tables: Tables) -> pd.DataFrame:
    """One table of all models, with the model in the first column where there are several."""
    if len(tables) == 1:
        return next(iter(tables.values()))
    return pd.concat([t.assign(model=label)[["model", *t.columns]] for label, t in tables.items()], ignore_index=True)


def told(found: Mapping[str, Iterable[Finding]], several: bool) -> list[Finding]:
    """The findings of each model; where there are several, each begins with its model's name."""
    return [replace(x, text=f"{label}: {x.text}") if several else x for label, each in found.items() for x in each]


def counts(tables: Tables, column: str = "n") -> str:
    """The largest number of a column in each model's table: '1,000', or '192 and 1,000'."""
    return " and ".join(f"{count:,}" for count in sorted({int(table[column].max()) for table in tables.values()}))


def blocks_of(tables: Tables) -> int:
    """How many blocks the deepest model has."""
    return max(int(table["block"].max()) for table in tables.values()) + 1


def name_models(fig: Figure, labels: list[str], drawn: Iterable[str]) -> None:
    """Several models: one line under the figure says which is which. Styles follow `labels`, all models of the page."""
    if len(labels) < 2:
        return
    styles, drawn = f.model_styles(labels), [label for label in labels if label in set(drawn)]
    handles = [
        Line2D([], [], color=style.colour, marker=style.marker, linestyle=style.dash)  # type: ignore[arg-type]
        for style in map(styles.__getitem__, drawn)
    ]
    names = [f.ellipsis(label, 34) for label in drawn]
    fig.legend(handles, names, loc="outside lower center", ncols=min(len(drawn), 2 if len(drawn) == 4 else 3))


def protocol(runs: Runs, table: str, variant: str) -> str:
    """'variant · data (split), preprocessing of X, batch size 64, seed 0'; per model where they differ."""
    lines = {}
    for label, run in runs.items():
        owner = owner_of(run, table)
        config = owner.config
        preprocess = config.get("preprocess") or {}
        parts = [data_of(owner), _prepared(preprocess)]
        parts += [f"{key.replace('_', ' ')} {config[key]}" for key in ("batch_size", "seed") if key in config]
        lines[label] = ", ".join(parts)
    if len(set(lines.values())) == 1:
        return f"{variant} · {next(iter(lines.values()))}"
    return " · ".join([variant, *(f"{label}: {line}" for label, line in lines.items())])


def asked(runs: Runs, table: str, analysis: str, words: Callable[[Mapping[str, Any]], str]) -> str:
    """What `words` says of the options that an analysis had, once where the runs agree."""
    options = [owner_of(run, table).config.get("analyses", {}).get(analysis, {}) for run in runs.values()]
    return " and ".join(sorted(set(map(words, options))))


def _prepared(preprocess: Mapping[str, Any]) -> str:
    source = preprocess.get("source") or "of the run"
    if "tokenizer" in preprocess:
        return f"{source}, at most {preprocess.get('length', '?')} tokens"
    size = "x".join(map(str, (preprocess.get("input_size") or ["?", "?", "?"])[1:]))
    return f"preprocessing {source} at {size} px"
