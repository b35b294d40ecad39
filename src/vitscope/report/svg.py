"""Figures as SVG: one for the page, that follows its light and dark colours, and files for paper."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from vitscope.report import figures as f
from vitscope.runs.files import atomic_write

# Inks and palette by CSS variable; page.css gives each a light and a dark value.
CSS_VARIABLES = {
    f.INK: "ink", f.MUTED: "muted", f.RULE: "rule", f.NULL: "null", f.PAPER: "paper",
    f.BLUE: "blue", f.VERMILLION: "vermillion", f.GREEN: "green",
    f.ORANGE: "orange", f.SKY: "sky", f.PURPLE: "purple",
}  # fmt: skip
_COLOUR = re.compile("|".join(CSS_VARIABLES), re.IGNORECASE)
# What XML 1.0 cannot hold, not even escaped. Class names, file names and labels of models may.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ID = re.compile(r'(\bid="|url\(#|href="#)')
PNG_DPI = 200


def to_svg(figure: Figure, salt: str) -> str:
    """The figure as an SVG element, well-formed whatever its labels hold.

    The same figure gives the same text: no date, ids derived from `salt`.
    """
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": salt, "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    svg = buffer.getvalue()
    svg = well_formed(svg[svg.index("<svg") :].rstrip() + "\n")
    return re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)


def well_formed(text: str) -> str:
    """Control characters, which neither a page nor an SVG can hold, become visible."""
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def inline_svg(svg: str, key: str, alt: str) -> Markup:
    """An SVG for the page: its ids prefixed with `key`, its inks as CSS variables, a size that fits phone and desk."""
    width, height = (float(n) for n in re.findall(r'(?:width|height)="([\d.]+)pt"', svg)[:2])
    head, body = re.match(r"<svg[^>]*>", svg), svg[svg.index(">") + 1 :]
    assert head is not None
    box = re.search(r'viewBox="([^"]*)"', head[0])
    prefix = slug(key) + "-"
    body = _ID.sub(lambda m: m[0] + prefix, body)
    body = _COLOUR.sub(lambda m: f"var(--{CSS_VARIABLES[m[0].lower()]})", body)
    # On a desk up to 1.75 times its paper size; on a phone no smaller than 0.9 of it, scrolling inside its frame.
    size = f"width:100%;max-width:{width * 1.75:.0f}px;min-width:{min(width * 0.9, 480):.0f}px"
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" role="img" '
        f'aria-label="{escape(alt)}" viewBox="{box[1] if box else f"0 0 {width} {height}"}" style="{size}">'
    )
    return Markup(opening + f"<title>{escape(alt)}</title>" + body)


def save_figure(figure: Figure, folder: Path, stem: str, svg: str | None = None) -> list[Path]:
    """Write STEM.svg and STEM.png, on white, at the figure's size on paper. `svg`: what `to_svg` gave, if at hand."""
    svg = svg or to_svg(figure, stem)
    at = svg.index(">") + 1
    svg = svg[:at] + '\n <rect width="100%" height="100%" fill="#ffffff"/>' + svg[at:]
    svg = svg.replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif")
    buffer = io.BytesIO()
    with _as_laid_out(figure):
        figure.savefig(buffer, format="png", dpi=PNG_DPI, facecolor="white", metadata={"Software": None})
    header = '<?xml version="1.0" encoding="utf-8" standalone="no"?>\n'
    return [
        atomic_write(folder / f"{stem}.svg", header + svg),
        atomic_write(folder / f"{stem}.png", buffer.getvalue()),
    ]


@contextmanager
def _as_laid_out(figure: Figure) -> Iterator[None]:
    """Drawn as an SVG before, it is laid out: to do so again would take as long as to draw it."""
    engine = figure.get_layout_engine()
    with mpl.rc_context({"figure.constrained_layout.use": False}):
        figure.set_layout_engine(None)
    yield
    figure.set_layout_engine(engine)


def slug(text: str) -> str:
    """Letters, digits and '-' only: safe as an anchor, an id and a file name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"
