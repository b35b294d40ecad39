"""Closed-form probes against scikit-learn's Ridge."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from vitscope.analyses.class_space.ridge import Moments, add_batch, memory_bytes, solve
from vitscope.errors import VitscopeError

ALPHAS = (0.1, 1.0, 50.0)


def activations(n: int, positions: int = 3, width: int = 12, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    offset = 5 * torch.randn(positions, 1, width, generator=generator)  # a mean far from zero, as residuals have
    x = torch.randn(positions, n, width, generator=generator) + offset
    labels = torch.randint(0, 4, (n,), generator=generator)
    return x, labels


def streamed(x, labels, classes: int, batch: int) -> Moments:
    moments = Moments.zeros(x.shape[0], x.shape[2], classes)
    for start in range(0, len(labels), batch):
        part = labels[start : start + batch]
        add_batch(moments.second, moments.classes, x[:, start : start + batch], part)
        moments.counts += torch.bincount(part, minlength=classes)
    return moments


@pytest.mark.parametrize("n", [100, 8])  # more and fewer images than dimensions
@pytest.mark.parametrize("batch", [7, 100])
def test_every_regulariser_equals_scikit_learns_ridge(n: int, batch: int):
    x, labels = activations(n)
    probe = solve(streamed(x, labels, 4, batch), ALPHAS)
    y = np.where(labels.numpy()[:, None] == np.arange(4), 1.0, -1.0)
    for a, alpha in enumerate(ALPHAS):
        for p in range(3):
            reference = Ridge(alpha=alpha).fit(x[p].double().numpy(), y)
            np.testing.assert_allclose(probe.weight[a, p].numpy(), reference.coef_.T, rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(probe.bias[a, p].numpy(), reference.intercept_, rtol=1e-6, atol=1e-6)
            expected = reference.predict(x[p].double().numpy())
            np.testing.assert_allclose(probe.scores(x)[a, p].numpy(), expected, rtol=1e-6, atol=1e-6)


def test_classes_that_do_not_occur_have_no_part_in_the_others():
    x, labels = activations(60)
    y = np.where(labels.numpy()[:, None] == np.arange(9), 1.0, -1.0)  # classes 4..8 never occur
    reference = Ridge(alpha=1.0).fit(x[0].double().numpy(), y)
    probe = solve(streamed(x, labels, 4, 60), [1.0])
    np.testing.assert_allclose(probe.weight[0, 0].numpy(), reference.coef_[:4].T, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(reference.coef_[4:], 0, atol=1e-12)
    np.testing.assert_allclose(reference.intercept_[4:], -1)


def test_a_class_with_one_image_and_a_single_class_are_no_trouble():
    x, labels = activations(30)
    labels[:] = 0
    assert solve(streamed(x, labels, 1, 30), [1.0]).weight.abs().max() < 1e-8  # nothing to tell apart
    labels[4] = 1
    assert solve(streamed(x, labels, 2, 30), [1.0]).scores(x).isfinite().all()


def test_two_halves_add_up():
    x, labels = activations(50)
    whole = streamed(x, labels, 4, 50)
    first, second = streamed(x[:, :20], labels[:20], 4, 20), streamed(x[:, 20:], labels[20:], 4, 30)
    torch.testing.assert_close(first.second + second.second, whole.second)
    torch.testing.assert_close(first.classes + second.classes, whole.classes)


def test_nonsense_is_refused():
    x, labels = activations(10)
    with pytest.raises(VitscopeError, match="above 0"):
        solve(streamed(x, labels, 4, 10), [0.0])
    with pytest.raises(VitscopeError, match="training images"):
        solve(Moments.zeros(1, 4, 2), [1.0])


def test_memory_is_that_of_the_sums():
    moments = Moments.zeros(5, 12, 4)
    assert memory_bytes(5, 12, 4, 1) == 8 * (moments.second.numel() + moments.classes.numel())
