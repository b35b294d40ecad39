"""The picture of separation on the report page: profile, decay over epochs, and a slider through the training."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from vitscope.analyses.separation import drawing
from vitscope.analyses.separation.animation import encoder
from vitscope.analyses.separation.outputs import PROBE, PROBE_FITS, epoch_figures, fits_over_epochs, write_outputs
from vitscope.analyses.separation.profile import blocks_of, fits_of, read_token, spikes
from vitscope.report.card import Card, Value
from vitscope.report.numbers import short
from vitscope.report.panel import Finding, Panel, Runs, Tables, register_panel
from vitscope.report.panel_parts import counts, protocol, stacked, tables_of, told
from vitscope.report.slider import slider
from vitscope.report.sources import owner_of
from vitscope.report.svg import inline_svg, slug, to_svg

SLIDER_FRAMES = 40  # of all models together


@register_panel("separation", draws=(PROBE, f"{PROBE}_fits", f"{PROBE}_spike"))
def separation_panel(runs: Runs) -> Panel | None:
    """Profiles of the finished models, decay over the epochs of those that were probed, and a slider over epochs."""
    profiles, probes = tables_of(runs, "separation"), tables_of(runs, PROBE)
    if set(probes) > set(profiles):  # the same images for all: probes of every model, not an analysis of some
        profiles = {}
    measured = bool(profiles)
    fits = {label: fits_of(table, runs[label].table("separation_fits")) for label, table in profiles.items()}
    for label, probe in probes.items():
        if label not in profiles:
            profiles[label] = last_profile(probe)
            at = {"epoch": probe["epoch"].max(), "split": drawing.held_out_of(probe)}
            fits[label] = fits_of(profiles[label], runs[label].table(PROBE_FITS), **at)
    if not profiles:
        return None
    figures: dict[str, Figure] = {"separation_profile": _profile(profiles, fits, list(runs))}
    over_epochs = {label: fits_over_epochs(owner_of(runs[label], PROBE), probe) for label, probe in probes.items()}
    for label, probe in probes.items():
        if probe["epoch"].nunique() > 1:
            name, model = (f"separation_epochs_{label}", label) if len(probes) > 1 else ("separation_epochs", "")
            figures[name] = drawing.draw_over_epochs(probe, fits=over_epochs[label], model=model)
    owners = {label: runs[label] for label in profiles}
    first = "separation" if measured else PROBE
    behind = {"separation": stacked(profiles)} if first == "separation" else {}
    if any(map(len, fits.values())):
        behind["separation_fits"] = stacked(fits)
    behind["separation_spike"] = stacked({label: spikes(profile) for label, profile in profiles.items()})
    if probes:
        behind["separation_epoch_fits"] = stacked(over_epochs)
    n = counts(profiles, "images")
    epochs = "Last block; held-out images dark, training images pale. Curves: the token that the head reads."
    missing = " The animation is a GIF only: there is no ffmpeg, and no pip install 'vitscope[video]'."
    video = "" if encoder() or not probes else missing
    return Panel(
        key="separation",
        lens="Separation",
        title="How far apart are the classes, layer by layer?",
        figures=figures,
        alt={name: "Separation fuzziness on a log axis, " + ("per epoch" if "epochs" in name else "per layer")
             for name in figures},
        captions={
            name: epochs if "epochs" in name else
            f"D = trace(SSW pinv(SSB)) of {n} images, small where classes are tight and far apart. "
            + ("Open markers: raw pixels, embedding, logits." if len(profiles) > 1 else f"Diamonds: {_ends(profiles)}. "
               "Through the blocks: the published curve (dashed) and a constant rate (dotted).")
            for name in figures
        },
        reading=(
            "A spike at the first blocks against the raw pixels can be a mere change of space; compare it with the "
            "embedding, which lives in the space of the blocks. A straight fall on this log axis is a constant rate."
        ),
        tables=behind,
        protocol=protocol(owners, first, f"{_averaging(profiles)}-averaged, evaluation mode") + "." + video,
        findings=told({x: [_finding(t, fits[x])] for x, t in profiles.items() if len(spikes(t))}, len(runs) > 1),
        html=_sliders(probes, {label: runs[label].table(PROBE_FITS) for label in probes}),
        write=[partial(write_outputs, owner_of(runs[label], PROBE)) for label in probes],
        order=48,
        card=_card(profiles, fits),
    )  # fmt: skip


def _card(profiles: Tables, fits: Tables) -> Card | None:
    """The factor per block, and log D over the blocks of the token that the head reads."""
    rates, lines = {}, {}
    for label, table in profiles.items():
        token, fit = read_token(table), fits[label]
        law = fit[(fit["token"] == token) & (fit["curve"] == "log_linear")] if len(fit) else fit
        rows = blocks_of(table, token)
        if len(law) and len(rows):
            rates[label] = Value(float(law["rho"].iloc[0]), unit="times")
            lines[label] = np.log10(rows["fuzziness"].astype(float).clip(lower=1e-12)).tolist()
    if not rates:
        return None
    return Card(
        question="Do classes come apart?",
        values=rates,
        says="the fuzziness (spread within classes against between them) remains from block to block",
        name="fuzziness that remains per block",
        larger=False,
        lines=lines,
        across="blocks, log scale",
    )


def last_profile(probe: pd.DataFrame) -> pd.DataFrame:
    """The held-out profile of the last epoch."""
    rows = probe[(probe["epoch"] == probe["epoch"].max()) & (probe["split"] == drawing.held_out_of(probe))]
    return rows.drop(columns=["epoch", "split"]).reset_index(drop=True)


def _profile(profiles: Tables, fits: Tables, labels: list[str]) -> Figure:
    if len(profiles) == 1:
        ((label, table),) = profiles.items()
        return drawing.draw_profile(table, fits[label])
    return drawing.draw_profiles(profiles, labels)


def _ends(profiles: Tables) -> str:
    """What is drawn beside the blocks: large pictures have no point for their pixels."""
    pixels = any((table["point"] == "pixels").any() for table in profiles.values())
    return "raw pixels and logits" if pixels else "logits"


def _averaging(profiles: Tables) -> str:
    return " and ".join(sorted({str(table["averaging"].iloc[0]) for table in profiles.values()}))


def _sliders(probes: Tables, fits: Mapping[str, pd.DataFrame | None]) -> str:
    """One slider over epochs per probed training."""
    parts: list[Markup] = []
    for label, probe in probes.items():
        key = f"separation-{slug(label)}"
        figures = epoch_figures(probe, fits[label], max(2, SLIDER_FRAMES // len(probes)))
        frames = [
            inline_svg(to_svg(figure, f"{key}-{epoch}"), f"{key}-{epoch}", f"Separation after epoch {epoch}")
            for epoch, figure in figures.items()
        ]
        name = f"{label}: epoch" if len(probes) > 1 else "epoch"
        parts.append(slider(key, name, list(figures), frames))
    return Markup("").join(parts)


def _finding(table: pd.DataFrame, fits: pd.DataFrame) -> Finding:
    token = read_token(table)
    found = spikes(table)
    spike = found[found["token"] == token].to_dict("records")[0]
    over = float(spike["over_pixels"])
    pixels = f"{short(over)} times the raw pixels, " if over == over else ""
    text = (
        f"the classes are fuzziest in block {int(spike['place'])} (D = {short(float(spike['peak']))}, "
        f"{pixels}{short(float(spike['over_embedding']))} times the patch embedding) and "
        f"{short(float(spike['fall']))} times less so in the last block"
    )
    rows = fits[fits["token"] == token].to_dict("records")
    if rows:
        law = next(row for row in rows if row["curve"] == "log_linear")
        text += f"; per block ×{short(float(law['rho']))} (R² {short(float(law['r2']))} of log D)"
        best = min(rows, key=lambda row: row["delta"] if row["delta"] == row["delta"] else float("inf"))
        if best["delta"] == best["delta"] and best["curve"] != "log_linear":
            words = "no decay at all" if best["curve"] == "constant" else "an exponential above a floor"
            text += f", but {words} describes it better (ΔAICc {short(float(law['delta']))})"
    return Finding(text + ".", 0.7)
