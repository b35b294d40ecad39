"""What the program of the RPC-Attention study prints, restated in short, against vitscope's figure of that name.

Sources: the study's table of differences and CleverHans' documented formulas. Each restatement is written image by
image, without vitscope, so that it can be read beside the published definition.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vitscope.robustness.attack_study import make_attacks
from vitscope.robustness.attacks import Victims
from vitscope.robustness.calibration import aurra, rms_calibration
from vitscope.robustness.detection import detection
from vitscope.robustness.threat import Threat, make_threat


class Curved(nn.Module):
    """Three classes from 2 x 5 x 5 normalised pixels, double precision; enough of a target for an attack."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(50, 20), nn.Tanh(), nn.Linear(20, 3)).double()

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)

    def gradient(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        x = images.detach().requires_grad_()
        logits = self(x)
        return torch.autograd.grad(nn.functional.cross_entropy(logits, labels, reduction="sum"), x)[0], logits


def scene(norm: str, eps: float, protocol: str = "published") -> tuple[Curved, Victims]:
    with torch.random.fork_rng():
        model = Curved()
        images = torch.randn(2, 2, 5, 5, dtype=torch.float64)
    threat = make_threat(eps, norm, protocol)
    return model, Victims(images, model(images).argmax(1), torch.arange(2), threat)


def published_spsa(model: nn.Module, x: Tensor, label: int, eps: float, start: Tensor, signs: Tensor) -> Tensor:
    """Of one image (C, H, W). The loss adds the image to what it is given, and is given the image: 2 x + delta."""

    def loss(points: Tensor) -> Tensor:
        logits = model(x + points)
        others = torch.cat([logits[:, :label], logits[:, label + 1 :]], 1)
        return logits[:, label] - others.amax(1)  # Adam descends

    perturbation = start.clamp(-eps, eps).clone().requires_grad_()
    adam = torch.optim.Adam([perturbation], lr=0.01)
    for v in signs:  # (pairs, C, H, W) of every step
        with torch.no_grad():
            slopes = (loss(x + 0.01 * v) - loss(x - 0.01 * v)) / 0.02
            perturbation.grad = (slopes[:, None, None, None] * v).mean(0)
            adam.step()
            perturbation.clamp_(-eps, eps)
    return x + perturbation.detach()


def test_spsa_under_its_published_options_is_the_published_spsa():
    (attack,) = make_attacks(["spsa"], protocol="published")
    assert (attack.steps, attack.samples, attack.random_start) == (10, 128, True)
    eps, steps, pairs = 0.1, 6, 16  # shorter, and the same otherwise
    model, task = scene("linf", eps)
    short = {"steps": steps, "samples": pairs}
    (attack,) = make_attacks({"spsa": short}, protocol="published")
    with torch.no_grad():
        found = attack.perturb(model, task, eps)
    draws = zip(task.generators("spsa", "start"), task.generators("spsa"))
    for i, (first, later) in enumerate(draws):
        start = eps * (2 * torch.rand(2, 5, 5, generator=first).double() - 1)
        coins = [torch.randint(0, 2, (2, 5, 5), generator=later) for _ in range(steps * pairs)]
        signs = (2 * torch.stack(coins).double() - 1).view(steps, pairs, 2, 5, 5)
        expected = published_spsa(model, task.images[i], int(task.labels[i]), eps, start, signs)
        torch.testing.assert_close(found[i], expected, rtol=0, atol=1e-6)
    (exact,) = make_attacks({"spsa": {**short, "variant": "exact"}}, protocol="published")
    with torch.no_grad():
        assert (exact.perturb(model, task, eps) - found).abs().max() > 0.01


def published_sparse_l1(model: Curved, x: Tensor, label: Tensor, eps: float, bounds: tuple | None) -> Tensor:
    """Of one image: 20 steps of size 1 along the signs from the 99th percentile on, divided by the size where it is
    above eps. With bounds the picture is clipped before and after."""
    now = x.clone()
    for _ in range(20):
        slope = model.gradient(now[None], label[None])[0].flatten()
        kth = sorted(slope.abs().tolist())[int(0.99 * slope.numel()) - 1]
        moved = (slope.abs() >= kth).double()
        now = now + (slope.sign() * moved / moved.sum()).view_as(x)
        now = now if bounds is None else now.clamp(*bounds)
        size = (now - x).abs().sum()
        now = x + (now - x) * (eps / size if size > eps else 1)
        now = now if bounds is None else now.clamp(*bounds)
    return now


@pytest.mark.parametrize("bounds", [None, (0.0, 1.0)])
def test_sparse_l1_under_its_published_options_is_rescaled_to_the_ball(bounds):
    model, task = scene("l1", 10)
    if bounds is not None:
        task = Victims(task.images.sigmoid(), task.labels, task.indices, Threat("l1", task.threat.epsilons, bounds))
    (attack,) = make_attacks(["sparse-l1"], protocol="published")
    found = attack.perturb(model, task, 10.0)
    for i in range(len(task)):
        expected = published_sparse_l1(model, task.images[i], task.labels[i], 10.0, bounds)
        torch.testing.assert_close(found[i], expected, rtol=0, atol=1e-6)
    (exact,) = make_attacks({"sparse-l1": {"step": 0.1}})
    assert (exact.perturb(model, task, 10.0) - found).abs().max() > 0.01


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
