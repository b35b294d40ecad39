from __future__ import annotations

import pytest
import torch

from vitscope.errors import VitscopeError
from vitscope.training import TrainOptions
from vitscope.training.losses import Objective, prediction

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(5, 3, generator=GENERATOR, dtype=torch.float64)
SECOND = torch.randn(5, 3, generator=GENERATOR, dtype=torch.float64)
OPINION = torch.randn(5, 3, generator=GENERATOR, dtype=torch.float64)
LABELS = torch.tensor([0, 1, 2, 0, 1])
HOT = torch.nn.functional.one_hot(LABELS, 3).double()
IMAGES = torch.zeros(5, 1, 2, 2)
P = LOGITS.softmax(1)


def test_cross_entropy_with_smoothing_is_a_sum_over_images() -> None:
    target = 0.9 * HOT + 0.1 / 3
    expected = -(target * P.log()).sum()
    for targets, options in ((LABELS, TrainOptions(smoothing=0.1)), (target, TrainOptions(mixup=0.8))):
        assert torch.allclose(Objective(options)(LOGITS, targets, IMAGES), expected)


def test_binary_cross_entropy_is_summed_over_classes() -> None:
    s = LOGITS.sigmoid()
    expected = -(HOT * s.log() + (1 - HOT) * (1 - s).log()).sum()
    assert torch.allclose(Objective(TrainOptions(loss="binary"))(LOGITS, LABELS, IMAGES), expected)


def test_asymmetric_loss_weighs_easy_negatives_down() -> None:
    weight = HOT * (1 - P) ** 1 + (1 - HOT) * P**4  # gamma 1 for the right class, 4 for the others
    expected = -(HOT * P.log() * weight).sum()
    assert torch.allclose(Objective(TrainOptions(loss="asymmetric"))(LOGITS, LABELS, IMAGES), expected)


@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_a_teacher_takes_its_share_of_the_second_head(kind: str) -> None:
    t = 3.0 if kind == "soft" else 1.0
    options = TrainOptions(distillation=kind, teacher="x", distillation_share=0.3, temperature=t)
    teacher, student = (OPINION / t).softmax(1), (SECOND / t).softmax(1)
    if kind == "soft":
        taught = t**2 * (teacher * (teacher.log() - student.log())).sum()
    else:
        taught = -student.log()[torch.arange(5), OPINION.argmax(1)].sum()
    expected = 0.7 * -P.log()[torch.arange(5), LABELS].sum() + 0.3 * taught
    objective = Objective(options, teacher=lambda images: OPINION)  # type: ignore[arg-type]
    assert torch.allclose(objective((LOGITS, SECOND), LABELS, IMAGES), expected)


def test_half_precision_logits_are_widened() -> None:
    loss = Objective(TrainOptions())(LOGITS.half(), LABELS, IMAGES)
    assert loss.dtype == torch.float32


def test_two_heads_answer_together() -> None:
    assert torch.equal(prediction((LOGITS, SECOND)), (LOGITS + SECOND).argmax(1))
    assert torch.equal(prediction(LOGITS), LOGITS.argmax(1))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"loss": "asymmetric", "mixup": 0.8}, "soft targets"),
        ({"distillation": "soft"}, "--teacher"),
        ({"teacher": "deit_tiny_patch16_224"}, "--distillation"),
        ({"repeats": 3}, "same picture again"),
        ({"evaluate": True}, "--weights"),
        ({"dtype": "float64", "mixed_precision": "bf16"}, "checking arithmetic"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict, words: str) -> None:
    with pytest.raises(VitscopeError, match=words):
        TrainOptions(**options)
