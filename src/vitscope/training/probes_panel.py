"""What changed while it learnt? Any figure of any probe against the epochs, per block where there are blocks.

The one panel for all analyses that were probes of a training and bring no picture of their own for that. A panel that
does draw a probe says so: `@register_panel("separation", draws=("probe_separation",))`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from vitscope.errors import VitscopeError, suggest
from vitscope.report.figures import house_style
from vitscope.report.numbers import short
from vitscope.report.panel import Panel, Runs, Tables, drawn_probes, register_panel
from vitscope.report.panel_parts import stacked, tables_of
from vitscope.report.probe_curves import Quantity, by_setting, long_form, quantities
from vitscope.report.probe_drawing import MOST_BLOCKS, MOST_GROUPS, compared_places, draw, name_of, plain
from vitscope.training.panel import SHOWN

MOST_FIGURES, OF_A_TABLE = 16, 6  # of the page, and of a table, in its order
MOST_RUNS = 8  # models or settings in one figure: more lines nobody tells apart
IN_TRAINING = {"probe_accuracy": ("top1", "loss")}  # the panel of the training has these
WORDS = {"train": "training", "test": "held-out", "val": "held-out"}


@register_panel("probes")
def probes_panel(runs: Runs) -> Panel | None:
    """One figure per quantity, in the order of the tables; of a sweep means and intervals per setting."""
    found = sweep_curves(runs) or run_curves(runs)
    most = min(OF_A_TABLE, max(1, MOST_FIGURES // max(1, len(found))))
    figures: dict[str, Figure] = {}
    captions: dict[str, str] = {}
    for name, every in found.items():
        tables = dict(list(every.items())[:MOST_RUNS])
        groups = _together(name, shown_quantities(name, tables))
        for stem, shown in groups[:most]:
            figures[stem] = draw(shown, _labels(name, every, runs))
            captions[stem] = caption(name, shown, tables, len(every))
        rest = [plain(q.key) for _, shown in groups[most:] for q in shown]
        if rest:
            captions[groups[most - 1][0]] += f" In the table, not drawn: {', '.join(rest)}."
    if not figures:
        return None
    return Panel(
        key="probes",
        lens="Learning",
        title="What changed while it learned?",
        figures=figures,
        alt={stem: f"{captions[stem].partition('.')[0]}, against the epochs of training" for stem in figures},
        captions=captions,
        reading=(
            "Epoch 0 is the untrained model: what does not move from there was not learned. Axes of one figure share "
            "their scale unless they show different quantities, so that heights can be compared."
        ),
        tables={name: stacked(tables_of(runs, name)) for name in found},
        protocol=_protocol(runs),
        order=47,
    )


def probe_figure(runs: Runs, table: str, quantity: str) -> Figure:
    """One quantity of one probe, such as 'probe_attention' and 'entropy', as this panel draws it."""
    found = {**run_curves(runs, every=True), **sweep_curves(runs, every=True)}
    if table not in found:
        raise VitscopeError(f"These runs have no probe {table!r}.{suggest(table, found)} They have {', '.join(found)}.")
    known = {q.key: q for q in quantities(found[table], table)}
    if quantity not in known:
        raise VitscopeError(f"{table} has no {quantity!r}.{suggest(quantity, known)} It has {', '.join(known)}.")
    with house_style():
        return draw([known[quantity]], _labels(table, found[table], runs))


def shown_quantities(name: str, tables: Tables) -> list[Quantity]:
    hidden = IN_TRAINING.get(name.removeprefix("sweep_"), ())
    return [q for q in quantities(tables, name) if q.key not in hidden]


def _labels(name: str, tables: Tables, runs: Runs) -> list[str]:
    """All that have a colour: the settings of a sweep, or the models of the page."""
    return list(tables) if name.startswith("sweep_") else list(runs)


def run_curves(runs: Runs, *, every: bool = False) -> dict[str, dict[str, pd.DataFrame]]:
    """{probe table: {label: long form}} of trainings, without what other panels draw."""
    found: dict[str, dict[str, pd.DataFrame]] = {}
    elsewhere = drawn_probes() if not every else set()
    for label, run in runs.items():
        for name in run.list_tables():
            if name.startswith("probe_") and name not in elsewhere:
                table = run.table(name)
                if table is not None and {"epoch", "split"} <= set(table.columns) and table["epoch"].nunique() > 1:
                    found.setdefault(name, {})[label] = long_form(table)
    return found


def sweep_curves(runs: Runs, *, every: bool = False) -> dict[str, dict[str, pd.DataFrame]]:
    """The same of the first sweep, with a setting in the place of a run."""
    found: dict[str, dict[str, pd.DataFrame]] = {}
    elsewhere = drawn_probes() if not every else set()
    run = next((run for run in runs.values() if run.kind == "sweep"), None)
    names = ["sweep_training", *(n for n in run.list_tables() if n.startswith("sweep_probe_"))] if run else []
    for name in names:
        if name not in elsewhere:
            table = run.table(name)  # type: ignore[union-attr]
            if table is not None and len(table) and table["epoch"].nunique() > 1:
                found[name] = by_setting(_training(table) if name == "sweep_training" else table)
    return found


def _training(table: pd.DataFrame) -> pd.DataFrame:
    """Loss and accuracy under the names and in the units of the panel of a training; the rate was not measured."""
    words = {column: shown for column, shown in SHOWN.items() if column != "lr"}
    table = table[table["figure"].isin(list(words))]
    unit = table["figure"].map({column: unit for column, (_, unit) in words.items()})
    scale = unit.map({"%": 100.0}).fillna(1.0)
    scaled = {c: table[c] * scale for c in ("mean", "low", "high", "smallest", "largest")}
    return table.assign(**scaled, unit=unit, figure=table["figure"].map({c: name for c, (name, _) in words.items()}))


def _together(name: str, found: Sequence[Quantity]) -> list[tuple[str, list[Quantity]]]:
    """(file stem, quantities of one figure): those with a single axes each stand side by side."""
    alone = [q for q in found if not q.line and len(q.groups) == 1]
    stems = [(name, alone[:MOST_GROUPS])] if alone else []
    return [*stems, *((f"{name}_{q.key}", [q]) for q in found if q not in alone)]


def caption(name: str, shown: Sequence[Quantity], tables: Tables, every: int) -> str:
    """What is drawn, of how many images and runs, and what the band is. `every`: runs that have the table."""
    first = shown[0]
    rows, compared = first.rows, len(first.labels) > 1 or name.startswith("sweep_")
    parts = [f"{', '.join(map(name_of, shown))}, table {name}", _images(first, tables)]
    if len(tables) < every:
        parts.append(f"the first {len(tables)} of {every} {'settings' if name.startswith('sweep_') else 'models'}")
    if first.line and compared and len(first.lines) > MOST_BLOCKS:
        parts.append(f"{MOST_BLOCKS} of the {plain(first.line)}s")
    if len(shown) == 1 and len(first.groups) > 1:
        most = len(dict(compared_places(first))) if first.line and compared else MOST_GROUPS
        some = f"the first {most} of {len(first.groups)} by" if len(first.groups) > most else "one axes per"
        parts.append(f"{some} {' and '.join(map(plain, first.keys))}")
    if name.startswith("sweep_"):
        parts.append(_over_seeds(rows))
    elif rows["low"].notna().any() and (compared or not first.line):
        parts.append("band: the table's own 95 % interval over images")
    return ". ".join(part[:1].upper() + part[1:] for part in parts if part) + "."


def _images(quantity: Quantity, tables: Tables) -> str:
    splits = [WORDS.get(split, split) for split in dict.fromkeys(quantity.rows["split"]) if split]
    counts = {int(t["images"].iloc[0]) for t in tables.values() if "images" in t}
    n = f"{short(counts.pop())} " if len(counts) == 1 else ""
    if not splits:
        return ""
    if len(splits) > 1 and not quantity.line:
        return f"{n}images behind each point; held-out solid, training dashed"
    side = "held-out" if "held-out" in splits else splits[0]
    return f"{n}{side} images behind each point" + ("; training images are in the table" if len(splits) > 1 else "")


def _over_seeds(rows: pd.DataFrame) -> str:
    runs = sorted({int(n) for n in rows["runs"]})
    n = f"{runs[0]}" if runs[0] == runs[-1] else f"{runs[0]} to {runs[-1]}"
    mean = "geometric mean" if "scale" in rows and set(rows["scale"]) == {"log"} else "mean"
    bands = {1: "", 2: "; band: from one to the other"}
    return f"{mean} over {n} seeds{bands.get(runs[-1], '; band: 95 % interval of the mean, Student’s t')}"


def _protocol(runs: Runs) -> str:
    """How the probes were taken; of runs that agree."""
    options = [run.config.get("options") for run in runs.values()]
    images = {o["probe_images"] for o in options if isinstance(o, dict) and "probe_images" in o}
    number = images.pop() if len(images) == 1 else None
    most = "images of each split" if number is None else f"at most {short(number)} images of each split"
    most = "all images of each split" if number == "all" else most
    return f"{most}, the same every time, evaluation mode"
