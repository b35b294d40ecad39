from __future__ import annotations

import pytest
import torch
from torch import nn

from vitscope.errors import NumericalError, VitscopeError
from vitscope.robustness import perturb
from vitscope.robustness.target import Target, attacking, normalised_where
from vitscope.robustness.threat import Threat
from vitscope.tasks.classification import margin


def test_the_gradient_is_that_of_finite_differences(model, pictures):
    images, labels = pictures[0][:2].double(), pictures[1][:2]
    model.module.double()
    target = Target(model, Threat())
    target._mean, target._std = target._mean.double(), target._std.double()
    with attacking(model):
        gradient, _ = target.gradient(images, labels)
        step = torch.zeros_like(images)
        step[:, 0, 13, 13] = 1e-5
        loss = lambda x: nn.functional.cross_entropy(target(x), labels, reduction="none")  # noqa: E731
        slope = (loss(images + step) - loss(images - step)) / 2e-5
    assert gradient[:, 0, 13, 13].tolist() == pytest.approx(slope.tolist(), rel=1e-5)


def fail_inside(model):
    with attacking(model):
        assert not any(p.requires_grad for p in model.module.parameters())
        assert not model.module.training
        raise NumericalError("in the middle of an attack")


def test_mode_hooks_gradients_flags_and_random_state_are_as_before(model, pictures):
    module = model.module.train()
    module.blocks[0].eval()
    frozen = module.pos_embed.requires_grad_(False)
    module.cls_token.grad = torch.ones_like(module.cls_token)
    calls = []
    handle = module.register_forward_hook(lambda *_: calls.append(1))
    modes = [m.training for m in module.modules()]
    state = torch.get_rng_state()
    with pytest.raises(NumericalError, match="in the middle"):
        fail_inside(model)
    perturb(model, *pictures, "pgd", "8/255", steps=2, restarts=2)
    assert [m.training for m in module.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert not frozen.requires_grad
    assert all(p.requires_grad for p in module.parameters() if p is not frozen)
    assert torch.equal(module.cls_token.grad, torch.ones_like(module.cls_token))
    assert all(p.grad is None for name, p in module.named_parameters() if name != "cls_token")
    assert calls
    assert list(module._forward_hooks) == [handle.id]


def test_the_margin_is_positive_where_the_model_is_fooled():
    logits = torch.tensor([[3.0, 1.0, 2.0], [1.0, 4.0, 5.0]])
    assert margin(logits, torch.tensor([0, 1])).tolist() == [-1.0, 1.0]


def test_nan_logits_are_an_error_and_no_answer(model, pictures):
    with torch.no_grad():
        model.module.head.bias.fill_(float("nan"))
    with pytest.raises(NumericalError, match="nobody can say"):
        Target(model, Threat()).predict(pictures[0])


class Normalise(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.5]))
        self.register_buffer("std", torch.tensor([0.5]))

    def forward(self, x):
        return (x - self.mean) / self.std


def test_a_model_that_seems_to_normalise_twice_is_refused_until_it_is_said_which(model, pictures):
    expected = perturb(model, *pictures, "fgsm", "8/255")
    model.module.normalise = Normalise()
    model.module.register_forward_pre_hook(lambda module, inputs: (module.normalise(inputs[0]),))
    with pytest.raises(VitscopeError, match=r"its part 'normalise'.*--normalise inside"):
        normalised_where(model)
    inside, remark = normalised_where(model, "inside")
    assert inside.preprocess.mean == (0.0,)
    assert "as they are" in remark
    assert torch.equal(perturb(inside, *pictures, "fgsm", "8/255"), expected)  # 0.5, 0.5 are the recipe's, too
    assert normalised_where(model, "outside") == (model, None)
    with pytest.raises(VitscopeError, match="expected auto"):
        normalised_where(model, "somewhere")


def test_timm_says_where_pixels_go_in_as_they_are(model):
    from dataclasses import replace

    model.preprocess = replace(model.preprocess, mean=(0.0,), std=(1.0,))
    same, remark = normalised_where(model)
    assert same is model
    assert "mean 0 and std 1" in remark


@pytest.mark.parametrize(
    ("attack", "norm", "eps"),
    [
        ("fgsm", "linf", "8/255"),
        ("pgd", "linf", "8/255"),
        ("pgd", "l2", 1),
        ("sparse-l1", "l1", 5),
        ("apgd-ce", "linf", "8/255"),
        ("cw", "l2", 1),
    ],
)
def test_a_gradient_of_nan_is_an_error_and_no_robustness(model, pictures, attack, norm, eps):
    """Finite answers, but the root of zero has no slope: the sign of NaN is 0, and nothing would move."""
    if attack in ("apgd-ce", "cw"):
        pytest.importorskip("foolbox" if attack == "cw" else "pyautoattack")
    handle = model.module.register_forward_hook(
        lambda module, inputs, out: out + (inputs[0].flatten(1).sum(1, keepdim=True) * 0).sqrt()
    )
    try:
        with pytest.raises(NumericalError, match="by the pixels is NaN or infinite"):
            perturb(model, *pictures, attack, eps, norm=norm)
    finally:
        handle.remove()


def test_the_remark_says_why_pixels_go_in_as_they_are(model):
    bare, remark = normalised_where(model, "inside")
    assert remark == normalised_where(bare, "inside")[1]
    assert "normalises inside" in remark
    assert "mean 0 and std 1" in normalised_where(bare)[1]
