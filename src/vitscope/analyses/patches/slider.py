"""A few pictures, what is in them, and a slider through the blocks: what each patch is taken for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from vitscope.report.class_colours import class_colours, class_legend, label_image
from vitscope.report.gallery import thumbnail
from vitscope.report.panel import Runs, Tables
from vitscope.report.slider import slider

TABLE = "patches_maps"
PICTURES = 6
_CELL = "width:100%;aspect-ratio:{};image-rendering:pixelated;border-radius:3px;display:block"


def block_slider(runs: Runs, tables: Tables, names: Mapping[int, str]) -> Markup:
    """Pictures and truth in two rows; below them, per model, the reading of the block that the slider stands at."""
    columns = _columns(runs, tables)
    if not columns:
        return Markup("")
    colours = class_colours(max(max(names, default=0), *(int(t["class"].max()) for t in tables.values())) + 1)
    first = next(iter(tables))
    pictures = [Markup('<img src="{}" alt="picture {}" style="{}">').format(p, i, _style(tables[first], i))
                for i, p in columns.items()]  # fmt: skip
    truth = [_map(tables[first], i, -1, "truth", colours) for i in columns]
    fixed = _grid([("picture", pictures), ("truth", truth)], len(columns))
    blocks = sorted({int(b) for table in tables.values() for b in table["block"].unique()})
    frames = []
    for block in blocks:
        readings = [(label, [_reading(table, i, block, colours) for i in columns]) for label, table in tables.items()]
        frames.append(_grid([(label if len(tables) > 1 else "reading", row) for label, row in readings], len(columns)))
    seen = {int(c) for t in tables.values() for key in ("class", "truth") for c in t[key].unique() if c >= 0}
    legend = class_legend({c: names.get(c, str(c)) for c in seen}, colours)
    labels = ["embedding" if block < 0 else block for block in blocks]
    fixed = Markup('<div style="margin:1rem calc(.9rem + 1px) 0">{}</div>').format(fixed)  # as wide as in the slider
    return Markup("{}{}{}").format(fixed, slider("patches", "block", labels, frames), legend)


def _columns(runs: Runs, tables: Tables) -> dict[int, str]:
    """{number of an image: its picture} of those that all models were shown."""
    kept = set.intersection(*({int(i) for i in table["image"].unique()} for table in tables.values()))
    run = runs[next(iter(tables))]
    found = {i: thumbnail(run.images_dir / f"{i}.png") for i in sorted(kept)}
    return dict([(i, picture) for i, picture in found.items() if picture][:PICTURES])


def _grid(rows: list[tuple[str, list[Markup]]], columns: int) -> Markup:
    """Named rows of cells, aligned with those of every other grid of as many columns."""
    cells = [
        Markup('<span style="align-self:center;font-size:.875rem;overflow-wrap:anywhere">{}</span>{}').format(
            name, Markup("").join(row)
        )
        for name, row in rows
    ]
    style = f"display:grid;grid-template-columns:6rem repeat({columns},minmax(40px,120px));gap:.45rem;overflow-x:auto"
    return Markup('<div class="label-maps" style="{}">{}</div>').format(style, Markup("").join(cells))


def _cells(table: pd.DataFrame, image: int, block: int) -> pd.DataFrame:
    return table[(table["image"] == image) & (table["block"] == block)]


def _as_map(cells: pd.DataFrame, column: str) -> np.ndarray:
    grid = np.full((int(cells["row"].max()) + 1, int(cells["col"].max()) + 1), -1)
    grid[cells["row"], cells["col"]] = cells[column]
    return grid


def _style(table: pd.DataFrame, image: int) -> str:
    cells = _cells(table, image, -1)
    return _CELL.format(f"{int(cells['col'].max()) + 1}/{int(cells['row'].max()) + 1}")


def _map(table: pd.DataFrame, image: int, block: int, column: str, colours: list[str]) -> Markup:
    uri = label_image(_as_map(_cells(table, image, block), column), colours)
    what = "true classes" if column == "truth" else f"reading at block {block}"
    return Markup('<img src="{}" alt="{} of picture {}" style="{}">').format(uri, what, image, _style(table, image))


def _reading(table: pd.DataFrame, image: int, block: int, colours: list[str]) -> Markup:
    """The map, and how much of it is right."""
    cells: Any = _cells(table, image, block)
    if not len(cells):  # a model with fewer blocks
        return Markup("<span></span>")
    known = cells[cells["truth"] >= 0]
    right = f"{100 * float((known['class'] == known['truth']).mean()):.0f} %" if len(known) else ""
    text = Markup('<span style="font-size:.8125rem;color:var(--muted)">{}</span>').format(right)
    return Markup("<span>{}{}</span>").format(_map(table, image, block, "class", colours), text)
