"""mCE: how much a model errs under corruption, measured in AlexNets.

Hendrycks & Dietterich, ICLR 2019. For corruption c with the errors E(c, s) at the severities s = 1..5,

    CE(c) = mean_s E(c, s) / E_AlexNet(c),     mCE = mean over the 15 corruptions of CE(c), in %.

AlexNet scores 100 %, smaller is better. The denominators are AlexNet's errors on ImageNet-C, averaged over severities.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vitscope.statistics.intervals import Z95

ALEXNET = {
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "frost": 0.826572,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}


def corruption_errors(errors: Mapping[str, float]) -> dict[str, float]:
    """{corruption: CE in %} from errors in [0, 1], each averaged over the five severities."""
    return {name: 100 * error / ALEXNET[name] for name, error in errors.items()}


def mce(errors: Mapping[str, float]) -> float:
    """Mean corruption error in %. All fifteen are needed."""
    missing = [name for name in ALEXNET if name not in errors]
    if missing:
        raise ValueError(f"mCE is the mean over 15 corruptions: {', '.join(missing)} missing.")
    ces = corruption_errors({name: errors[name] for name in ALEXNET})
    return float(np.mean(list(ces.values())))


def clustered_mean(values: np.ndarray) -> tuple[float, float, float]:
    """Mean and normal 95 % interval of one number per image.

    All corruptions of an image rise and fall together, so the image, not its corrupted copy, is the independent draw.
    """
    mean = float(values.mean())
    if len(values) < 2:
        return mean, float("nan"), float("nan")
    half = Z95 * float(values.std(ddof=1)) / len(values) ** 0.5
    return mean, mean - half, mean + half
