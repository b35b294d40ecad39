"""One colour per class, the same on the whole page, and label maps as small pictures in these colours."""

from __future__ import annotations

import base64
import colorsys
import io

import numpy as np
from markupsafe import Markup
from PIL import Image

NONE = "#c3c7cf"  # a patch or pixel without a class
# Far apart in hue and lightness, the first one dark: it is often a background, which most of a picture is. None is one
# of the page's own colours, which a dark page lightens: a legend's would no longer be those of the pixels.
_FIRST = (
    "#33363d", "#e69f01", "#56b4ea", "#009e74", "#f0e442", "#0072b3", "#d55e01", "#cc79a8",
    "#7b3294", "#a6d854", "#8c564b", "#17becf",
)  # fmt: skip
_GOLDEN = 0.6180339887  # of a turn: hues that follow each other are far apart, however many there are


def class_colours(classes: int) -> list[str]:
    """As many colours as classes; beyond twelve, hues by the golden section in three lightnesses."""
    found = list(_FIRST[:classes])
    for i in range(len(found), classes):
        lightness, saturation = (0.45, 0.62, 0.78)[i % 3], (0.75, 0.6, 0.7)[i % 3]
        rgb = colorsys.hls_to_rgb((i * _GOLDEN) % 1.0, lightness, saturation)
        found.append("#" + "".join(f"{round(255 * part):02x}" for part in rgb))
    return found


def coloured(labels: np.ndarray, colours: list[str]) -> np.ndarray:
    """A label map (rows, columns), -1 where there is no class -> (rows, columns, 3) uint8"""
    table = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in (*colours, NONE)]
    return np.array(table, np.uint8)[labels]  # -1 is the last row of the table


def label_image(labels: np.ndarray, colours: list[str]) -> str:
    """A label map (rows, columns), -1 where there is no class, as data URI: one pixel per cell."""
    png = io.BytesIO()
    Image.fromarray(coloured(labels, colours)).save(png, "PNG")
    return "data:image/png;base64," + base64.b64encode(png.getvalue()).decode()


def class_legend(names: dict[int, str], colours: list[str]) -> Markup:
    """Swatches with the names of these classes."""
    swatch = (
        '<span style="display:inline-flex;align-items:center;gap:.35em;margin-right:1em">'
        '<span style="width:.9em;height:.9em;border-radius:2px;background:{}"></span>{}</span>'
    )
    shown = [Markup(swatch).format(colours[number], name) for number, name in sorted(names.items())]
    return Markup('<p class="class-legend">{}</p>').format(Markup("").join(shown))
