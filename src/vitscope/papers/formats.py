"""A paper's table as text: Markdown, LaTeX (booktabs) or CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path

from vitscope.errors import VitscopeError, suggest
from vitscope.papers.measured import Measured
from vitscope.papers.table import Missing, PaperTable, decimals

DASH = "–"
SUFFIXES = {".md": "markdown", ".tex": "latex", ".csv": "csv"}
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "−": "$-$", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''",
}  # fmt: skip


def written(table: PaperTable, form: str = "markdown", digits: int | None = None) -> str:
    """The table as text. `digits` behind the point, if not chosen column by column."""
    if form not in FORMATS:
        raise VitscopeError(f"There is no format {form!r}.{suggest(form, FORMATS)} Known: {', '.join(FORMATS)}.")
    return FORMATS[form](table, digits)


def form_of(file: Path | None) -> str:
    """By the ending of a file's name."""
    if file is None:
        return "markdown"
    if file.suffix.lower() not in SUFFIXES:
        ends = ", ".join(SUFFIXES)
        raise VitscopeError(f"--out {file}: what kind of table? End its name with {ends}, or say --format.")
    return SUFFIXES[file.suffix.lower()]


def markdown(table: PaperTable, digits: int | None = None) -> str:
    """A table of GitHub's kind, and below it what a reader must know."""
    lines = [["model", *headings(table)], [":--", *("--:" for _ in table.columns)]]
    for label, cells in zip(table.rows, texts(table, digits)):
        lines.append([label, *(f"{v} [{ends}]" if ends else v for v, ends in cells)])
    body = "\n".join("| " + " | ".join(_bars(cell) for cell in line) + " |" for line in lines)
    notes = "".join(f"\n- {note}" for note in table.notes)
    return f"{body}\n{notes}\n" if notes else f"{body}\n"


def latex(table: PaperTable, digits: int | None = None) -> str:
    r"""A `tabular` with the rules of booktabs; what a reader must know is in comments. Needs \usepackage{booktabs}."""
    notes = "".join(f"% {note}\n" for note in table.notes)
    head = " & ".join(["model", *map(escape, headings(table))])
    lines = []
    for label, cells in zip(table.rows, texts(table, digits)):
        shown = [rf"{escape(v)} {{\scriptsize [{escape(ends)}]}}" if ends else escape(v) for v, ends in cells]
        lines.append("  " + " & ".join([escape(label), *shown]) + r" \\")
    body = "\n".join(lines)
    columns = "l" + "r" * len(table.columns)
    return (
        f"% needs \\usepackage{{booktabs}}\n{notes}\\begin{{tabular}}{{{columns}}}\n  \\toprule\n  {head} \\\\\n"
        f"  \\midrule\n{body}\n  \\bottomrule\n\\end{{tabular}}\n"
    )


def comma_separated(table: PaperTable, digits: int | None = None) -> str:
    """Every digit; beside each figure the ends of its interval, its unit, what is behind it, and why it is missing."""
    out = io.StringIO()
    parts = ("", " low", " high", " unit", " n", " interval", " missing")
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(["model", "runs", *(f"{c.heading}{part}" for c in table.columns for part in parts)])
    for label, runs, cells in zip(table.rows, table.seeds, table.cells):
        line: list[object] = [label, runs]
        for c in cells:
            if isinstance(c, Missing):
                line += ["", "", "", "", "", "", c.reason]
            else:
                ends = [_exact(x, digits) if c.has_interval else "" for x in (c.low, c.high)]
                line += [_exact(c.value, digits), *ends, c.unit, c.n, c.interval, ""]
        rows.writerow(line)
    return out.getvalue()


FORMATS: dict[str, Callable[[PaperTable, int | None], str]] = {
    "markdown": markdown,
    "latex": latex,
    "csv": comma_separated,
}


def headings(table: PaperTable) -> list[str]:
    """'top1 (%)'"""
    return [f"{c.heading} ({unit})" if (unit := table.unit(j)) else c.heading for j, c in enumerate(table.columns)]


def texts(table: PaperTable, digits: int | None) -> list[list[tuple[str, str]]]:
    """(number, ends of its interval) of every cell, with the same digits all down a column."""
    places = []
    for j in range(len(table.columns)):
        there = [c for row in table.cells if isinstance(c := row[j], Measured)]
        places.append(decimals([c.value for c in there], table.unit(j)) if digits is None else digits)
    return [[_text(c, p) for c, p in zip(row, places)] for row in table.cells]


def _text(found: Measured | Missing, places: int) -> tuple[str, str]:
    if isinstance(found, Missing):
        return DASH, ""
    ends = f"{_fixed(found.low, places)}, {_fixed(found.high, places)}" if found.has_interval else ""
    return _fixed(found.value, places), ends


def _fixed(value: float, places: int) -> str:
    """'−0.0' is '0.0'; what would be all zeros keeps three digits."""
    text = f"{value:.{places}f}"
    if float(text) == 0 and value != 0 and places >= 8:
        text = f"{value:.2e}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "−", 1) if text.startswith("-") else text


def _exact(value: float, digits: int | None) -> str:
    return repr(float(value)) if digits is None else f"{value:.{digits}f}"


def escape(text: str) -> str:
    """Text as LaTeX prints it."""
    return "".join(_LATEX.get(character, character) for character in re.sub(r"\s+", " ", text))


def _bars(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
