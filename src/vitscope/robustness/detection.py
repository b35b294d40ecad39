"""Does the model notice that a picture is none of its business? Ranking metrics of an anomaly score.

Out-of-distribution images are the positives, as published for ImageNet-O; the score is -max softmax probability, so
that a larger score says "anomalous". Chance is AUROC 1/2 and AUPR n_out / (n_out + n_in).

FPR95 has two readings. Ours flags as few clean images as 95 % recall allows. The program that ImageNet-O was published
with takes the recall *nearest* to 95 %, which may be less, and lowers the threshold as far as that recall lasts, over
all clean images up to the next anomalous one: `fpr95_code`, which is larger with few images.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitscope.data.randomness import derive_seed

SCORE = "-max softmax"
DRAWS = 200  # of the bootstrap
RECALL = 0.95  # of FPR95
METRICS = ("aupr", "auroc", "fpr95")


@dataclass(frozen=True)
class Detection:
    """Views of one ranking, each in [0, 1]."""

    aupr: float  # average precision: sum over thresholds of (recall gained) * precision
    auroc: float  # probability that an anomalous image scores above a clean one, ties counting half
    fpr95: float  # share of clean images flagged at the first threshold that flags 95 % of the anomalous ones
    fpr95_code: float  # at the last threshold of the recall nearest to 95 %, as the published program counts it


def detection(out: np.ndarray, clean: np.ndarray) -> Detection:
    """From the scores of anomalous (n_out,) and clean images (n_in,). Equal scores are one threshold."""
    scores = np.concatenate([out, clean])
    order = np.argsort(-scores, kind="stable")
    positive = (order < len(out)).astype(np.float64)
    last = np.append(np.diff(scores[order]) != 0, True)  # the last image of each group of equal scores
    hits, false = np.cumsum(positive)[last], np.cumsum(1 - positive)[last]
    recall, fpr = hits / len(out), false / len(clean)
    gained = np.diff(recall, prepend=0.0)
    aupr = float((gained * hits / (hits + false)).sum())
    auroc = float((np.diff(fpr, prepend=0.0) * (recall - gained / 2)).sum())  # the trapezoidal rule
    full = int(np.argmax(recall == 1))  # the published program looks no further than the first threshold that has all
    nearest = full - int(np.argmin(np.abs(recall[full::-1] - RECALL)))
    return Detection(aupr, auroc, float(fpr[np.argmax(recall >= RECALL)]), float(fpr[nearest]))


def detection_intervals(out: np.ndarray, clean: np.ndarray, seed: int = 0) -> dict[str, tuple[float, float]]:
    """95 % percentile bootstrap of each metric, anomalous and clean images drawn separately."""
    rng = np.random.default_rng(derive_seed("detection", seed))
    drawn = [
        detection(out[rng.integers(0, len(out), len(out))], clean[rng.integers(0, len(clean), len(clean))])
        for _ in range(DRAWS)
    ]
    quantiles = {name: np.quantile([getattr(d, name) for d in drawn], [0.025, 0.975]) for name in METRICS}
    return {name: (float(low), float(high)) for name, (low, high) in quantiles.items()}
