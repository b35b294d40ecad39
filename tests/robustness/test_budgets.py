from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from vitscope.robustness import create_attack
from vitscope.robustness.attacks import Attack, Victims
from vitscope.robustness.budgets import sweep
from vitscope.robustness.target import Target, attacking
from vitscope.robustness.threat import make_threat


@dataclass(frozen=True)
class Recorder(Attack):
    """Adds eps to every pixel and notes whom it was asked about."""

    name = "recorder"
    log: list  # of (eps, image numbers)

    def perturb(self, target: Target, victims: Victims, eps: float) -> Tensor:
        self.log.append((eps, victims.indices.tolist()))
        return victims.images + eps


class Staircase(torch.nn.Module):
    """Answers 0 until an image's mean has risen by its own threshold, then 1."""

    def __init__(self, thresholds: list[float]) -> None:
        super().__init__()
        self.thresholds = torch.tensor(thresholds)

    def answer(self, images: Tensor) -> Tensor:
        number = images[:, 0, 0, 0].mul(10).floor().long()  # the first digit after the point is the image's number
        rise = images.mean((1, 2, 3)) - number / 10
        return torch.nn.functional.one_hot((rise > self.thresholds[number]).long(), 2).double()


def staircase(eps="0.01,0.02,0.03", protocol="pixels", **how):
    images = (torch.arange(4) / 10)[:, None, None, None].expand(4, 1, 2, 2).contiguous()
    truth = torch.tensor([0, 0, 0, 1])  # the last is wrong from the start
    log: list = []
    threat = make_threat(eps, protocol=protocol)
    victims = Victims(images, truth, torch.arange(4) + 50, threat)
    target = Staircase([0.005, 0.015, 1.0, 1.0])
    clean = torch.zeros(4, dtype=torch.int64)
    return sweep(target, victims, Recorder(log), truth, clean, **how), log


def test_each_budget_by_itself_attacks_everybody_who_was_right():
    done, log = staircase()
    assert [numbers for _, numbers in log] == [[50, 51, 52]] * 3
    assert done.right.tolist() == [[False, True, True, False], [False, False, True, False], [False, False, True, False]]
    assert done.smallest().tolist() == [0, 1, 3, 0]
    assert done.attacked[:, 3].tolist() == [False] * 3


def test_cumulatively_nobody_is_attacked_twice_after_being_fooled():
    done, log = staircase(cumulative=True)
    assert [numbers for _, numbers in log] == [[50, 51, 52], [51, 52], [52]]
    assert done.surviving.tolist() == staircase()[0].surviving.tolist()
    assert done.predictions[:, 0].tolist() == [1, 1, 1]  # stays fooled
    assert done.smallest().tolist() == [0, 1, 3, 0]


def test_the_least_picture_is_that_of_the_smallest_budget_that_fooled():
    for cumulative in (False, True):
        done, _ = staircase(cumulative=cumulative, watch=1)
        rise = (done.least - done.least[:1] * 0).mean((1, 2, 3)) - torch.arange(4) / 10
        assert rise.tolist() == pytest.approx([0.01, 0.02, 0.03, 0.0], abs=1e-6)
        watched = done.watched.mean((1, 2, 3)) - torch.arange(4) / 10
        assert watched.tolist() == pytest.approx([0.01 if cumulative else 0.02, 0.02, 0.02, 0.0], abs=1e-6)


def test_the_published_protocol_attacks_wrong_answers_too():
    done, log = staircase(protocol="published")
    assert [numbers for _, numbers in log] == [[50, 51, 52, 53]] * 3
    assert done.size[2].tolist() == pytest.approx([0.03] * 4, abs=1e-6)


def test_an_attack_for_the_smallest_change_runs_once_and_is_cut_to_every_budget(model, pictures):
    pytest.importorskip("foolbox", reason="cw needs foolbox: pip install 'vitscope[attacks]'")
    images, labels = pictures[0][:8], pictures[1][:8]
    victims = Victims(images, labels, torch.arange(8), make_threat("0.1..1.9:0.6", "l2"))
    calls = []

    class Counted(type(create_attack("cw"))):
        def perturb(self, target, victims, eps):
            calls.append(eps)
            return super().perturb(target, victims, eps)

    with attacking(model):
        target = Target(model, victims.threat)
        clean = target.predict(images)
        done = sweep(target, victims, Counted(steps=30, searches=3), labels, clean)
    assert calls == [float("inf")]
    limits = torch.tensor([e.value for e in victims.threat.epsilons])[:, None]
    assert (done.size <= limits * (1 + 1e-4)).all()
    assert (done.right.sum(1).diff() <= 0).all()
