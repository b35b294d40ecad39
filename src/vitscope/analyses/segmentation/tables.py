"""From confusions and samples of the bootstrap to tables. Shares in per cent, intervals of 95 % over images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from vitscope.statistics.bootstrap import percentiles

METRICS = ("mean_iou", "mean_accuracy", "accuracy")
FEW = 2  # images: fewer have no interval
Conditions = Sequence[tuple[str, int]]


def shares(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Right, there, answered (..., 3, C) -> IoU and accuracy of each class (..., C), NaN where they are not defined."""
    right, there, said = np.moveaxis(counts.astype(np.float64), -2, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return right / (there + said - right), right / there


def overall(counts: np.ndarray) -> np.ndarray:
    """Right, there, answered (..., 3, C) -> mean IoU, mean accuracy, pixel accuracy (3, ...)."""
    iou, accuracy = shares(counts)
    right, there = counts[..., 0, :].sum(-1).astype(np.float64), counts[..., 1, :].sum(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.stack([_mean(iou), _mean(accuracy), right / there])


def _mean(values: np.ndarray) -> np.ndarray:
    """Over the last axis, of what is defined; NaN of nothing."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(known, values, 0).sum(-1) / known.sum(-1)


def counts_of(matrix: Tensor) -> np.ndarray:
    """(C, C) -> right, there, answered (3, C)"""
    m = matrix.numpy()
    return np.stack([np.diagonal(m), m.sum(1), m.sum(0)])


def figure_table(conditions: Conditions, matrices: Tensor, samples: np.ndarray, images: Tensor) -> pd.DataFrame:
    """One row per condition and figure, with the change from the clean images, paired image by image."""
    clean, clean_drawn = overall(counts_of(matrices[0])), overall(samples[0])  # (3,), (3, R)
    rows: list[dict[str, Any]] = []
    for k, (corruption, severity) in enumerate(conditions):
        n, counts = int(images[k]), counts_of(matrices[k])
        if not n:
            continue
        values, drawn = overall(counts), overall(samples[k])
        for m, metric in enumerate(METRICS):
            low, high = percentiles(drawn[m]) if n >= FEW else (np.nan, np.nan)
            row = {"corruption": corruption, "severity": severity, "metric": metric, "value": 100 * values[m]}
            row |= {"low": 100 * low, "high": 100 * high}
            if len(conditions) > 1:
                low, high = percentiles(drawn[m] - clean_drawn[m]) if n >= FEW and k else (np.nan, np.nan)
                row |= {"clean": 100 * clean[m], "change": 100 * (values[m] - clean[m])}
                row |= {"change_low": 100 * low, "change_high": 100 * high}
            there = int((counts[1] > 0).sum())
            rows.append({**row, "unit": "%", "classes": there, "pixels": int(counts[1].sum()), "n": n})
    return pd.DataFrame(rows)


def class_table(
    conditions: Conditions, matrices: Tensor, samples: np.ndarray, images: Tensor, names: Sequence[str]
) -> pd.DataFrame:
    """One row per condition and class that is there or is answered."""
    rows: list[dict[str, Any]] = []
    for k, (corruption, severity) in enumerate(conditions):
        counts = counts_of(matrices[k])
        iou, accuracy = shares(counts)
        drawn = shares(samples[k])  # twice (R, C)
        total, sure = max(1, int(counts[1].sum())), int(images[k]) >= FEW
        for c in np.flatnonzero(counts.any(0)).tolist():
            row: dict[str, Any] = {"corruption": corruption, "severity": severity, "label": c, "class_name": names[c]}
            for name, value, several in (("iou", iou[c], drawn[0][:, c]), ("accuracy", accuracy[c], drawn[1][:, c])):
                low, high = percentiles(several) if sure else (np.nan, np.nan)
                row |= {name: 100 * value, f"{name}_low": 100 * low, f"{name}_high": 100 * high}
            row |= {"share": 100 * counts[1, c] / total, "answered": 100 * counts[2, c] / total}
            rows.append({**row, "pixels": int(counts[1, c])})
    return pd.DataFrame(rows)


def confusion_table(matrix: Tensor, names: Sequence[str]) -> pd.DataFrame:
    """One row per pair of a class and an answer that occurs, of the clean images; share: of the class's pixels."""
    m = matrix.numpy()
    truth, answer = (places.tolist() for places in np.nonzero(m))
    return pd.DataFrame(
        {
            "label": truth,
            "class_name": [names[c] for c in truth],
            "answer": answer,
            "answer_name": [names[c] for c in answer],
            "pixels": m[truth, answer],
            "share": 100 * m[truth, answer] / m.sum(1)[truth],
        }
    )
