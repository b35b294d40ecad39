"""A picture with its maps, block by block, as a notebook shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from markupsafe import Markup
from matplotlib import colormaps
from PIL import Image

from vitscope.errors import VitscopeError
from vitscope.report.figures import DIVERGING, SEQUENTIAL
from vitscope.report.gallery import MAP_COLUMNS, asked_first, map_tables, scale, thumbnail
from vitscope.report.notebook import GREY, png_uri
from vitscope.report.numbers import short
from vitscope.runs import Run

SIDE = 56  # of a map on the screen, in pixels


@dataclass(frozen=True)
class Picture:
    """`Picture(image, {"attention": maps})`: one map per block below each other's name, on one colour scale.

    image: (H, W), (H, W, 3) or (1 or 3, H, W), of whatever range: it is stretched to black and white. Or a file.
    maps: by name, (blocks, rows, columns) each, or {block: (rows, columns)} where they are not of blocks 0, 1, 2, ...
    """

    image: Any
    maps: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""

    def __post_init__(self) -> None:
        for name, blocks in self.maps.items():
            for grid in _by_block(blocks).values():
                if grid.ndim != 2:
                    raise VitscopeError(
                        f"The map {name!r} has the shape {np.shape(blocks)}: expected (blocks, rows, columns)."
                    )

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {len(_by_block(blocks))} blocks" for name, blocks in self.maps.items())
        return f"Picture({self.title or 'untitled'}; {sizes or 'no maps'})"

    def _repr_html_(self) -> str:
        rows = Markup("").join(_row(name, _by_block(blocks)) for name, blocks in self.maps.items())
        picture = Markup('<img alt="the picture" src="{}" width="120" style="image-rendering:pixelated">')
        return str(
            Markup(
                '<div style="display:flex;flex-wrap:wrap;gap:14px;align-items:flex-start"><div>{}<br>'
                "<span>{}</span></div><div>{}</div></div>"
            ).format(picture.format(_pixels(self.image)), self.title, rows)
        )


def picture(run: Run, image: int | None = None) -> Picture:
    """A picture of the run's gallery with all maps that its analyses made of it; the first one without a number."""
    listed = run.table("images")
    numbers = [] if listed is None else asked_first(run, listed)["image"].tolist()
    chosen = numbers[0] if image is None and numbers else image
    if chosen not in numbers:
        known = f"It has {', '.join(map(str, numbers))}." if numbers else "It has none: ask for `gallery=6` or so."
        raise VitscopeError(f"{run!r} keeps no picture {image!r}. {known}")
    assert listed is not None
    record = listed[listed["image"] == chosen].iloc[0]
    maps: dict[str, dict[int, np.ndarray]] = {}
    for table in map_tables(run):
        cells = table.loc[table["image"] == chosen, MAP_COLUMNS]
        for key, part in cells.groupby(["map", "block"], sort=False):
            kind, block = cast("tuple[str, int]", key)
            grid = np.zeros((part["row"].max() + 1, part["col"].max() + 1))
            grid[part["row"], part["col"]] = part["value"]
            maps.setdefault(str(kind), {})[int(block)] = grid
    names = [record.get(column, "") for column in ("class_name", "predicted_name")]
    name, answer = ("" if value != value else str(value) for value in names)  # an empty cell is NaN
    title = f"{name}, taken for {answer}" if answer not in ("", name) else name or f"picture {chosen}"
    return Picture(run.images_dir / f"{chosen}.png", maps, title)


def _by_block(blocks: Any) -> dict[int, np.ndarray]:
    if isinstance(blocks, Mapping):
        return {int(block): _array(grid) for block, grid in blocks.items()}
    return dict(enumerate(_array(grid) for grid in blocks))


def _array(values: Any) -> np.ndarray:
    """Of a tensor that is somewhere else, or asks for gradients, too."""
    return np.asarray(values.detach().cpu().float() if hasattr(values, "detach") else values, dtype=float)


def _row(name: str, blocks: Mapping[int, np.ndarray]) -> Markup:

    low = min(float(grid.min()) for grid in blocks.values())
    low, high = scale((low, max(float(grid.max()) for grid in blocks.values())), low < 0)
    colours = colormaps[DIVERGING if low < 0 else SEQUENTIAL]
    several = len(blocks) > 1
    maps = Markup("").join(
        Markup('<div style="text-align:center"><img alt="{} {}" src="{}"><br><span style="{}">{}</span></div>').format(
            name, block, _tiles(colours((grid - low) / ((high - low) or 1.0))), GREY, block if several else ""
        )
        for block, grid in blocks.items()
    )
    return Markup(
        '<div style="margin:0 0 6px"><span>{}</span> <span style="{}">{} to {}{}</span>'
        '<div style="display:flex;flex-wrap:wrap;gap:4px">{}</div></div>'
    ).format(name, GREY, short(low), short(high), ", by block" if several else "", maps)


def _tiles(colours: np.ndarray) -> str:
    """Cells as squares of several pixels: no front end smooths them."""
    rows, columns = colours.shape[:2]
    image = Image.fromarray((colours[..., :3] * 255).round().astype(np.uint8))
    factor = max(1, round(SIDE / max(rows, columns)))
    return png_uri(image.resize((columns * factor, rows * factor), Image.Resampling.NEAREST).quantize(256))


def _pixels(image: Any) -> str:
    if isinstance(image, str | Path):
        found = thumbnail(Path(image))
        if found is None:
            raise VitscopeError(f"There is no picture {image}, or it cannot be read.")
        return found
    values = _array(image)
    if values.ndim == 3 and values.shape[0] in (1, 3) and values.shape[-1] not in (1, 3):
        values = np.moveaxis(values, 0, -1)
    values = values[..., 0] if values.ndim == 3 and values.shape[-1] == 1 else values
    span = values.max() - values.min()
    return png_uri(Image.fromarray(((values - values.min()) / (span or 1.0) * 255).round().astype(np.uint8)))
