"""Does confidence mean what it says? Two published errors, from the confidence and the success of every image.

ECE is that of the analysis `accuracy`: 15 bins of equal width. The RMS calibration error of Hendrycks et al. ("Deep
anomaly detection with outlier exposure", ICLR 2019; used with ImageNet-A) sorts the images by confidence into bins of
100 neighbours, the last one taking what is left over:

    RMS = sqrt( sum_b n_b / n * (share correct in b - mean confidence in b)^2 )

The released code leaves its last bin - the most confident images - out of the sum; here it counts.
"""

from __future__ import annotations

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


def rms_calibration(confidence: np.ndarray, correct: np.ndarray, per_bin: int = PER_BIN) -> float:
    """RMS calibration error in [0, 1] over bins of `per_bin` neighbours in confidence."""
    order = np.argsort(confidence, kind="stable")
    starts = np.arange(max(1, len(order) // per_bin)) * per_bin
    gaps = np.add.reduceat((correct - confidence)[order], starts)  # n_b * (share correct - mean confidence)
    sizes = np.diff([*starts, len(order)])
    return float(np.sqrt((gaps**2 / sizes).sum() / len(order)))
