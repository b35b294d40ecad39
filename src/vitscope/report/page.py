"""build_report: tables in, one offline page out. Nothing here needs a model or the data."""

from __future__ import annotations

import base64
import hashlib
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup
from matplotlib import rc_context

import vitscope
from vitscope.errors import RunError
from vitscope.outside import import_remembered, only_named
from vitscope.registry import PANELS
from vitscope.report import provenance
from vitscope.report.card import of_words, shown, side_by_side
from vitscope.report.failures import Failures
from vitscope.report.figures import LineStyle, house_style, model_styles
from vitscope.report.gallery import colour_tables, gallery_data
from vitscope.report.html_table import breakable, html_table
from vitscope.report.left_over import left_over_tables
from vitscope.report.panel import Finding, Panel, Runs
from vitscope.report.scripts import in_one_script, read
from vitscope.report.sentences import sentences_data
from vitscope.report.sources import default_page, gather, parts_of
from vitscope.report.svg import CSS_VARIABLES, inline_svg, save_figure, slug, to_svg, well_formed
from vitscope.report.wording import in_words, words_of
from vitscope.runs import Run, atomic_write

logger = logging.getLogger(__name__)
LARGEST_PAGE = 3_000_000  # bytes
# (rows of a table, images of the gallery): the first pair that keeps the page under its size is taken
BUDGETS = ((300, 12), (100, 8), (40, 4), (20, 0))


def build_report(
    runs: Iterable[Run | str | Path] | Run | str | Path,
    out: str | Path | None = None,
    *,
    strict: bool = False,
    trust: bool = False,
) -> Path:
    """Draw one offline page about one or several runs, and save its figures as SVG and PNG.

    `out` is the page (a name ending in .html) or the folder for `report.html`; without it the page lies in the run's
    folder, or in the folder that holds all of them. Figures go to `figures/` of the run, or, of several, beside the
    page. A panel that cannot be drawn is named on the page with the reason; with `strict` its error is raised instead.

    trust: import the code outside of vitscope that the runs name, for its panels. Otherwise the page shows their
    tables and says what is missing.
    """
    page, failed = draw_report(runs, out, strict=strict, trust=trust)
    for text in failed:
        logger.warning("%s: %s", page, text)
    return page


def draw_report(
    runs: Iterable[Run | str | Path] | Run | str | Path,
    out: str | Path | None = None,
    *,
    strict: bool = False,
    trust: bool = False,
) -> tuple[Path, list[str]]:
    """As `build_report` -> the page, and a sentence for each part of it that could not be drawn."""
    labelled, failures = gather(runs), Failures(strict)
    page = default_page(labelled.values()) if out is None else Path(out)
    if page.suffix.lower() not in (".html", ".htm"):
        page = page / "report.html"
    missing = _import_remembered(labelled.values(), trust)
    for text in missing:
        logger.warning("%s: %s", page, text)
    panels = draw_panels(labelled, failures)
    with failures.of("The list of further tables"):
        panels += left_over_tables(labelled, panels)
    own = next(iter(labelled.values())) if len(labelled) == 1 else None
    figures, problems = _figures(panels, own.figures_dir if own else page.resolve().parent / "figures", failures)
    problems += _further_files(panels, failures)
    for rows, images in BUDGETS:
        gallery = sentences = None
        with failures.of("The gallery"):
            gallery = gallery_data(labelled, images) if images else None
        with failures.of("The gallery of texts"):
            sentences = sentences_data(labelled, images) if images else None
        notices = [*failures.told, *missing, *problems]
        html = well_formed(_render(labelled, panels, figures, notices, gallery, sentences, page, rows))
        if len(html.encode()) <= LARGEST_PAGE:
            break
    else:
        logger.warning("The report %s is larger than 3 MB: its figures have very many elements.", page)
    return atomic_write(page, html), failures.told


def _import_remembered(runs: Iterable[Run], trust: bool) -> list[str]:
    """Panels that are not ours are registered by modules that the runs remember -> why some are missing."""
    with only_named(trust=trust):
        told = [import_remembered(part.config, part.path) for run in runs for part in parts_of(run)]
    return [f"Panels may be missing; the page has their tables. {text}" for texts in told for text in texts]


def collect_findings(runs: Iterable[Run | str | Path] | Run | str | Path, n: int | None = None) -> list[Finding]:
    """The findings of all panels, the most interesting first; `n` of them."""
    panels = draw_panels(gather(runs), Failures())
    findings = [finding for panel in panels for finding in panel.findings]
    return sorted(findings, key=lambda finding: -finding.interest)[:n]


def draw_panels(runs: Runs, failures: Failures, only: Iterable[str] | None = None) -> list[Panel]:
    """Every registered panel that has its tables, or those that are named, in the order of the page."""
    panels, words = [], words_of(runs)
    functions = PANELS.load_all() if only is None else {key: PANELS.get(key) for key in only}
    with house_style():
        for key, function in functions.items():
            with failures.of(f"The panel '{key}'"), rc_context():  # what one of them changes, no other one sees
                panel = function(runs)
                if panel is not None:
                    if len(runs) == 1:  # with several models the sentence begins with a model's name, which stays
                        panel.findings = [replace(f, text=f.text[:1].upper() + f.text[1:]) for f in panel.findings]
                    panels.append(in_words(panel, words))
    return sorted(panels, key=lambda panel: (panel.order, panel.key))


def _figures(panels: list[Panel], folder: Path, failures: Failures) -> tuple[dict[tuple[str, str], Markup], list[str]]:
    """Inline SVGs by (panel, stem), also saved to `folder`."""
    inline, problems = {}, []
    for panel in panels:
        for stem, figure in panel.figures.items():
            with failures.of(f"The figure '{stem}'"), house_style():
                svg = to_svg(figure, f"{panel.key}/{stem}")
                inline[panel.key, stem] = inline_svg(
                    svg, f"{panel.key}-{stem}", panel.alt.get(stem) or f"Figure: {panel.title}"
                )
                try:
                    save_figure(figure, folder, slug(stem), svg)
                except RunError as error:  # the page itself may be wanted elsewhere: an archive can be read-only
                    problems.append(f"The figure {stem!r} is on this page only: {error}")
    return inline, problems


def _further_files(panels: list[Panel], failures: Failures) -> list[str]:
    """Let panels write what they keep beside the page; a read-only archive still gets its page."""
    problems = []
    for panel in panels:
        with failures.of(f"What the panel '{panel.key}' keeps beside the page"), house_style():
            try:
                for write in panel.write:
                    write()
            except RunError as error:
                problems.append(f"Files of the panel {panel.key!r} are missing: {error}")
    return problems


@cache
def _compiled(template: str) -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["breakable"] = breakable
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False, "separators": (",", ":")}  # the models' own order
    return environment.from_string(template)


def _render(
    runs: Runs,
    panels: list[Panel],
    figures: Mapping[tuple[str, str], Markup],
    problems: list[str],
    gallery: dict[str, Any] | None,
    sentences: dict[str, Any] | None,
    page: Path,
    rows: int,
) -> str:
    style, template = read("page.css") + read("maps.css"), read("page.html")
    drawn = {"gallery": gallery, "sentences": sentences}
    script = in_one_script(["draw", "maps", "encoded", "page", *(name for name, data in drawn.items() if data)])
    words = words_of(runs)
    cards = cards_of(panels, model_styles(runs))
    carded = sorted(((slug(p.key), p.card) for p in panels if p.card), key=lambda each: each[1].order)
    made = [provenance.making(label, part) for label, run in runs.items() for part in parts_of(run)]
    return _compiled(template).render(
        version=vitscope.__version__,
        style=Markup(style),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        models=[
            {"label": label, "colour": CSS_VARIABLES[look.colour], "marker": look.marker, "dash": look.dash}
            for label, look in model_styles(runs).items()
        ],
        headline=provenance.headline(runs),
        notices=[*provenance.notices(runs), *problems],
        cards=cards,
        intervals=any(value["interval"] for card in cards for value in card["values"]),
        compared=side_by_side(carded, list(runs)) if len(runs) > 1 else [],
        findings=[{"text": f.text, "panel": slug(p.key), "title": p.title} for p in panels for f in p.findings],
        contents=_contents(panels),
        key_figures=provenance.key_figures(runs),
        panels=[_panel(panel, figures, runs, page, rows) for panel in panels],
        gallery=gallery,
        gallery_json={**gallery, "colours": colour_tables()} if gallery else None,
        sentences={**sentences, "colours": colour_tables()} if sentences else None,
        made=[
            {**m, "skipped_table": html_table(m["skipped"], rows=rows, caption=f"skipped {words.items}")} for m in made
        ],
        words=words,
    )


def cards_of(panels: list[Panel], styles: Mapping[str, LineStyle]) -> list[dict[str, Any]]:
    """One per lens: the card that one of its panels brings, else what its first panel found."""
    lenses: dict[str, list[Panel]] = {}
    for panel in panels:
        lenses.setdefault(panel.lens or panel.title, []).append(panel)
    found: list[tuple[int, dict[str, Any]]] = []
    for members in lenses.values():
        carded = next((panel for panel in members if panel.card), members[0])
        if carded.card is not None:
            found.append((carded.card.order, shown(carded.card, slug(carded.key), styles)))
        elif (words := of_words(carded)) is not None:
            found.append((90, {**words, "panel": slug(carded.key)}))
    return [card for _, card in sorted(found, key=lambda each: each[0])]


def _contents(panels: list[Panel]) -> list[dict[str, Any]]:
    """Lenses by name, each with its panels."""
    lenses: dict[str, list[tuple[str, str]]] = {}
    for panel in panels:
        lenses.setdefault(panel.lens or panel.title, []).append((slug(panel.key), panel.title))
    return [{"name": name, "panels": members} for name, members in lenses.items()]


def _panel(
    panel: Panel, figures: Mapping[tuple[str, str], Markup], runs: Runs, page: Path, rows: int
) -> dict[str, Any]:
    tables = []
    for name, table in panel.tables.items():
        links = [(label, link) for label, run in runs.items() if (link := _csv_link(run, name, page))]
        html = html_table(table, rows=rows, caption=f"table {name}")
        tables.append({"name": name, "rows": len(table), "html": html, "links": links})
    return {
        "id": slug(panel.key),
        "title": panel.title,
        "figures": [
            (figures[panel.key, stem], panel.captions.get(stem, ""))
            for stem in panel.figures
            if (panel.key, stem) in figures  # else it could not be drawn
        ],
        "reading": panel.reading,
        "tables": tables,
        "protocol": panel.protocol,
        "html": Markup(panel.html),
    }


def _csv_link(run: Run, table: str, page: Path) -> str | None:
    """Where the table lies, seen from the page."""
    for part in parts_of(run):
        path = part.tables_dir / f"{table}.csv"
        if path.exists():
            return quote(Path(os.path.relpath(path.resolve(), page.resolve().parent)).as_posix())
    return None
