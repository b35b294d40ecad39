"""The first panel of the report: is attention what the kernel-PCA theory says it is?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import pandas as pd
from markupsafe import Markup

from vitscope.analyses.kpca.claims import FAILS, HOLDS, OPEN, Verdict
from vitscope.analyses.kpca.verdict import verdicts
from vitscope.report.card import Card, Mark, Value
from vitscope.report.html_table import breakable
from vitscope.report.numbers import short
from vitscope.report.panel import Finding, Panel, Runs, register_panel
from vitscope.report.panel_parts import protocol, told
from vitscope.report.sources import owner_of, parts_of
from vitscope.runs import Run
from vitscope.runs.files import atomic_write
from vitscope.runs.tables import to_csv

STYLE = {HOLDS: "holds", FAILS: "fails", OPEN: "open"}  # classes of the page's style sheet; the word says it, too
TABLES = ("kpca_reconstruction", "kpca_values", "kpca_gamma", "kpca_spectrum", "probe_kpca_reconstruction")


@register_panel("kpca_verdict")
def verdict_panel(runs: Runs) -> Panel | None:
    """One row per claim and model."""
    found = {label: verdicts(run) for label, run in runs.items()}
    found = {label: each for label, each in found.items() if each}
    if not found:
        return None
    several = len(runs) > 1
    first = next(t for t in TABLES if any(t in run.list_tables() for run in runs.values()))
    judged = {label: runs[label] for label in found}
    return Panel(
        key="kpca_verdict",
        lens="Kernel PCA",
        title="Is attention the kernel PCA that the theory says it is?",
        html=claims_table(found, several),
        reading=(
            "Each row is a claim of Teo & Nguyen (NeurIPS 2024), with what it predicts and what was measured (mean and "
            "95 % interval, bootstrap over images; a normal one for the claim about training). A claim holds or fails "
            "only where the whole interval does; the null says what the same measure gives when there is nothing to "
            "find." + _missing_control(judged)
        ),
        tables={"kpca_verdicts": pd.concat([_frame(each, label, several) for label, each in found.items()])},
        protocol=protocol(judged, first, _variants(judged)),
        findings=told({label: _findings(each) for label, each in found.items()}, several),
        write=[partial(write_verdicts, owner_of(runs[label], first), each) for label, each in found.items()],
        order=1,
        card=_card(found),
    )


def _card(found: Mapping[str, Sequence[Verdict]]) -> Card:
    """How many claims hold; the strip shows the model that was asked most."""
    most = max(found, key=lambda label: len(found[label]))
    counts = {len(each) for each in found.values()}
    return Card(
        question="Is attention kernel PCA?",
        values={
            label: Value(sum(v.verdict == HOLDS for v in each), unit=f"of {len(each)}") for label, each in found.items()
        },
        says=f"published claim{'' if counts == {1} else 's'} hold: heads do kernel PCA (project on keys' main axes)",
        name="claims of kernel PCA that hold",
        larger=None,
        order=60,
        marks=[Mark(STYLE[v.verdict], f"{v.claim}: {v.verdict}") for v in found[most]],
    )


def write_verdicts(run: Run, each: Sequence[Verdict]) -> None:
    """`tables/kpca_verdicts.csv`, beside the tables that it judges."""
    atomic_write(run.tables_dir / "kpca_verdicts.csv", to_csv(_frame(each, "", several=False)))


def _missing_control(runs: Runs) -> str:
    """Untrained weights are the third null; they cost a second pass and must be asked for."""
    tables = [table for run in runs.values() for name in TABLES if (table := run.table(name)) is not None]
    if any("weights" in table and (table["weights"] == "random").any() for table in tables):
        return ""
    return " The same architecture with random weights was not measured: --set kpca.control=random."


def claims_table(found: Mapping[str, Sequence[Verdict]], several: bool) -> Markup:
    """Claim, prediction, measurement, null, verdict; the models of a claim below each other."""
    claims: dict[str, dict[str, Verdict]] = {}
    for label, each in found.items():
        for verdict in each:
            claims.setdefault(verdict.key, {})[label] = verdict
    rows = []
    for models in claims.values():
        for i, (label, verdict) in enumerate(models.items()):
            lead = _claim_cells(verdict, len(models)) if i == 0 else Markup("")
            name = Markup('<th scope="row">{}</th>').format(breakable(label)) if several else Markup("")
            rows.append(Markup("<tr>{}{}{}</tr>").format(lead, name, _measured_cells(verdict)))
    heads = ["claim", "predicts", *(["model"] if several else []), "measured", "null", "verdict"]
    return Markup(
        '<div class="scroll" tabindex="0" role="region" aria-label="verdicts"><table class="plain verdicts">'
        "<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    ).format(
        heads=Markup("").join(Markup('<th scope="col">{}</th>').format(h) for h in heads), rows=Markup("\n").join(rows)
    )


def _claim_cells(verdict: Verdict, models: int) -> Markup:
    return Markup(
        '<th scope="rowgroup" rowspan="{n}">{claim}</th>'
        '<td rowspan="{n}">{predicts}<br><span class="aside">agrees if: {agrees}</span></td>'
    ).format(n=models, claim=verdict.claim, predicts=verdict.predicts, agrees=verdict.agrees)


def _measured_cells(verdict: Verdict) -> Markup:
    number, _, span = verdict.shown.partition(" (")
    return Markup(
        '<td title="{full}"><strong>{number}</strong><br>{span}</td><td>{null}</td>'
        '<td><span class="verdict {style}">{word}</span><br><span class="aside">{why}</span></td>'
    ).format(
        full=repr(verdict.measured),
        number=number,
        span=f"({span}" if span else "",
        null=verdict.null,
        style=STYLE[verdict.verdict],
        word=verdict.verdict,
        why=verdict.why,
    )


def _frame(each: Sequence[Verdict], label: str, several: bool) -> pd.DataFrame:
    columns = ["claim", "predicts", "agrees", "measured", "low", "high", "null", "verdict", "n"]
    table = pd.DataFrame([vars(v) for v in each])[columns]
    if several:
        table.insert(0, "model", label)
    return table


def _variants(runs: Runs) -> str:
    """'exact' or what the analyses were asked for; remarks about q and k are among the notes of the page."""
    options = [
        o
        for run in runs.values()
        for part in parts_of(run)
        for name, o in (part.config.get("analyses") or {}).items()
        if name.startswith("kpca.")
    ]
    variants = sorted({str(o.get("variant", "exact")) for o in options}) or ["exact"]
    parts = [f"variant {' and '.join(variants)}"]
    if any(o.get("standardised") for o in options):
        parts.append("keys standardised")
    return ", ".join(parts)


def _findings(each: Sequence[Verdict]) -> list[Finding]:
    by_key = {v.key: v for v in each}
    found = []
    if (v := by_key.get("bessel")) is not None:
        number, _, span = v.shown.partition(" (")
        span = f" (95 % interval {span}" if v.low is not None else ""
        meaning = "attention is not a projection here" if v.verdict == FAILS else f"the projection claim: {v.verdict}"
        text = f"{number} of tokens have a longer output than their query feature{span}: {meaning}."
        found.append(Finding(text, 0.9))
    beaten = [v for v in each if v.beaten and v.random is not None]
    if beaten:
        names = (f"{v.key.removeprefix('values_').replace('_', ' ').replace('cka', 'CKA')}" for v in beaten)
        numbers = [f"{name} {short(v.random)} against {short(v.measured)}" for name, v in zip(names, beaten)]
        text = "random values of the same norms match the kernel-PCA theory better than the learned ones do: "
        found.append(Finding(text + " and ".join(numbers) + ".", 0.85))
    count = {word: sum(v.verdict == word for v in each) for word in (HOLDS, FAILS, OPEN)}
    rest = [f"{count[word]} {text}" for word, text in ((HOLDS, "hold"), (OPEN, "cannot be told")) if count[word]]
    text = f"{count[FAILS]} of {len(each)} claims of the kernel-PCA reading of attention do not hold"
    found.append(Finding(text + (f", {' and '.join(rest)}." if rest else "."), 0.7))
    return found
