import numpy as np
import pytest
import torch
from sklearn.calibration import calibration_curve

from vitscope.analyses.accuracy import Accuracy
from vitscope.robustness.calibration import ece, rms_calibration


def sample(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    confidence = rng.beta(4, 2, n)
    return confidence, (rng.random(n) < confidence**1.5).astype(float)


def test_ece_is_that_of_scikit_learns_calibration_curve():
    confidence, correct = sample(1000)
    share, mean = calibration_curve(correct, confidence, n_bins=15)
    counts = np.histogram(confidence, bins=15, range=(0, 1))[0]
    assert ece(confidence, correct) == pytest.approx(
        (np.abs(share - mean) * counts[counts > 0]).sum() / 1000, abs=1e-12
    )


def test_ece_is_that_of_the_accuracy_analysis():
    from types import SimpleNamespace

    from vitscope.data.batch import Batch

    logits = torch.randn(200, 10, generator=torch.Generator().manual_seed(0)) * 3
    labels = torch.randint(0, 10, (200,), generator=torch.Generator().manual_seed(1))
    labels[:120] = logits[:120].argmax(1)
    analysis = Accuracy()
    analysis.start(SimpleNamespace(num_classes=10, name="m"))  # type: ignore[arg-type]
    batch = Batch(torch.empty(200, 1, 1, 1), labels, torch.arange(200), [str(i) for i in range(200)], outputs=logits)
    analysis.end_batch(batch)
    table = analysis.tables()["accuracy"].set_index("metric")["value"]
    confidence = logits.double().softmax(1).amax(1).numpy()
    correct = (logits.argmax(1) == labels).double().numpy()
    assert 100 * ece(confidence, correct) == pytest.approx(table["ece"], abs=1e-9)


@pytest.mark.parametrize("n", [1, 37, 100, 250, 1099])
def test_rms_is_the_published_sum_over_hundreds_with_the_last_bin(n):
    confidence, correct = sample(n)
    order = np.argsort(confidence)
    bins = [[i * 100, (i + 1) * 100] for i in range(n // 100)] or [[0, n]]
    bins[-1][1] = n
    total = 0.0
    for low, high in bins:  # the released code stops one short of the last
        members = order[low:high]
        total += (high - low) / n * (confidence[members].mean() - correct[members].mean()) ** 2
    assert rms_calibration(confidence, correct) == pytest.approx(total**0.5, abs=1e-12)


def test_a_model_that_keeps_its_word_has_no_error():
    confidence = np.full(1000, 0.75)
    correct = np.repeat([1.0, 1, 1, 0], 250)
    assert ece(confidence, correct) == pytest.approx(0, abs=1e-12)
    assert rms_calibration(confidence, np.tile([1.0, 1, 1, 0], 250)) == pytest.approx(0, abs=1e-12)
