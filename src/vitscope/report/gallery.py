"""The gallery: pick an image, see the same grid of maps for every block of every model.

Maps come from tables `maps_<name>` (columns image, map, block, row, col, value), images from the table `images`
(image, path, label, class_name, prediction) and RUN/images/<image>.png. A map travels as one byte per cell between the
smallest and the largest value of its row, so that blocks can be compared by colour.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from vitscope.runs import Run

LARGEST_THUMBNAIL = 12_000  # bytes; a larger picture goes into the page as JPEG
THUMBNAIL_SIDE = 224  # pixels
MAP_COLUMNS = ["image", "map", "block", "row", "col", "value"]


def gallery_data(runs: Mapping[str, Run], limit: int = 12) -> dict[str, Any] | None:
    """What page.js draws: {'images': [...], 'rows': [...]}, or None where no run has images.

    Models that saw the same image (the same number and path) share it.
    """
    images: dict[tuple[int, str], dict[str, Any]] = {}
    rows: list[dict[str, Any]] = []
    for label, run in runs.items():
        listed = run.table("images")
        if listed is None or not len(listed):
            continue
        keys = {}
        for record in listed.to_dict("records"):
            key = (int(record["image"]), str(record.get("path", "")))
            if key not in images:
                picture = _thumbnail(run.images_dir / f"{key[0]}.png") if len(images) < limit else None
                if picture is None:
                    continue
                images[key] = {"src": picture, "path": key[1], "class": _text(record, "class_name"), "predicted": {}}
            keys[key[0]] = list(images).index(key)
            if predicted := _text(record, "prediction"):
                images[key]["predicted"][label] = predicted
        rows += _map_rows(run, label if len(runs) > 1 else "", keys)
    return {"images": list(images.values()), "rows": rows} if images else None


def _map_rows(run: Run, label: str, keys: Mapping[int, int]) -> list[dict[str, Any]]:
    rows = []
    for name in run.list_tables():
        table = run.table(name) if name.startswith("maps_") else None
        if table is None or not set(MAP_COLUMNS) <= set(table.columns):
            continue
        table = table[table["image"].isin(list(keys))]
        for kind, maps in table.groupby("map", sort=False):
            shown = {
                keys[image]: encode_maps(maps[maps["image"] == image]) for image in maps["image"].unique().tolist()
            }
            if shown:
                signed = bool(maps["value"].min() < 0)
                rows.append({"model": label, "map": str(kind), "signed": signed, "images": shown})
    return rows


def encode_maps(cells: pd.DataFrame) -> dict[str, Any]:
    """All blocks' maps of one image: size, range, and one base64 string of bytes per block.

    0..255 spans [low, high]; signed maps span [-m, m], so that the middle of the colour scale is zero.
    """
    height, width = int(cells["row"].max()) + 1, int(cells["col"].max()) + 1
    low, high = float(cells["value"].min()), float(cells["value"].max())
    if low < 0:
        high = max(-low, high)
        low = -high
    blocks = {}
    for block in sorted(cells["block"].unique().tolist()):
        part = cells[cells["block"] == block]
        grid = np.full((height, width), low)
        grid[part["row"].to_numpy(), part["col"].to_numpy()] = part["value"].to_numpy()
        scaled = (grid - low) / (high - low) if high > low else np.zeros_like(grid)
        blocks[int(block)] = base64.b64encode(np.rint(scaled * 255).astype(np.uint8).tobytes()).decode()
    return {"h": height, "w": width, "low": low, "high": high, "blocks": blocks}


def colour_tables() -> dict[str, str]:
    """256 RGB colours of each scale as base64, for the page's canvas."""
    from matplotlib import colormaps

    from vitscope.report.figures import DIVERGING, SEQUENTIAL

    def table(name: str) -> str:
        rgb = (colormaps[name](np.arange(256))[:, :3] * 255).round().astype(np.uint8)
        return base64.b64encode(rgb.tobytes()).decode()

    return {"sequential": table(SEQUENTIAL), "diverging": table(DIVERGING)}


def _thumbnail(path: Path) -> str | None:
    """A picture as data URI; None where it is absent or broken."""
    from PIL import Image

    try:
        data = path.read_bytes()
        if len(data) <= LARGEST_THUMBNAIL:
            Image.open(io.BytesIO(data)).verify()
            return "data:image/png;base64," + base64.b64encode(data).decode()
        image = Image.open(io.BytesIO(data)).convert("RGB")
    except (OSError, SyntaxError):  # Pillow raises SyntaxError for a broken PNG
        return None
    image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG", quality=82, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def _text(record: Mapping[Any, Any], key: str) -> str:
    value = record.get(key, "")
    return "" if value != value or value is None else str(value)
