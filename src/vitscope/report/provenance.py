"""What the page says about its own making: headline facts, and enough to run it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from vitscope.report.numbers import full, hover, memory, percent, seconds, short
from vitscope.report.panel import Runs
from vitscope.report.sources import parts_of
from vitscope.report.wording import words_of
from vitscope.runs import Run
from vitscope.runs.config import dump_yaml, flatten

QUESTION = "are labels and head in the same order?"  # a warning that asks it comes first on the page


def data_of(run: Run) -> str:
    """'imagenet (val)'"""
    data = run.config.get("data")
    if not isinstance(data, Mapping):
        return str(data or "unknown data")
    split = data.get("split")
    return f"{data.get('name', 'unknown data')}" + (f" ({split})" if split else "")


def images_of(run: Run) -> int | None:
    """How many images were analysed: what the headline figures rest on, else what was chosen."""
    counts = [figure["n"] for figure in parts_of(run)[0].summary.values() if isinstance(figure.get("n"), int)]
    if counts:
        return max(counts)
    data = run.config.get("data")
    n = data.get("n") if isinstance(data, Mapping) else None
    return n if isinstance(n, int) else None


def headline(runs: Runs) -> list[tuple[str, str]]:
    """Data, images, date: one value where all models agree, else one per model."""
    return [
        ("Data", _agree({label: data_of(run) for label, run in runs.items()})),
        (words_of(runs).items.capitalize(), _agree({label: _count(images_of(run)) for label, run in runs.items()})),
        ("Date", _agree({label: run.created[:10] for label, run in runs.items()})),
    ]


def _count(n: int | None) -> str:
    return "–" if n is None else short(n)


def _agree(values: Mapping[str, str]) -> str:
    if len(set(values.values())) == 1:
        return next(iter(values.values()))
    return " · ".join(f"{label}: {value}" for label, value in values.items())


def notices(runs: Runs) -> list[str]:
    """What a reader must know before reading on: unfinished runs, doubtful labels, models that saw different images."""
    found = []
    for label, run in runs.items():
        for part in parts_of(run):
            found += [f"{label}: {warning}" for warning in part.warnings if QUESTION in warning]
            if part.status != "finished":
                writer = part.writer
                state = f"it is being written by process {writer['pid']} on {writer['host']}" if writer else (
                    "run the same command again to complete it"
                )  # fmt: skip
                found.append(
                    f"{label}: the run in {part.path.name} is unfinished ({state}). "
                    "This page shows what is there; numbers may change and panels may be missing."
                )
    seen: dict[str, dict[str, set[str]]] = {}  # by table: only what was measured of several models is compared
    for label, run in runs.items():
        for part in parts_of(run):
            for table in (
                part.tables_dir.glob("*.csv") if (mark := str(part.environment.get("data_fingerprint") or "")) else ()
            ):
                seen.setdefault(table.stem, {}).setdefault(label, set()).add(mark)
    if not all(set.intersection(*models.values()) for models in seen.values()):
        found.append(f"The models did not see the same {words_of(runs).items}: compare with care.")
    return found


def key_figures(runs: Runs) -> list[dict[str, Any]]:
    """One row per headline figure: name, note, and a cell (markup) per model."""
    summaries = {label: run.summary for label, run in runs.items()}
    names = list(dict.fromkeys(name for summary in summaries.values() for name in summary))
    rows, words = [], words_of(runs)
    for name in names:
        figures = [summary.get(name) for summary in summaries.values()]
        known = [figure for figure in figures if figure]
        rows.append(
            {
                "name": _spoken(name),
                "note": words.say("; ".join(dict.fromkeys(str(f["note"]) for f in known if f.get("note")))),
                "n": _agree({label: short(f["n"]) for label, f in zip(summaries, figures) if f}),
                "cells": [_figure(f) if f else Markup("–") for f in figures],
            }
        )
    return rows


def _figure(figure: Mapping[str, Any]) -> Markup:
    """A headline figure; people think of shares in percent."""
    if figure.get("unit") != "share":
        return hover(figure["value"], str(figure.get("unit", "")))
    return Markup('<span class="number" title="{}">{}</span>').format(full(figure["value"]), percent(figure["value"]))


def making(label: str, run: Run) -> dict[str, Any]:
    """The section 'How this was made' of one run folder."""
    environment = run.environment
    git = environment.get("git") or {}
    facts = [
        ("Folder", run.path.resolve().name),
        ("Command", environment.get("command")),
        ("Made", f"{run.created} ({run.status})"),
        ("Resumed", ", ".join(r.get("time", "") for r in environment.get("resumed", [])) or None),
        ("Seed", environment.get("seed")),
        ("Device", environment.get("device")),
        ("Processes", environment.get("world_size")),
        ("Data fingerprint", environment.get("data_fingerprint")),
        ("Versions", ", ".join(f"{k} {v}" for k, v in environment.get("versions", {}).items())),
        ("Python, system", f"{environment.get('python')}, {environment.get('platform')}"),
        ("Git state", _git(git) if git else None),
    ]
    return {
        "label": label,
        "kind": run.kind,
        "facts": [(name, str(value)) for name, value in facts if value not in (None, "")],
        "timing": [timing_line(key, value) for key, value in flatten(run.timing).items()] if run.timing else [],
        "warnings": run.warnings,
        "skipped": run.skipped,
        "config": dump_yaml(run.config),
    }


def timing_line(key: str, value: Any) -> tuple[str, str, str]:
    """(name, as people read it, full value). The unit is told from the key: `seconds`, `peak_memory_bytes`."""
    *context, last = key.split(".")
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        text, exact = str(value), ""
    elif last.endswith("bytes"):
        last, text, exact = last.removesuffix("bytes"), memory(float(value)), f"{value} bytes"
    elif last.endswith("seconds"):
        last, text, exact = f"{last.removesuffix('seconds')}time", seconds(float(value)), f"{value} s"
    else:
        text, exact = short(value), full(value)
    return ": ".join([*context, last.strip("_") or "size"]).replace("_", " "), text, exact


def _git(git: Mapping[str, Any]) -> str:
    changed = git.get("changed_files")
    state = "clean" if changed == 0 else f"{changed} changed files"
    return f"{str(git.get('commit') or 'no commit')[:12]} on {git.get('branch')}, {state}"


_WORDS = {
    "accuracy.top1": "recognised at the first guess",
    "accuracy.top5": "recognised within five guesses",
    "accuracy.loss": "loss",
    "accuracy.ece": "calibration error",
    "kpca": "kernel PCA",
    "cka": "CKA",
    "log10": "decades of",
    "cls": "class token",
    "attn": "attention",
    "mlp": "MLP",
    "phi": "‖φ(q)‖²",
    "h": "‖h‖²",
    "pgd": "PGD",
    "fgsm": "FGSM",
    "top5": "within five guesses",
}  # of what people would not say so


def _spoken(name: str) -> str:
    """`class_space.token_share` -> `class space: token share`; behind an @ is a value: `attack: PGD at 0.05`."""
    what, at, value = name.partition("@")
    said = _WORDS.get(what)
    if said is None:
        parts = [" ".join(_WORDS.get(word, word) for word in part.split("_")) for part in what.split(".")]
        said = ": ".join(parts)
    return f"{said} at {value}" if at else said
