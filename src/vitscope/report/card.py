"""The first screen: one card per lens. A question, a number with its interval, one plain sentence, a small figure.

A panel that answers the question of its lens brings a `Card`; the others stay behind it on the page. Of several models
a card has a number each, and all cards together are one table with the models as columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from vitscope.report.numbers import full, short

if TYPE_CHECKING:
    from vitscope.report.figures import LineStyle
    from vitscope.report.panel import Panel

WIDTH, HEIGHT, EDGE = 240, 64, 5  # of a small figure, in units of its own


@dataclass(frozen=True)
class Value:
    """The number of one model, and its 95 % interval where there is one."""

    number: float
    low: float = math.nan
    high: float = math.nan
    unit: str = "%"

    @classmethod
    def of(cls, row: Any, column: str, scale: float = 1.0, unit: str = "%") -> Value:
        """Of a table's row with the columns `column`, `column`_low and `column`_high."""
        number, low, high = (scale * float(row[f"{column}{end}"]) for end in ("", "_low", "_high"))
        return cls(number, low, high, unit)

    @property
    def has_interval(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)

    def apart_from(self, other: Value) -> bool:
        """Do the intervals not meet? Without both nobody knows."""
        return self.has_interval and other.has_interval and (self.low > other.high or self.high < other.low)


@dataclass(frozen=True)
class Mark:
    """One of a strip: a verdict, in a colour and a word."""

    kind: str  # 'holds', 'fails' or 'open'
    text: str  # what it is about, and the verdict


@dataclass(frozen=True)
class Card:
    """What a lens found. Written for a reader who does not know the papers."""

    question: str  # 'Is it right?'
    values: Mapping[str, Value]  # by model
    says: str  # goes on behind the number: 'of the images are recognised'
    name: str  # its row in the table of several models: 'images recognised'
    larger: bool | None = True  # is a larger number better? None: neither
    lines: Mapping[str, Sequence[float]] = field(default_factory=dict)  # the small figure, from left to right
    across: str = ""  # what lies from left to right: 'blocks', 'epochs'
    chance: float | None = None  # drawn as a dashed line
    marks: Sequence[Mark] = ()  # a strip of verdicts in place of the small figure
    order: int = 50  # smaller comes first


def shown(card: Card, panel: str, styles: Mapping[str, LineStyle]) -> dict[str, Any]:
    """What the template prints of a card."""
    values = [{"label": label, "number": _number(v), "interval": _interval(v)} for label, v in card.values.items()]
    return {
        "panel": panel,
        "question": card.question,
        "values": values,
        "says": card.says,
        "figure": _strip(card.marks) if card.marks else _lines(card, styles) if card.lines else _whiskers(card, styles),
        "across": card.across,
        "axis": not (card.marks or card.lines),
    }


def of_words(panel: Panel) -> dict[str, Any] | None:
    """A card for a lens that brings none: its most interesting finding."""
    if not panel.findings:
        return None
    best = max(panel.findings, key=lambda finding: finding.interest)
    return {"question": panel.title, "values": [], "says": best.text, "figure": "", "across": "", "axis": False}


def side_by_side(cards: Iterable[tuple[str, Card]], labels: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of the table of several models: what was measured, a cell each, and the best where intervals are apart."""
    return [
        {
            "name": card.name,
            "panel": panel,
            "better": {True: "larger is better", False: "smaller is better", None: ""}[card.larger],
            "cells": [
                {"number": _number(v), "interval": _interval(v), "best": label == best(card)}
                if (v := card.values.get(label))
                else None
                for label in labels
            ],
        }
        for panel, card in cards
    ]


def best(card: Card) -> str | None:
    """The model whose number is the best and whose interval meets no other's; None where that cannot be told."""
    if card.larger is None or len(card.values) < 2:
        return None
    choose = max if card.larger else min
    first = choose(card.values, key=lambda label: card.values[label].number)
    others = [value for label, value in card.values.items() if label != first]
    return first if all(card.values[first].apart_from(other) for other in others) else None


def _number(value: Value) -> Markup:
    text = short(value.number) + (f" {value.unit}" if value.unit else "")
    return Markup('<span class="number" title="{}">{}</span>').format(full(value.number), text)


def _interval(value: Value) -> str:
    """'93.8–96.4', '−3 to −1'"""
    return f"{short(value.low)}{' to ' if value.low < 0 else '–'}{short(value.high)}" if value.has_interval else ""


def _lines(card: Card, styles: Mapping[str, LineStyle]) -> Markup:
    """A line per model from left to right, on one scale that begins at zero where nothing is below it."""
    known = {label: [float(v) for v in line if math.isfinite(v)] for label, line in card.lines.items()}
    known = {label: line for label, line in known.items() if line}
    if not known:
        return Markup("")
    level = [] if card.chance is None else [card.chance]
    every = [value for line in known.values() for value in line] + level
    low, high = min(0.0, *every), max(every)
    span = (high - low) or 1.0

    def y(value: float) -> float:
        return round(HEIGHT - EDGE - (value - low) / span * (HEIGHT - 2 * EDGE), 1)

    parts = []
    if card.chance is not None:
        parts.append(Markup('<line class="chance" x1="0" x2="{}" y1="{y}" y2="{y}"/>').format(WIDTH, y=y(card.chance)))
    for label, line in known.items():
        step = (WIDTH - 2 * EDGE) / max(1, len(line) - 1)
        points = [(round(EDGE + i * step, 1), y(value)) for i, value in enumerate(line)]
        colour, dash = _look(styles.get(label))
        path = " ".join(f"{a},{b}" for a, b in points)
        parts.append(
            Markup('<polyline points="{}" stroke="{}"{}/>{}').format(path, colour, dash, _dot(*points[-1], colour))
        )
    return _svg(parts)


def _whiskers(card: Card, styles: Mapping[str, LineStyle]) -> Markup:
    """Where there is nothing from left to right: the numbers with their intervals on an axis from 0 to 100 %."""
    if any(value.unit != "%" or not value.has_interval for value in card.values.values()):
        return Markup("")
    scale = (WIDTH - 2 * EDGE) / 100
    parts = [Markup('<line class="axis" x1="{}" x2="{}" y1="58" y2="58"/>').format(EDGE, WIDTH - EDGE)]
    for i, (label, value) in enumerate(card.values.items()):
        colour, _ = _look(styles.get(label))
        y = round(52 * (i + 1) / (len(card.values) + 1), 1)
        a, b, c = (round(EDGE + scale * x, 1) for x in (value.low, value.high, value.number))
        parts.append(
            Markup('<line x1="{a}" x2="{b}" y1="{y}" y2="{y}" stroke="{colour}"/>{dot}').format(
                a=a, b=b, y=y, colour=colour, dot=_dot(c, y, colour)
            )
        )
    return _svg(parts)


def _dot(x: float, y: float, colour: str) -> Markup:
    """A line without length: it stays round however the figure is stretched."""
    return Markup('<line class="dot" x1="{x}" x2="{x}" y1="{y}" y2="{y}" stroke="{colour}"/>').format(
        x=x, y=y, colour=colour
    )


def _strip(marks: Sequence[Mark]) -> Markup:
    """A square per verdict; its shape says it as well as its colour."""
    signs = {"holds": "✓", "fails": "✕", "open": "?"}
    square = Markup('<li class="{}" role="img" aria-label="{text}" title="{text}">{}</li>')
    squares = [square.format(mark.kind, signs[mark.kind], text=mark.text) for mark in marks]
    return Markup('<ul class="strip">{}</ul>').format(Markup("").join(squares))


def _look(style: LineStyle | None) -> tuple[str, Markup]:
    from vitscope.report.svg import CSS_VARIABLES

    if style is None:
        return "var(--blue)", Markup("")
    dashes = {"--": "6 3", ":": "2 3", "-.": "7 3 2 3"}
    dash = Markup(' stroke-dasharray="{}"').format(dashes[style.dash]) if style.dash in dashes else Markup("")
    return f"var(--{CSS_VARIABLES[style.colour]})", dash


def _svg(parts: Sequence[Markup]) -> Markup:
    return Markup(
        '<svg viewBox="0 0 {} {}" preserveAspectRatio="none" aria-hidden="true" focusable="false">{}</svg>'
    ).format(WIDTH, HEIGHT, Markup("").join(parts))
