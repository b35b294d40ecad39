"""What the program of the RPC-Attention study prints, restated in short, against vitscope's figure of that name.

Sources: the study's table of differences and CleverHans' documented formulas. Each restatement is written image by
image, without vitscope, so that it can be read beside the published definition.
"""

from __future__ import annotations

import numpy as np
import pytest

from vitscope.robustness.calibration import aurra, rms_calibration
from vitscope.robustness.detection import detection


def published_fpr95(out: np.ndarray, clean: np.ndarray) -> float:
    """Lower the threshold score by score until all anomalous images are caught; of these cuts the one whose recall is
    nearest to 95 %, the lowest where several have that recall."""
    cuts = []
    for threshold in sorted({*out, *clean}, reverse=True):
        recall = (out >= threshold).sum() / len(out)
        cuts.append((abs(recall - 0.95), threshold))
        if recall == 1:
            break
    _, threshold = min(cuts)  # of equal distances the lowest threshold
    return (clean >= threshold).sum() / len(clean)


@pytest.mark.parametrize(("n_out", "n_clean", "decimals"), [(200, 200, 9), (40, 400, 2), (30, 7, 1), (7, 30, 9)])
def test_fpr95_is_published_at_the_lowest_threshold_of_the_recall_nearest_to_95_percent(n_out, n_clean, decimals):
    rng = np.random.default_rng(n_out)
    out, clean = rng.normal(0.5, 1, n_out).round(decimals), rng.normal(0, 1, n_clean).round(decimals)
    assert detection(out, clean).fpr95_code == pytest.approx(published_fpr95(out, clean), abs=1e-6)


def test_the_two_fpr95_of_a_set_that_can_be_counted_by_hand():
    out = np.array([*range(100, 81, -1), 1.0])  # the 19th of 20 has score 82, the last one 1
    clean = np.array([90.5, 50.0, 40.0, 30.0, 0.0])  # one above the 19th, three between it and the last
    found = detection(out, clean)
    assert (found.fpr95, found.fpr95_code) == (1 / 5, 4 / 5)
    few, pair = np.array([*range(12, 2, -1), 1.0]), np.array([20.0, 1.0])
    found = detection(few, pair)  # 10 of 11 are nearer to 95 % than all of them, and fewer than 95 %
    assert (found.fpr95, found.fpr95_code) == (1, 1 / 2)


@pytest.mark.parametrize("n", [100, 250, 1099])
def test_rms_is_published_without_its_most_confident_bin(n):
    rng = np.random.default_rng(n)
    confidence = rng.random(n)
    correct = (rng.random(n) < confidence**2).astype(float)
    order = sorted(range(n), key=lambda i: confidence[i])
    total = 0.0
    for b in range(n // 100 - 1):  # the last bin of a hundred or more is left out
        rows = order[100 * b : 100 * b + 100]
        total += 100 / n * (confidence[rows].mean() - correct[rows].mean()) ** 2
    assert rms_calibration(confidence, correct, variant="code") == pytest.approx(total**0.5, abs=1e-6)
    assert rms_calibration(confidence, correct) > total**0.5
    assert np.isnan(rms_calibration(confidence[:99], correct[:99], variant="code"))


def test_aurra_is_the_mean_accuracy_over_all_response_rates():
    rng = np.random.default_rng(0)
    confidence = rng.random(57)
    correct = (rng.random(57) < confidence).astype(float)
    surest_first = sorted(range(57), key=lambda i: -confidence[i])
    accuracies = [np.mean([correct[i] for i in surest_first[:k]]) for k in range(1, 58)]
    assert aurra(confidence, correct) == pytest.approx(np.mean(accuracies), abs=1e-6)
    assert aurra(np.full(4, 0.5), np.array([1.0, 0, 1, 0])) == pytest.approx(0.5)  # ties: the mean over all orders
