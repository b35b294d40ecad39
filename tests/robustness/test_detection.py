import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from vitscope.robustness.detection import detection, detection_intervals


@pytest.mark.parametrize("decimals", [1, 2, 9])  # few decimals: many equal scores
@pytest.mark.parametrize(("n_out", "n_clean"), [(3, 5), (200, 90), (40, 400)])
def test_the_three_metrics_are_those_of_scikit_learn(n_out, n_clean, decimals):
    rng = np.random.default_rng(n_out + decimals)
    out, clean = rng.normal(0.5, 1, n_out).round(decimals), rng.normal(0, 1, n_clean).round(decimals)
    labels, scores = np.repeat([1, 0], [n_out, n_clean]), np.concatenate([out, clean])
    found = detection(out, clean)
    assert found.aupr == pytest.approx(average_precision_score(labels, scores), abs=1e-12)
    assert found.auroc == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    fpr, tpr, _ = roc_curve(labels, scores, drop_intermediate=False)
    assert found.fpr95 == pytest.approx(fpr[tpr >= 0.95][0], abs=1e-12)


def test_perfect_useless_and_inverted_scores():
    assert detection(np.ones(4), np.zeros(6)) == detection(np.arange(4) + 10.0, np.arange(6) * 1.0)
    perfect, useless = detection(np.ones(4), np.zeros(6)), detection(np.zeros(4), np.zeros(6))
    assert (perfect.aupr, perfect.auroc, perfect.fpr95) == (1, 1, 0)
    assert (useless.aupr, useless.auroc, useless.fpr95) == (0.4, 0.5, 1)
    assert detection(np.zeros(4), np.ones(6)).auroc == 0


def test_intervals_hold_the_estimate_narrow_with_images_and_are_the_same_for_the_same_seed():
    rng = np.random.default_rng(0)
    widths = []
    for n in (40, 640):
        out, clean = rng.normal(1, 1, n), rng.normal(0, 1, n)
        found, sure = detection(out, clean), detection_intervals(out, clean)
        assert sure == detection_intervals(out, clean)
        assert all(low <= getattr(found, name) <= high for name, (low, high) in sure.items())
        widths.append(sure["auroc"][1] - sure["auroc"][0])
    assert widths[1] < widths[0] / 2
