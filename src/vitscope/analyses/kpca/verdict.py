"""The verdict: what each published claim predicts, what was measured, what a null gives, and whether it holds.

Read from a run's tables alone. A claim predicts a number; a verdict compares the 95 % bootstrap interval over images
with what counts as agreement (`claims.py`), which is printed beside every verdict:

    holds           the whole interval agrees
    does not hold   the whole interval disagrees
    cannot tell     it straddles the limit, or a single image gives no interval
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace

import pandas as pd

from vitscope.analyses.kpca import claims
from vitscope.analyses.kpca.claims import FAILS, HOLDS, Verdict, judge
from vitscope.analyses.kpca.conventions import LEARNED, OTHER, PUBLISHED, RANDOM
from vitscope.report.numbers import percent, short
from vitscope.runs import Run
from vitscope.statistics.bootstrap import Mean, mean_over_images
from vitscope.statistics.intervals import Z95


def verdicts(run: Run) -> list[Verdict]:
    """All claims that this run's tables can judge."""
    makers: tuple[Callable[[Run], list[Verdict]], ...] = (_projection, _training, _values, _eigenvectors, _eigenvalues)
    return [verdict for make in makers for verdict in make(run)]


def verdict_table(run: Run) -> pd.DataFrame:
    """The verdicts as a table, one row per claim."""
    return pd.DataFrame([asdict(v) for v in verdicts(run)])


def per_image(table: pd.DataFrame, column: str, **where: str) -> Mean:
    """The mean of a per-image table's column: over blocks within an image first, then over images."""
    for key, value in where.items():
        table = table[table[key] == value]
    return mean_over_images(table.groupby("image")[column].mean().to_numpy())


def _random_weights(run: Run, table: str, **where: str) -> float | None:
    """The random twin's number, mean over blocks and heads."""
    found = run.table(table)
    if found is None:
        return None
    for key, value in ({"weights": "random"} | where).items():
        found = found[found[key] == value]
    return float(found["mean"].mean()) if len(found) else None


def _null(*parts: tuple[str, float | None], write: Callable[[float], str] = short) -> str:
    return "; ".join(f"{name} {write(value)}" for name, value in parts if value is not None) or "–"


def _projection(run: Run) -> list[Verdict]:
    images = run.table("kpca_reconstruction_images")
    if images is None:
        return []
    rate, size = per_image(images, "violation"), per_image(images, "log10_ratio")
    by_block = images.groupby("block")["violation"].mean().sort_values()
    low, high = (f"{percent(float(by_block.iloc[i]))} in block {by_block.index[i]}" for i in (0, -1))
    why = f"{percent(rate.value)} of tokens have a longer output than their query's feature (from {low} to {high})"
    why += ": impossible for a projection." if judge(rate, most=claims.BESSEL.most) == FAILS else "."
    more = "longer" if size.value > 0 else "shorter"
    twin = {m: _random_weights(run, "kpca_reconstruction", metric=m) for m in ("violation", "log10_ratio")}
    return [
        claims.BESSEL.judged(rate, _null(("random weights", twin["violation"]), write=percent), why),
        claims.SIZE.judged(
            size,
            _null(("random weights", twin["log10_ratio"])),
            f"Outputs are typically {short(10 ** abs(size.value))} times {more} (squared, geometric mean) than the "
            "features that they are said to project.",
        ),
    ]


def _training(run: Run) -> list[Verdict]:
    """From the probes of a training: does the error fall because output and feature meet?"""
    table = run.table("probe_kpca_reconstruction")
    if table is None or table["epoch"].nunique() < 2:
        return []
    table = table[(table["weights"] == "own") & (table["split"] == table["split"].iloc[-1])]
    at = table.groupby(["metric", "epoch"]).agg({"mean": "mean", "std": "mean", "n": "max"})
    first, last = int(table["epoch"].min()), int(table["epoch"].max())
    ratio = at.loc["log10_ratio"]
    end = ratio.loc[last]
    half = Z95 * float(end["std"]) / float(end["n"]) ** 0.5  # as if all heads moved together: on the safe side
    size = Mean(float(end["mean"]), float(end["mean"]) - half, float(end["mean"]) + half, int(end["n"]))
    moved = {m: [float(at.loc[m].loc[e, "mean"]) for e in (first, last)] for m in ("absolute_error", "h", "phi")}
    error = moved.pop("absolute_error")
    most = max(moved, key=lambda m: abs(moved[m][1] - moved[m][0]))
    why = (
        f"From epoch {first} to {last} the mean absolute error goes from {short(error[0])} to {short(error[1])}; "
        f"{'‖h‖²' if most == 'h' else '‖φ(q)‖²'} moved most ({short(moved[most][0])} to {short(moved[most][1])}), and "
        f"the two end {short(10 ** abs(size.value))}-fold apart."
    )
    return [claims.TRAINING.judged(size, _null(("before training", float(ratio.loc[first, "mean"]))), why)]


def _values(run: Run) -> list[Verdict]:
    images = run.table("kpca_values_images")
    if images is None:
        return []
    found = []
    for metric, claim in claims.VALUES.items():
        wide = images.pivot_table(index="image", columns="values", values=metric)
        mean = mean_over_images(wide[LEARNED].to_numpy())
        nulls = {kind: float(wide[kind].mean()) for kind in (RANDOM, OTHER) if kind in wide}
        gaps = {kind: mean_over_images((wide[LEARNED] - wide[kind]).to_numpy()) for kind in nulls}
        twin = _random_weights(run, "kpca_values", metric=metric, values=LEARNED)
        names = {RANDOM: "random values", OTHER: "another head's values"}
        null = _null(*((names[kind], value) for kind, value in nulls.items()), ("random weights", twin))
        why = _against_nulls(mean, nulls, gaps)
        chance = _random_weights(run, "kpca_values", metric=metric, values=RANDOM)
        excess = gaps[RANDOM].high if RANDOM in gaps else None  # over chance, which depends on the spectrum of the keys
        if twin is not None and chance is not None and excess is not None and twin - chance > max(excess, 0.0):
            why += f" Untrained, the same architecture reaches {short(twin)} where chance gives {short(chance)}: "
            why += "training led away from the theory."
        verdict = claim.judged(mean, null, why)
        gap = gaps.get(RANDOM, Mean(0.0))
        found.append(replace(verdict, random=nulls.get(RANDOM), beaten=gap.high is not None and gap.high < 0))
    return found


def _against_nulls(mean: Mean, nulls: Mapping[str, float], gaps: Mapping[str, Mean]) -> str:
    """How the learnt values stand to each null, by the interval of the difference image by image."""
    words = []
    if (gap := gaps.get(RANDOM)) is not None and gap.low is not None and gap.high is not None:
        relation = "above the" if gap.low > 0 else "below the" if gap.high < 0 else "not distinguishable from the"
        words.append(f"{relation} {short(nulls[RANDOM])} that random values of the same norms reach")
        if gap.high < 0:
            words[-1] += " (the null is better)"
    if (gap := gaps.get(OTHER)) is not None and gap.low is not None:
        relation = "above the" if gap.low > 0 else "and no more than the"
        words.append(f"{relation} {short(nulls[OTHER])} of another head's values")
        if gap.low <= 0:
            words[-1] += ": nothing in it is this head's own"
    return ", ".join([short(mean.value), *words]) + "."


def _eigenvectors(run: Run) -> list[Verdict]:
    images = run.table("kpca_gamma_images")
    if images is None:
        return []
    residual = {kind: per_image(images, "residual", vectors=kind) for kind in ("recovered", "random", "eigenvectors")}
    lost = {kind: per_image(images, "off_centre", vectors=kind) for kind in ("recovered", "random")}
    absolute = images.pivot_table(index="image", columns="vectors", values="absolute")
    ratio = mean_over_images((absolute["recovered"] / absolute["random"]).to_numpy())
    size = per_image(images, "size", vectors="recovered").value
    here, chance = (short(float(absolute[kind].mean())) for kind in ("recovered", "random"))
    proof = "It proves nothing: " if judge(ratio, most=claims.GAMMA.most) != HOLDS else ""
    return [
        claims.RESIDUAL.judged(
            residual["recovered"],
            _null(
                ("true eigenvectors", residual["eigenvectors"].value),
                ("random vectors", residual["random"].value),
                ("random weights", _random_weights(run, "kpca_gamma_heads", vectors="recovered", metric="residual")),
            ),
            f"The vectors recovered from the learned values have residual {short(residual['recovered'].value)}, random "
            f"vectors {short(residual['random'].value)}.",
        ),
        claims.CENTRE.judged(
            lost["recovered"],
            _null(("random vectors", lost["random"].value), write=percent),
            f"{percent(lost['recovered'].value)} of the length of G⁻¹V lies in its mean, which the centring that the "
            "theorem inverts has lost for good.",
        ),
        claims.GAMMA.judged(
            ratio,
            "random vectors 1 (by definition)",
            f"{proof}γ itself is only {short(size)}, so |γᵢ − γⱼ| is tiny for any vector: {here} here and "
            f"{chance} for random ones.",
        ),
    ]


def _eigenvalues(run: Run) -> list[Verdict]:
    table, images = run.table("kpca_eigenvalue_statistics"), run.table("kpca_spectrum_images")
    if table is None or images is None:
        return []
    rows = table[table["statistic"] == "max"].set_index("weights")
    bound, of = float(rows["bound"].iloc[0]), str(rows["of"].iloc[0])  # whole tokens, or 1 for the covariance
    largest = per_image(images, "max")
    impossible = PUBLISHED["max"] > bound
    why = f"The largest eigenvalue is {short(largest.value)}; " + (
        f"{short(PUBLISHED['max'])} is out of reach of any keys: every eigenvalue is at most the trace, and that is at "
        f"most {bound:g}."
        if impossible
        else f"the bound for this model is {bound:g}."
    )
    twin = float(rows.loc["random", "mean"]) if "random" in rows.index else None  # type: ignore[arg-type]
    null = f"bound for any keys ({of}) {bound:g}" + (f"; random weights {short(twin)}" if twin is not None else "")
    return [claims.EIGENVALUES.judged(largest, null, why, FAILS if impossible else None)]
