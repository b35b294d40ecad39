from __future__ import annotations

import numpy as np
import torch

from vitscope.data.randomness import preserved_globals
from vitscope.training import TrainOptions
from vitscope.training.mixing import Mixing, answers
from vitscope.training.processes import seed_step


def mixed(options: TrainOptions, images: torch.Tensor, labels: torch.Tensor, step: int = 0) -> tuple:
    with preserved_globals(), torch.random.fork_rng():
        seed_step(0, step, 0)
        return Mixing(options, 4)(images, labels)


def batch(n: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(n) % 4


def test_without_mixup_nothing_changes() -> None:
    images, labels = batch()
    same, targets = mixed(TrainOptions(), images, labels)
    assert same is images
    assert targets is labels


def test_mixup_blends_pictures_and_labels_alike() -> None:
    images, labels = batch()
    x, targets = mixed(TrainOptions(mixup=0.8, smoothing=0.1), images, labels)
    sharp = torch.nn.functional.one_hot(labels, 4) * 0.9 + 0.1 / 4
    # the share of the other picture, from the pixels; the targets must have the same
    other = images.flip(0)
    share = ((x - images) * (other - images)).sum() / (other - images).square().sum()
    assert 0 < share < 1
    assert torch.allclose(x, images + share * (other - images), atol=1e-5)
    assert torch.allclose(targets, (1 - share) * sharp + share * sharp.flip(0), atol=1e-5)
    assert torch.equal(images, batch()[0]), "the batch may be kept in memory: it must not change"


def test_cutmix_pastes_a_box_whose_area_is_the_share_of_the_label() -> None:
    images, labels = batch()
    for step in range(10):
        x, targets = mixed(TrainOptions(cutmix=1.0), images, labels, step)
        pasted = (x != images).any(1)  # (B, H, W)
        share = pasted[0].double().mean().item()
        assert torch.equal(x[0][:, pasted[0]], images.flip(0)[0][:, pasted[0]])
        assert np.isclose(1 - targets[0, labels[0]].item(), share, atol=1e-6)


def test_the_box_has_the_sides_that_were_asked_for() -> None:
    images, labels = batch()
    for step in range(10):
        x, _ = mixed(TrainOptions(cutmix_minmax=(0.25, 0.75)), images, labels, step)
        rows, columns = (x != images).any(1)[0].nonzero().T
        assert {int(side.max() - side.min() + 1) for side in (rows, columns)} <= set(range(2, 7))


def test_how_often_which_and_for_whom_can_be_said() -> None:
    images, labels = batch()
    never, targets = mixed(TrainOptions(mixup=0.8, mixup_prob=0.0), images, labels)
    assert torch.equal(never, images)
    assert torch.equal(targets, torch.nn.functional.one_hot(labels, 4).float())
    both = {"mixup": 0.8, "cutmix": 1.0}
    for switch, blended in ((0.0, True), (1.0, False)):  # mixup changes every pixel, cutmix those of a box
        x, _ = mixed(TrainOptions(**both, mixup_switch_prob=switch), images, labels)
        assert bool((x != images).all()) == blended
    for mode, draws in (("batch", 1), ("pair", 3), ("elem", 6)):
        _, targets = mixed(TrainOptions(mixup=0.8, mixup_mode=mode), images, labels)
        own = targets.gather(1, labels[:, None])[:, 0]
        assert len({round(min(v, 1 - v), 5) for v in own.tolist()}) == draws


def test_each_step_draws_its_own_mixture_and_a_repeated_step_the_same() -> None:
    options = TrainOptions(mixup=0.8, cutmix=1.0)
    first, again, other = (mixed(options, *batch(), step)[1] for step in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_an_odd_batch_loses_one_picture_and_a_single_one_stays() -> None:
    options = TrainOptions(mixup=0.8)
    assert [len(part) for part in mixed(options, *batch(5))] == [4, 4]
    x, targets = mixed(options, *batch(1))
    assert torch.equal(x, batch(1)[0])
    assert targets.tolist() == [[1.0, 0.0, 0.0, 0.0]]


def test_the_answer_to_a_mixed_picture_is_its_larger_part() -> None:
    assert answers(torch.tensor([[0.3, 0.7, 0.0], [0.6, 0.0, 0.4]])).tolist() == [1, 0]
    assert answers(torch.tensor([2, 0])).tolist() == [2, 0]
