"""A real ImageNet ViT-Tiny on real pictures."""

from __future__ import annotations

import pytest
import torch

from vitscope.data import load_data
from vitscope.models import open_model
from vitscope.robustness import perturb
from vitscope.robustness.target import Target, attacking
from vitscope.robustness.threat import Threat, pixels_of


@pytest.fixture(scope="module")
def opened(shared):
    model = open_model(
        "vit_tiny_patch16_224.augreg_in21k_ft_in1k", shared / "weights" / "vit_tiny_patch16_224.safetensors"
    )
    (batch,) = load_data(shared / "data" / "imagenet", "val", images=6).batches(model.preprocess, 6)
    return model, batch


@pytest.fixture(scope="module")
def setting(opened):
    model, batch = opened
    return model, pixels_of(batch.images, model.preprocess), batch.labels


def right(model, images, labels):
    with attacking(model):
        return Target(model, Threat()).predict(images) == labels


def test_one_255th_of_a_pixel_takes_most_answers_away_and_noise_does_not(setting):
    model, images, labels = setting
    clean = right(model, images, labels)
    fgsm = right(model, perturb(model, images, labels, "fgsm", "1/255"), labels)
    noise = right(model, perturb(model, images, labels, "noise", "1/255"), labels)
    assert clean.sum() >= 3
    assert fgsm.sum() <= clean.sum() / 2
    assert noise.sum() >= clean.sum() - 2


def test_a_budget_of_nothing_leaves_the_pictures_and_the_answers_to_the_data_themselves(opened, setting):
    model, batch = opened
    _, images, labels = setting
    untouched = perturb(model, images, labels, "fgsm", 0)
    assert torch.equal(untouched, images)
    with torch.no_grad():
        answers = model(batch.images).argmax(-1)  # no attack, no pixels, no target: what `accuracy` would ask
    with attacking(model):
        assert torch.equal(Target(model, Threat()).predict(untouched), answers)


@pytest.mark.parametrize("eps", ["1/2550", "8/255"])
def test_fgsm_is_never_better_than_no_attack(setting, eps):
    model, images, labels = setting
    attacked = right(model, perturb(model, images, labels, "fgsm", eps), labels)
    assert attacked.sum() <= right(model, images, labels).sum()


def test_foolbox_finds_the_same_pictures_after_two_steps(setting):
    foolbox = pytest.importorskip("foolbox", reason="the oracle foolbox is not installed: pip install 'vitscope[test]'")
    model, images, labels = setting
    values = {"mean": model.preprocess.mean, "std": model.preprocess.std, "axis": -3}
    wrapped = foolbox.PyTorchModel(model.module, bounds=(0, 1), preprocessing=values)
    theirs = foolbox.attacks.LinfPGD(steps=2, rel_stepsize=0.5, random_start=False)
    expected = theirs.run(wrapped, images, foolbox.criteria.Misclassification(labels), epsilon=2 / 255)
    options = {"steps": 2, "step": 0.5, "random_start": False}
    ours = perturb(model, images, labels, "pgd", "2/255", **options)
    assert ((ours - expected).abs() < 1e-5).double().mean() > 0.999
    same = right(model, ours, labels) == right(model, expected, labels)
    assert (~same).sum() <= 1
    model.module.zero_grad(set_to_none=True)  # foolbox goes through backward()


def test_pgd_is_at_least_as_strong_as_fgsm_and_falls_with_the_budget(setting):
    model, images, labels = setting
    clean = right(model, images, labels).sum()
    fgsm, pgd = [], []
    for eps in ("1/2550", "1/1020", "1/255"):
        fgsm.append(int(right(model, perturb(model, images, labels, "fgsm", eps), labels).sum()))
        pgd.append(int(right(model, perturb(model, images, labels, "pgd", eps, steps=5), labels).sum()))
    assert all(p <= f for p, f in zip(pgd, fgsm))
    assert pgd == sorted(pgd, reverse=True)
    assert clean >= pgd[0] > pgd[-1]
