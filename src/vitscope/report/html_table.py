"""A table in the page: sorts by its head, filters by a word, shows short numbers and the full ones on hover."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd
from markupsafe import Markup, escape

from vitscope.report.numbers import full, short


def html_table(table: pd.DataFrame, *, rows: int = 300, caption: str = "") -> Markup:
    """The first `rows` rows as a sortable, filterable table. All cells are escaped."""
    shown = table.head(rows)
    numeric = [shown[c].dtype.kind in "iuf" for c in shown.columns]
    head = Markup("").join(
        Markup('<th scope="col"{}><button type="button">{}</button></th>').format(
            Markup(' class="n"' if n else ""), str(c).replace("_", " ")
        )
        for c, n in zip(shown.columns, numeric)
    )
    columns = [shown[c].tolist() for c in shown.columns]
    # joined as text, each cell escaped by itself: Markup's own formatting is slow for many thousands of cells
    lines = ("".join(_cell(v, n) for v, n in zip(row, numeric)) for row in zip(*columns))
    body = Markup("\n".join(f"<tr>{line}</tr>" for line in lines))
    note = f"the first {short(rows)} of {short(len(table))} rows; all are in the CSV file" if len(table) > rows else ""
    return Markup(
        '<div class="table"><div class="table-tools"><label>Filter <input type="search" autocomplete="off" '
        'placeholder="a word or number"></label> <span class="count" role="status">{count}</span></div>'
        '<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table>'
        "<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}</div>"
    ).format(
        count=f"{short(len(shown))} rows",
        label=caption or "table",
        head=head,
        body=body,
        note=Markup('<p class="note">{}</p>').format(note) if note else "",
    )


def breakable(text: str) -> Markup:
    """Escaped, and allowed to break after '_', '/' and '.' (not in numbers): model names are long, without spaces."""
    return Markup("<wbr>").join(re.split(r"(?<=[_/])|(?<=\.)(?=[A-Za-z])", text))


def _cell(value: Any, numeric: bool) -> str:
    if not numeric:
        return f"<td>{escape(value)}</td>"
    text, exact = short(value), full(value)
    title = f' title="{exact}"' if exact != text else ""  # the sorter reads the exact value here, else the text
    return f'<td class="n"{title}>{text}</td>'
