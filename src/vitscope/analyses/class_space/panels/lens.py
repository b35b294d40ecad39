"""What do the tokens of single images say? Maps over the picture, and the top classes of the class token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from PIL import Image

from vitscope.analyses.class_space.panels.identifiability import variant_text
from vitscope.report import figures as f
from vitscope.report.gallery import asked_first
from vitscope.report.panel import Panel, Runs, Tables, register_panel
from vitscope.report.panel_parts import protocol, stacked, tables_of
from vitscope.runs import Run

MAPS, TOPK = "maps_class_space", "class_space_topk"
MAP = "identifiability of the class"
ROWS, COLUMNS = 4, 8  # pictures of the figure
HEIGHT = 96  # pixels of a picture in it
COVER = 0.6  # how much of a picture its map covers


@dataclass(frozen=True)
class Row:
    """One image seen by one model."""

    model: str
    image: int
    name: str  # of its class
    picture: np.ndarray  # (h, w) grey values in 0..1: colour is the map's
    cells: pd.DataFrame  # its map in every block


@register_panel("class_space_lens")
def lens_panel(runs: Runs) -> Panel | None:
    """Identifiability over a few images, and the top classes of their class token, block by block."""
    maps, tops = tables_of(runs, MAPS), tables_of(runs, TOPK)
    if not maps and not tops:
        return None
    rows = choose_rows(runs, maps)
    said = {label: class_token(runs[label], table) for label, table in tops.items()}
    said = {label: table for label, table in said.items() if len(table)}
    key = "class_space_maps"
    return Panel(
        key="class_space_lens",
        lens="Class space",
        title="What do the tokens of single images say?",
        figures={key: draw_maps(rows, said, len(runs) > 1)} if rows else {},
        alt={key: "Identifiability of the true class over a few images, block by block"},
        captions={
            key: "Identifiability r of the true class, token by token, over the picture; bright: the class is on top. "
            "A row per image, named by its class, and a column per block. Below: the class token's top class, bold "
            "where it is the true one."
        },
        reading=(
            "Follow a row from left to right: tokens light up where they know the class. The table has the top classes "
            "of the class token in every block; those of all tokens are in the CSV file, all maps in the gallery."
        ),
        tables={TOPK: stacked(said)} if said else {},
        protocol=protocol(runs, MAPS if maps else TOPK, variant_text(runs, "class_space.lens")),
        order=21,
    )


def class_token(run: Run, topk: pd.DataFrame) -> pd.DataFrame:
    """A row per image and block: the true class, and the class token's top classes beside each other."""
    part = topk[topk["kind"] == "class"]
    if not len(part):
        return part
    wide = part.pivot(index=["image", "block"], columns="place", values="class_name")
    wide = wide.rename(columns=lambda place: f"top_{place}").rename_axis(columns=None).reset_index()
    images = run.table("images")
    names = dict(zip(images["image"], images["class_name"])) if images is not None else {}
    wide.insert(1, "true_class", [str(names.get(image, "")) for image in wide["image"]])
    return wide


def choose_rows(runs: Runs, maps: Tables) -> list[Row]:
    """At most ROWS of all models together; images that were asked for by number first."""
    found: list[Row] = []
    for label, table in list(maps.items())[:ROWS]:
        run, cells = runs[label], table[table["map"] == MAP]
        images, mine = run.table("images"), 0
        for record in asked_first(run, images).to_dict("records") if images is not None else []:
            part = cells[cells["image"] == record["image"]]
            picture = _picture(run, int(record["image"]))
            if picture is not None and len(part) and mine < max(1, ROWS // len(maps)):
                found.append(Row(label, int(record["image"]), str(record["class_name"]), picture, part))
                mine += 1
    return found


def _picture(run: Run, number: int) -> np.ndarray | None:
    """None where it is absent or broken."""
    try:
        with Image.open(run.images_dir / f"{number}.png") as image:
            width = max(1, round(HEIGHT * image.width / image.height))
            return np.asarray(image.convert("L").resize((width, HEIGHT)), dtype=float) / 255
    except (OSError, SyntaxError):  # Pillow raises SyntaxError for a broken PNG
        return None


def covered(picture: np.ndarray, cells: pd.DataFrame) -> np.ndarray:
    """A grey picture (h, w) under the colours of one block's map: (h, w, 3) in 0..1."""
    grid = np.zeros((int(cells["row"].max()) + 1, int(cells["col"].max()) + 1))
    grid[cells["row"].to_numpy(), cells["col"].to_numpy()] = cells["value"].to_numpy()
    h, w = picture.shape
    over = grid[np.arange(h) * grid.shape[0] // h][:, np.arange(w) * grid.shape[1] // w]  # (h, w)
    return COVER * colormaps[f.SEQUENTIAL](over)[..., :3] + (1 - COVER) * picture[..., None]


def shown_blocks(cells: pd.DataFrame) -> list[int]:
    """At most COLUMNS blocks, evenly spaced, first and last included."""
    last = int(cells["block"].max())
    return np.linspace(0, last, min(last + 1, COLUMNS)).round().astype(int).tolist()


def draw_maps(rows: Sequence[Row], said: Tables, several: bool) -> Figure:
    """A row per image, a column per block of its model."""
    columns = max(len(shown_blocks(row.cells)) for row in rows)
    side = min(1.3, 0.86 * f.PAGE / columns)
    height = 0.35 + (side + 0.22) * len(rows)
    fig, axes = f.new_figure(height=height, rows=len(rows), columns=columns, share_x=False, share_y=False)
    for ax in axes:
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
        ax.grid(False)
    for i, row in enumerate(rows):
        tops, new = said.get(row.model), i == 0 or rows[i - 1].model != row.model
        for ax, block in zip(axes[i * columns :], shown_blocks(row.cells)):
            ax.imshow(covered(row.picture, row.cells[row.cells["block"] == block]), interpolation="none")
            if new:
                ax.set_title(f"block {block}", fontsize=8, fontweight="normal", loc="center")
            if tops is not None:
                top = tops[(tops["image"] == row.image) & (tops["block"] == block)]["top_1"]
                right = "bold" if len(top) and top.iloc[0] == row.name else "normal"
                ax.set_xlabel(f.ellipsis("".join(top), 12), fontsize=7, fontweight=right, labelpad=2)
        label, name = axes[i * columns].yaxis.label, f.ellipsis(row.name, 14)
        label.set(text=f"{f.ellipsis(row.model, 14)}\n{name}" if several else name, fontsize=7)
        if len(label.get_text()) < 4:  # a 9 that lies on its side is no 9
            label.set(rotation=0, ha="right", va="center", fontsize=9)
    scale = ScalarMappable(cmap=f.SEQUENTIAL)
    scale.set_clim(0, 1)
    bar = fig.colorbar(scale, ax=axes, pad=0.01, aspect=15 * len(rows), fraction=0.03)
    bar.outline.set_visible(False)
    return fig
