"""Does confidence mean what it says? Published figures, from the confidence and the success of every image.

ECE is that of the analysis `accuracy`: 15 bins of equal width. The RMS calibration error of Hendrycks et al. ("Deep
anomaly detection with outlier exposure", ICLR 2019; used with ImageNet-A) sorts the images by confidence into bins of
100 neighbours, the last one taking what is left over:

    RMS = sqrt( sum_b n_b / n * (share correct in b - mean confidence in b)^2 )

The released code leaves its last bin - the most confident images - out of the sum; here it counts, unless
`variant="code"` is asked for.

AURRA, the area under the response-rate accuracy curve, comes with them: a model that answers only the share r of the
images of which it is surest has the accuracy a(r) on them; AURRA is the mean of a(1/n), a(2/n), ..., a(1).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

from vitscope.analyses.accuracy import confidence_bin
from vitscope.analyses.conventions import BINS

PER_BIN = 100


def ece(confidence: np.ndarray, correct: np.ndarray) -> float:
    """Expected calibration error in [0, 1]: sum_b n_b / n * |share correct - mean confidence|."""
    bins = confidence_bin(torch.from_numpy(np.asarray(confidence, dtype=np.float64))).numpy()
    gap = np.bincount(bins, weights=correct - confidence, minlength=BINS)  # n_b * (share correct - mean confidence)
    return float(np.abs(gap).sum() / len(confidence))


def rms_calibration(
    confidence: np.ndarray,
    correct: np.ndarray,
    per_bin: int = PER_BIN,
    variant: Literal["exact", "code"] = "exact",
) -> float:
    """RMS calibration error in [0, 1] over bins of `per_bin` neighbours in confidence.

    variant 'code' leaves the last bin out, but not its images out of n; with less than a bin it is NaN.
    """
    if variant == "code" and len(confidence) < per_bin:
        return float("nan")
    order = np.argsort(confidence, kind="stable")
    starts = np.arange(max(1, len(order) // per_bin)) * per_bin
    gaps = np.add.reduceat((correct - confidence)[order], starts)  # n_b * (share correct - mean confidence)
    sizes = np.diff([*starts, len(order)])
    counted = slice(None) if variant == "exact" else slice(-1)
    return float(np.sqrt((gaps**2 / sizes)[counted].sum() / len(order)))


def aurra(confidence: np.ndarray, correct: np.ndarray) -> float:
    """Area under the response-rate accuracy curve, in [0, 1]. Equal confidences: the mean over all their orders."""
    _, group, sizes = np.unique(-np.asarray(confidence), return_inverse=True, return_counts=True)  # surest first
    share = np.bincount(group, weights=correct) / sizes
    answered = np.arange(1, len(confidence) + 1)
    return float((np.repeat(share, sizes).cumsum() / answered).mean())
