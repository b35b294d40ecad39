"""What objects look like in a notebook: HTML without script that is readable on light and dark paper.

Front ends take away what they do not trust, style sheets first: so styles stand in the elements, and figures are
pictures on white. `Run` and `Panel` find their functions here; `panel` is what a person calls.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from markupsafe import Markup
from matplotlib.figure import Figure
from PIL import Image

from vitscope.errors import VitscopeError
from vitscope.registry import DISPLAYS, PANELS
from vitscope.report.failures import Failures
from vitscope.report.figures import house_style, model_styles
from vitscope.report.page import cards_of, draw_panels
from vitscope.report.panel import Panel
from vitscope.report.sources import gather
from vitscope.runs import Run

T = TypeVar("T")
DPI, COLOURS = 130, 128  # of figures: sharp on most screens, and some 15 kB each
GREY = "opacity:.7;font-size:90%"
# the inks of small figures, which the page takes from its style sheet
INKS = (
    "--blue:#2a8fd0;--vermillion:#e0702b;--green:#12a880;--ink:currentColor;--muted:#858a93;--null:#a9adb5;"
    "--orange:#e69f00;--sky:#56b4e9;--purple:#cc79a7;--rule:#858a9355;--paper:transparent"
)
STROKES = Markup(
    "<style>.vitscope-small polyline{fill:none;stroke-width:2;vector-effect:non-scaling-stroke}"
    ".vitscope-small line{stroke-width:2;vector-effect:non-scaling-stroke}"
    ".vitscope-small .dot{stroke-width:8;stroke-linecap:round}"
    ".vitscope-small .chance{stroke:var(--muted);stroke-width:1;stroke-dasharray:4 3}"
    ".vitscope-small .axis{stroke:var(--null);stroke-width:1}"
    ".vitscope-small svg{width:100%;height:56px;overflow:visible}"
    ".vitscope-small ul{display:flex;flex-wrap:wrap;gap:4px;list-style:none;margin:0;padding:0}</style>"
)


def panel(runs: Iterable[Run | str | Path] | Run | str | Path, key: str) -> Panel:
    """One panel of the report about these runs: `panel(run, "attention")`. It shows itself in a notebook.

    Its matplotlib figures are `panel(...).figures`, by name.
    """
    labelled = gather(runs)
    PANELS.check_name(key)
    drawn = draw_panels(labelled, Failures(strict=True), only=[key])
    if not drawn:
        others = [p.key for p in draw_panels(labelled, Failures())]
        raise VitscopeError(
            f"There is nothing to draw for the panel {key!r}: {', '.join(labelled)} has no table for it. "
            f"There are: {', '.join(others) or 'none'}."
        )
    return drawn[0]


def panel_html(shown: Panel) -> Markup:
    """Question, findings, figures with captions, how to read them."""
    return Markup('<div style="{}"><h4 style="margin:.4em 0">{}</h4>{}</div>').format(INKS, shown.title, _body(shown))


def register_display(kind: str) -> Callable[[T], T]:
    """Decorator. What `_repr_html_` of a class in a room below calls, which cannot import this one."""
    return partial(DISPLAYS.add, kind)


@register_display("run")
def run_html(run: Run) -> Markup:
    """A line about the run, what a reader has to know, its cards, and its figures, folded."""
    labelled, failures = gather(run), Failures()
    panels = draw_panels(labelled, failures)
    cards = Markup("").join(_card(card) for card in cards_of(panels, model_styles(labelled)))
    folded = Markup('<details style="margin:.3em 0"><summary>{} <code style="{}">{}</code></summary>{}</details>')
    behind = Markup("").join(folded.format(p.title, GREY, p.key, _body(p)) for p in panels if p.figures or p.html)
    # nobody sees them otherwise who does not open the page: the command line prints them
    notes = Markup("").join(Markup('<p style="margin:.3em 0">Note: {}</p>').format(text) for text in run.warnings)
    notices = Markup("").join(Markup("<p>{}</p>").format(text) for text in failures.told)
    return Markup(
        '<div style="{}">{}<p style="margin:.3em 0"><b>{}</b> <span style="{}">{}, {}: {}</span></p>{}'
        '<div class="vitscope-small" style="display:flex;flex-wrap:wrap;gap:10px">{}</div>{}{}</div>'
    ).format(INKS, STROKES, run.label, GREY, run.kind, run.status, run.path.name, notes, cards, notices, behind)


def _card(card: Mapping[str, Any]) -> Markup:
    values = Markup("<br>").join(
        Markup('{}<b style="font-size:135%">{}</b> <span style="{}">{}</span>').format(
            f"{value['label']} " if len(card["values"]) > 1 else "", value["number"], GREY, value["interval"]
        )
        for value in card["values"]
    )
    return Markup(
        '<div style="flex:1 1 200px;max-width:300px;border:1px solid #858a9355;border-radius:8px;padding:8px 12px">'
        '<b>{}</b><br>{}<div style="{}">{}</div><div style="margin:6px 0 0">{}</div><div style="{}">{}</div></div>'
    ).format(card["question"], values, GREY, card["says"], card["figure"], GREY, card["across"])


def _body(shown: Panel) -> Markup:
    findings = Markup("").join(Markup("<li>{}</li>").format(finding.text) for finding in shown.findings)
    figures = Markup("").join(
        Markup('<figure style="margin:.5em 0">{}<figcaption style="{}">{}</figcaption></figure>').format(
            figure_html(figure, shown.alt.get(stem) or shown.title), GREY, shown.captions.get(stem, "")
        )
        for stem, figure in shown.figures.items()
    )
    # a slider moves by the page's script, and there is none here
    extra = "" if 'class="slider"' in shown.html else Markup(shown.html)
    return Markup('<ul style="margin:.3em 0">{}</ul>{}{}<p style="{}">{}</p>').format(
        findings, figures, extra, GREY, shown.reading
    )


def figure_html(figure: Figure, alt: str) -> Markup:
    """A figure as a picture on white, at its size on paper."""
    buffer = io.BytesIO()
    with house_style():
        figure.savefig(buffer, format="png", dpi=DPI, facecolor="white")
    buffer.seek(0)
    # by the range of colours, not by how often they occur: a thin line would get the colour of another one
    image = Image.open(buffer).convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE)
    return Markup('<img alt="{}" src="{}" style="width:{}px;max-width:100%;background:#fff;border-radius:6px">').format(
        alt, png_uri(image), round(figure.get_figwidth() * 100)
    )


def png_uri(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
