"""The tables of an evaluation: per condition, per corruption, per set of corruptions, and anomaly detection."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from vitscope.analyses.base import Headline
from vitscope.errors import DataError
from vitscope.robustness.calibration import aurra, ece, rms_calibration
from vitscope.robustness.condition import CLEAN
from vitscope.robustness.corruption_error import ALEXNET, clustered_mean, corruption_errors
from vitscope.robustness.corruptions.names import SEVERITIES
from vitscope.robustness.corruptions.registry import size_remark
from vitscope.robustness.detection import METRICS, SCORE, detection, detection_intervals
from vitscope.robustness.evaluation.readings import Reading
from vitscope.robustness.evaluation.results import Outcomes, Results
from vitscope.statistics.intervals import newcombe, paired, share_columns

NAN = float("nan")
NONE = "none"  # in the column `corruption`
IMAGENET = 1000  # classes: AlexNet's errors mean something for no other head


def all_tables(results: Results) -> dict[str, pd.DataFrame]:
    found = {
        "evaluation": evaluation_table(results),
        "corruption_error": corruption_table(results),
        "corruption_mean": corruption_mean_table(results),
        "ood_detection": detection_table(results),
    }
    return {name: table for name, table in found.items() if len(table)}


def evaluation_table(results: Results) -> pd.DataFrame:
    """One row per condition and reading. Shares and differences in %, with 95 % intervals."""
    rows = []
    for reading in results.readings:
        condition = results.conditions[reading.condition]
        outcomes = results.of(reading)
        if not condition.labelled or outcomes.n == 0:
            if condition.labelled and not reading.beside:
                raise DataError(f"None of the images of {condition.key} that could be read has a label.")
            continue
        rows.append(
            {
                "set": condition.set,
                "corruption": condition.corruption or NONE,
                "severity": condition.severity,
                "images": f"classes of {reading.beside}" if reading.beside else "all",
                "classes": class_text(results, reading),
                "n": outcomes.n,
                **share_columns("top1", outcomes.right, outcomes.n),
                "top5": 100 * float(outcomes.top5.mean()),
                "ece": 100 * ece(outcomes.confidence, outcomes.correct),
                "rms": 100 * rms_calibration(outcomes.confidence, outcomes.correct),
                "rms_code": 100 * rms_calibration(outcomes.confidence, outcomes.correct, variant="code"),
                "aurra": 100 * aurra(outcomes.confidence, outcomes.correct),
                **compare(results, reading, outcomes),
                "preparation": preparation(results, reading),
            }
        )
    return pd.DataFrame(rows)


def class_text(results: Results, reading: Reading) -> str:
    """'all 1,000', or '200 of A' where only their logits compete."""
    condition = results.conditions[reading.condition]
    if reading.masked:
        return f"{len(reading.classes):,} of {reading.beside or condition.set}"
    return f"all {condition.data.num_classes:,}"


def preparation(results: Results, reading: Reading) -> str:
    condition = results.conditions[reading.condition]
    if condition.on_the_fly:
        return f"the model's, corrupted at {size_remark(*results.size)}"
    return "the model's, without its crop" if condition.cropped else "the model's"


def compare(results: Results, reading: Reading, outcomes: Outcomes) -> dict[str, Any]:
    """Top-1 minus that of the clean images, in points."""
    names = ("clean", "clean_n", "difference", "difference_low", "difference_high")
    reference = results.clean_for(reading)
    clean = results.of(reference) if reference is not None else None
    if clean is None or clean.n == 0:
        return dict.fromkeys(names, NAN) | {"comparison": "none"}
    if results.is_pair(reading):
        _, mine, theirs = np.intersect1d(outcomes.images, clean.images, assume_unique=True, return_indices=True)
        now, before = outcomes.correct[mine], clean.correct[theirs]
        low, high = paired(int((now > before).sum()), int((now < before).sum()), len(mine))
        share, difference, how = float(before.mean()), float((now - before).mean()), "the same images"
    else:
        low, high = newcombe(outcomes.right, outcomes.n, clean.right, clean.n)
        share = clean.right / clean.n
        difference, how = outcomes.right / outcomes.n - share, "other images"
    values = (100 * share, clean.n, 100 * difference, 100 * low, 100 * high)
    return dict(zip(names, values)) | {"comparison": how}


def _corrupted(results: Results) -> dict[str, dict[str, dict[int, Reading]]]:
    """{source: {corruption: {severity: reading}}}"""
    found: dict[str, dict[str, dict[int, Reading]]] = {}
    for reading in results.readings:
        condition = results.conditions[reading.condition]
        if condition.corruption:
            found.setdefault(condition.set, {}).setdefault(condition.corruption, {})[condition.severity] = reading
    return found


def corruption_table(results: Results) -> pd.DataFrame:
    """One row per corruption: accuracy averaged over severities, and CE against AlexNet where it is defined."""
    rows = []
    for source, by_name in _corrupted(results).items():
        for name, readings in by_name.items():
            accuracy = float(np.mean([results.of(r).correct.mean() for r in readings.values()]))
            per_image = _per_image(results, {name: readings})
            _, low, high = clustered_mean(per_image[name]) if per_image else (NAN, NAN, NAN)
            compared = [compare(results, r, results.of(r)) for r in readings.values()]
            known = _alexnet_applies(results, name, readings)
            rows.append(
                {
                    "set": source,
                    "corruption": name,
                    "severities": " ".join(map(str, readings)),
                    "n": int(sum(results.of(r).n for r in readings.values())),
                    "top1": 100 * accuracy,
                    "top1_low": max(0.0, 100 * low),
                    "top1_high": min(100.0, 100 * high),
                    "difference": float(np.mean([c["difference"] for c in compared])),
                    "error": 100 * (1 - accuracy),
                    "alexnet_error": 100 * ALEXNET[name] if known else NAN,
                    "ce": corruption_errors({name: 1 - accuracy})[name] if known else NAN,
                }
            )
    return pd.DataFrame(rows)


def corruption_mean_table(results: Results) -> pd.DataFrame:
    """One row per source of corruptions: accuracy over all of them, mCE where all 15 at 5 severities were measured."""
    rows = []
    for source, by_name in _corrupted(results).items():
        names = list(by_name)
        means = {n: float(np.mean([results.of(r).correct.mean() for r in by_name[n].values()])) for n in names}
        per_image = _per_image(results, by_name)
        whole = set(ALEXNET) <= set(names) and all(_alexnet_applies(results, n, by_name[n]) for n in ALEXNET)
        low = high = mce_low = mce_high = NAN
        if per_image:
            _, low, high = clustered_mean(np.mean([per_image[n] for n in names], axis=0))
            if whole:
                ratios = [(1 - per_image[n]) / ALEXNET[n] for n in ALEXNET]
                _, mce_low, mce_high = clustered_mean(np.mean(ratios, axis=0))
        compared = [compare(results, r, results.of(r)) for rs in by_name.values() for r in rs.values()]
        ces = corruption_errors({n: 1 - means[n] for n in ALEXNET}) if whole else {}
        rows.append(
            {
                "set": source,
                "corruptions": len(names),
                "severities": " ".join(map(str, sorted({s for rs in by_name.values() for s in rs}))),
                "n": max(results.of(r).n for rs in by_name.values() for r in rs.values()),
                "top1": 100 * float(np.mean(list(means.values()))),
                "top1_low": max(0.0, 100 * low),
                "top1_high": min(100.0, 100 * high),
                "clean": compared[0]["clean"],
                "difference": float(np.mean([c["difference"] for c in compared])),
                "mce": float(np.mean(list(ces.values()))) if ces else NAN,
                "mce_low": 100 * mce_low,
                "mce_high": 100 * mce_high,
            }
        )
    return pd.DataFrame(rows)


def _alexnet_applies(results: Results, name: str, readings: Mapping[int, Reading]) -> bool:
    """CE is defined for ImageNet's classes and all five severities."""
    classes = results.conditions[next(iter(readings.values())).condition].data.num_classes
    return name in ALEXNET and classes == IMAGENET and set(readings) == set(SEVERITIES)


def _per_image(results: Results, by_name: Mapping[str, Mapping[int, Reading]]) -> dict[str, np.ndarray] | None:
    """{corruption: (n,) share of severities at which image i is right}; None unless all saw the same images."""
    readings = [r for rs in by_name.values() for r in rs.values()]
    first = results.of(readings[0]).images
    data = results.conditions[readings[0].condition].data
    for reading in readings:
        other = results.conditions[reading.condition].data
        same = other is data or (len(other) == len(data) and other.paths == data.paths)
        if not same or not np.array_equal(results.of(reading).images, first):
            return None
    return {n: np.mean([results.of(r).correct for r in rs.values()], axis=0) for n, rs in by_name.items()}


def detection_table(results: Results) -> pd.DataFrame:
    """Anomaly detection: a set without labels against the clean images of the same classes."""
    rows = []
    for reading in results.readings:
        condition = results.conditions[reading.condition]
        reference = results.clean_for(reading)
        if condition.labelled or reference is None:
            continue
        out, clean = -results.of(reading).confidence, -results.of(reference).confidence
        if not len(clean):
            raise DataError(
                f"None of the clean images belongs to the {len(condition.classes)} classes of {condition.set}: give "
                "--data the images of ImageNet's validation set."
            )
        found, sure = detection(out, clean), detection_intervals(out, clean, results.seed)
        row: dict[str, Any] = {"set": condition.set, "score": SCORE, "classes": class_text(results, reading)}
        row |= {"n_out": len(out), "n_clean": len(clean), "aupr_chance": 100 * len(out) / (len(out) + len(clean))}
        for name in METRICS:
            low, high = sure[name]
            row |= {name: 100 * getattr(found, name), f"{name}_low": 100 * low, f"{name}_high": 100 * high}
        row["fpr95_code"] = 100 * found.fpr95_code
        rows.append(row)
    return pd.DataFrame(rows)


def headline(tables: Mapping[str, pd.DataFrame]) -> dict[str, Headline]:
    """Headline figures: every set as a whole, mCE, and how well ImageNet-O is noticed."""
    figures: dict[str, Headline] = {}
    rows = {name: table.to_dict("records") for name, table in tables.items()}
    for row in rows.get("evaluation", []):
        if row["corruption"] != NONE or row["images"] != "all":
            continue
        name = f"{row['set']}" if row["classes"].startswith("all") else f"{row['set']}_own_classes"
        note = f"top-1 among {row['classes']} classes, 95 % interval {row['top1_low']:.3g} to {row['top1_high']:.3g}"
        if row["set"] != CLEAN and not math.isnan(row["difference"]):
            note += f"; clean images of the same classes: {row['clean']:.3g} %"
        figures[name] = Headline(float(row["top1"]), "%", int(row["n"]), note)
    for row in rows.get("corruption_mean", []):
        name, n = ("C" if row["set"] == "C" else "corrupted"), int(row["n"])
        what = f"{row['corruptions']} corruptions, severities {row['severities']}"
        figures[f"{name}_top1"] = Headline(float(row["top1"]), "%", n, f"mean over {what}")
        if not math.isnan(row["mce"]):
            how = "distributed images" if name == "C" else "corrupted on the fly"
            note = f"mean corruption error against AlexNet, {how}; smaller is better"
            figures[f"{name}_mce"] = Headline(float(row["mce"]), "%", n, note)
    for row in rows.get("ood_detection", []):
        name = row["set"] if row["classes"].startswith("all") else f"{row['set']}_own_classes"
        note = f"score {row['score']} over {row['classes']} classes; chance {row['aupr_chance']:.3g} %"
        figures[f"{name}_aupr"] = Headline(float(row["aupr"]), "%", int(row["n_out"] + row["n_clean"]), note)
    return figures
