from __future__ import annotations

import pytest
import torch

from vitscope.data import load_data
from vitscope.errors import DataError, NumericalError, VitscopeError
from vitscope.robustness.epsilons import UnitError
from vitscope.robustness.threat import Threat, make_threat, pixels_of
from vitscope.runs.config import plain

CLEAN = torch.full((2, 1, 2, 2), 0.5)


def test_projected_images_lie_in_the_ball_and_are_pictures():
    threat = Threat()
    found = threat.project(torch.tensor([[[[2.0]]], [[[-3.0]]]]), torch.tensor([[[[0.5]]], [[[0.01]]]]), 0.1)
    assert found.flatten().tolist() == pytest.approx([0.6, 0.0])
    threat.verify(found, torch.tensor([[[[0.5]]], [[[0.01]]]]), 0.1, "x")


@pytest.mark.parametrize(
    ("images", "complaint"),
    [
        (torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)), r"normalised.*images \* std \+ mean"),
        (torch.randint(0, 256, (2, 1, 8, 8), generator=torch.Generator().manual_seed(0)).float(), "divide them by 255"),
        (torch.zeros(1, 1, 2, 2, dtype=torch.uint8), "floating-point numbers, not torch.uint8"),
        (torch.full((1, 1, 2, 2), float("nan")), "NaN"),
    ],
)
def test_what_is_no_picture_is_refused(images, complaint):
    with pytest.raises((DataError, NumericalError), match=complaint):
        Threat().check_clean(images)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (torch.full_like(CLEAN, float("nan")), "returned NaN"),
        (torch.full_like(CLEAN, 0.2), "left the linf ball"),
        (torch.full_like(CLEAN, 0.6), "bounds"),
        (torch.zeros(1, 1, 2, 2), "shape"),
    ],
)
def test_what_an_attack_returns_is_verified(change, complaint):
    returned = CLEAN + change if change.shape == CLEAN.shape else change
    with pytest.raises(VitscopeError, match=complaint):
        Threat().verify(returned, CLEAN, 0.1, "mine")


def test_an_attack_that_returns_nothing_is_told_so():
    with pytest.raises(VitscopeError, match=r"Attack 'mine' returned NoneType, no images: does its perturb end with"):
        Threat().verify(None, CLEAN, 0.1, "mine")


@pytest.mark.parametrize(("norm", "eps", "instead"), [("l2", 128, "128/255"), ("l1", 4000, "4000/255")])
def test_a_budget_that_reaches_every_picture_is_in_another_unit(norm, eps, instead):
    with pytest.raises(UnitError, match=f"--eps {instead}"):
        make_threat(eps, norm).check_reach(784)
    make_threat(eps, norm).check_reach(3 * 224 * 224)  # large pictures are farther apart


def test_only_the_published_protocol_has_no_bounds_and_it_says_so():
    usual, published = make_threat("1/255"), make_threat("1/255", protocol="published")
    assert (usual.bounds, usual.labels, usual.space) == ((0.0, 1.0), "true", "pixels")
    assert (published.bounds, published.labels, published.space) == (None, "predicted", "normalised")
    assert usual.protocol == "pixels in [0, 1], true labels"
    assert published.protocol.startswith("PUBLISHED PROTOCOL")
    with pytest.raises(VitscopeError, match="published"):
        make_threat("1/255", protocol="mine")
    with pytest.raises(VitscopeError, match="Did you mean linf"):
        make_threat("1/255", "Linf")


def test_pixels_come_back_exactly_and_normalise_to_the_very_same_input(model):
    from vitscope.robustness.target import Target

    (batch,) = load_data("mnist5k", "test", images=8, masks=False).batches(model.preprocess, 8)
    pixels = pixels_of(batch.images, model.preprocess)
    assert torch.equal(pixels, (pixels * 255).round() / 255)
    seen = []
    handle = model.module.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    Target(model, Threat())(pixels)
    handle.remove()
    assert torch.equal(seen[0], batch.images)


def test_a_threat_is_plain_enough_to_be_saved():
    assert plain([e.text for e in make_threat("1/255..3/255").epsilons]) == ["1/255", "2/255", "3/255"]
