"""The gallery: pick an image, see the same grid of maps for every block of every model.

Maps come from tables `maps_<name>` (columns image, map, block, row, col, value), images from the table `images`
(image, path, label, class_name, prediction, predicted_name) and RUN/images/<image>.png. A map travels as one byte per
cell. All blocks and models share the colour scale of an image's map, so that a colour means the same in all of them.
A column `value_control` holds the map of the same model with random weights, which is a row of its own.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from PIL import Image

from vitscope.report.figures import DIVERGING, SEQUENTIAL
from vitscope.report.panel import Runs
from vitscope.runs import Run

LARGEST_THUMBNAIL = 12_000  # bytes; a larger picture goes into the page as JPEG
THUMBNAIL_SIDE = 224  # pixels
MAP_COLUMNS = ["image", "map", "block", "row", "col", "value"]
CONTROL = "value_control"
# what the maps mean, for a reader who does not know the papers; others are named by their analysis alone
WHY = {
    "attention": "How much is taken from each patch, mean over heads: where the model looks.",
    "identifiability of the class": "Where the true class stands among all when the model's own head reads each patch: "
    "1 is on top, about 0.5 is chance.",
    "logit of the class": "How strongly each patch speaks for the true class. A logit is a score before it becomes a "
    "probability.",
    "probability of the patch's class": "How sure the model's head is of each patch's own class.",
    "attention of the first token": "How much the first token takes from each patch, mean over heads.",
    "identifiability": "Where the chosen class stands among all at each patch: 1 is on top, about 0.5 is chance.",
    "class logit": "How strongly each patch speaks for the chosen class. A logit is a score before it becomes a "
    "probability.",
    "norm": "The length of each patch's vector: how much has been written there.",
}
LENS = "class_space.lens"  # whose option `images` asks for images by number


def gallery_data(runs: Runs, limit: int = 12) -> dict[str, Any] | None:
    """What gallery.js draws: {'images': [...], 'rows': [...]}, or None where no run has images.

    Models that saw the same image (the same path, or number where there is none) share it.
    """
    images: dict[str, dict[str, Any]] = {}
    maps: list[tuple[str, str, dict[int, pd.DataFrame]]] = []  # model, kind of map, {place in images: cells}
    for label, run in runs.items():
        listed = run.table("images")
        if listed is None or not len(listed) or run.table("texts") is not None:  # texts: see sentences.py
            continue
        places = {}
        each = "one per pixel" if (run.config.get("task") or {}).get("name") == "segmentation" else ""
        for record in asked_first(run, listed).to_dict("records"):
            number, path = int(record["image"]), str(record.get("path", ""))
            key = path or str(number)
            if key not in images:
                picture = thumbnail(run.images_dir / f"{number}.png") if len(images) < limit else None
                if picture is None:
                    continue
                name = _text(record, "class_name") or _number(record, "label") or each
                images[key] = {"src": picture, "path": path, "class": name, "predicted": {}}
            places[number] = list(images).index(key)
            if predicted := _text(record, "predicted_name") or _number(record, "prediction"):
                images[key]["predicted"][label] = predicted
        maps += [(label if len(runs) > 1 else "", kind, cells) for kind, cells in _maps(run, places)]
    if not images:
        return None
    return {"images": list(images.values()), "rows": _rows(maps)}


def map_tables(run: Run) -> Iterator[pd.DataFrame]:
    """The tables `maps_<name>` of a run."""
    for name in run.list_tables():
        table = run.table(name) if name.startswith("maps_") else None
        if table is None or not set(MAP_COLUMNS) <= set(table.columns):
            continue
        yield table


def _maps(run: Run, places: Mapping[int, int]) -> list[tuple[str, dict[int, pd.DataFrame]]]:
    """(kind of map, {place of the image: its cells}) of one run."""
    found = []
    for table in map_tables(run):
        for kind in table["map"].unique().tolist():
            of_kind = table[table["map"] == kind]
            shown = [image for image in of_kind["image"].unique().tolist() if image in places]
            if shown:
                cells = {places[image]: of_kind[of_kind["image"] == image] for image in shown}
                found.append((str(kind), cells))
                if CONTROL in table.columns:
                    control = {place: part.assign(value=part[CONTROL]) for place, part in cells.items()}
                    found.append((f"{kind} (random weights)", control))
    return found


def asked_first(run: Run, images: pd.DataFrame) -> pd.DataFrame:
    """Images that were chosen by number are there to be looked at: they come before those that stand for all."""
    analyses = run.config.get("analyses")
    lens = (analyses.get(LENS) if isinstance(analyses, Mapping) else None) or {}
    asked = images["image"].isin(lens.get("images") or [])
    return images.assign(later=~asked).sort_values("later", kind="stable").drop(columns="later")


def _rows(maps: list[tuple[str, str, dict[int, pd.DataFrame]]]) -> list[dict[str, Any]]:
    ranges: dict[tuple[str, int], tuple[float, float]] = {}
    for _, kind, images in maps:
        for place, cells in images.items():
            low, high = ranges.get((kind, place), (0.0, 0.0))
            ranges[kind, place] = min(low, float(cells["value"].min())), max(high, float(cells["value"].max()))
    signed = {kind: any(low < 0 for (k, _), (low, _) in ranges.items() if k == kind) for _, kind, _ in maps}
    return [
        {
            "model": model,
            "map": kind,
            "why": WHY.get(kind, "") if kind not in [k for _, k, _ in maps[:i]] else "",  # once for all models
            "signed": signed[kind],
            "images": {p: encode_maps(c, *scale(ranges[kind, p], signed[kind])) for p, c in images.items()},
        }
        for i, (model, kind, images) in enumerate(maps)
    ]


def scale(span: tuple[float, float], signed: bool) -> tuple[float, float]:
    """The ends of the colour scale: zero to the largest; for signed maps symmetric, so that its middle is zero."""
    low, high = span
    largest = max(-low, high)
    return (-largest, largest) if signed else (0.0, high)


def encode_maps(cells: pd.DataFrame, low: float, high: float) -> dict[str, Any]:
    """All blocks' maps of one image: size, range, and one base64 string per block; bytes 0..255 span [low, high]."""
    height, width = int(cells["row"].max()) + 1, int(cells["col"].max()) + 1
    blocks = {}
    for block in sorted(cells["block"].unique().tolist()):
        part = cells[cells["block"] == block]
        grid = np.full((height, width), low)
        grid[part["row"].to_numpy(), part["col"].to_numpy()] = part["value"].to_numpy()
        level = (grid - low) / (high - low) if high > low else np.zeros_like(grid)
        blocks[int(block)] = base64.b64encode(np.rint(level * 255).astype(np.uint8).tobytes()).decode()
    return {"h": height, "w": width, "low": low, "high": high, "blocks": blocks}


def colour_tables() -> dict[str, str]:
    """256 RGB colours of each scale as base64, for the page's canvas."""

    def table(name: str) -> str:
        rgb = (colormaps[name](np.arange(256))[:, :3] * 255).round().astype(np.uint8)
        return base64.b64encode(rgb.tobytes()).decode()

    return {"sequential": table(SEQUENTIAL), "diverging": table(DIVERGING)}


def thumbnail(path: Path) -> str | None:
    """A picture as data URI; None where it is absent or broken."""
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


def _number(record: Mapping[Any, Any], key: str) -> str:
    """A class that has no name; -1 is unknown."""
    value = record.get(key, -1)
    return "" if str(value) in ("", "-1", "nan") else f"class {value}"
