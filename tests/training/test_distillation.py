from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from vitscope import open_model
from vitscope.data import load_data
from vitscope.errors import VitscopeError
from vitscope.models import Preprocess
from vitscope.training import TrainOptions, train
from vitscope.training.distillation import Teacher, open_teacher

Tiny = Callable[..., TrainOptions]
SIZE = {"patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2, "num_classes": 4}
CPU = torch.device("cpu")


@pytest.fixture
def teacher_run(tiny: Tiny) -> Path:
    return train(tiny("teacher", epochs=8)).path


def test_a_teacher_sees_the_pictures_as_it_was_trained_on_them() -> None:
    model = open_model("deit_tiny_patch16_224", "random", img_size=8, in_chans=3, **SIZE)
    student = Preprocess((1, 16, 16), (0.2,), (0.4,))
    images = torch.randn(3, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    pixels = F.interpolate(images * 0.4 + 0.2, size=(8, 8), mode="bicubic", antialias=True).expand(-1, 3, -1, -1)
    mean, std = (torch.tensor(v)[:, None, None] for v in (model.preprocess.mean, model.preprocess.std))
    with torch.no_grad():
        expected = model((pixels - mean) / std)
    assert torch.allclose(Teacher(model, student)(images), expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_a_student_with_two_heads_learns_from_a_run(tiny: Tiny, teacher_run: Path, kind: str) -> None:
    options = tiny(
        kind,
        model="deit_tiny_distilled_patch16_224",
        distillation=kind,
        teacher=str(teacher_run),
        distillation_share=1.0,  # labels are not used: only the teacher can have taught it
        augment="none",
        epochs=15,
    )
    run = train(options)
    student = open_model(run.path, run.checkpoints_dir / "last" / "model.safetensors")
    teacher = open_model(teacher_run)
    batch = next(iter(load_data("texture_data:textures", "test").batches(student.preprocess, 100)))
    with torch.no_grad():
        tokens = student.module.forward_features(batch.images)  # (B, N, C)
        taught = student.module.head_dist(tokens[:, 1]).argmax(1)
        expected = teacher(batch.images).argmax(1)
    assert (taught == expected).double().mean() > 0.6  # chance is 0.25
    # with share 1 nothing teaches the class head: it has only decayed a little from where it began
    fresh = open_model(options.model, "random", seed=0, num_classes=4, **options.model_options).module.head.weight
    head = student.module.head.weight
    assert F.cosine_similarity(head.flatten(), fresh.flatten(), 0) > 0.999


def test_teachers_of_other_classes_or_channels_are_refused(tiny: Tiny, teacher_run: Path) -> None:
    student = open_model("deit_tiny_patch16_224", "random", img_size=16, in_chans=3, **{**SIZE, "num_classes": 5})
    options = tiny(distillation="soft", teacher=str(teacher_run))
    with pytest.raises(VitscopeError, match="knows 4 classes, the student 5"):
        open_teacher(options, student, CPU)
    student = open_model("deit_tiny_patch16_224", "random", img_size=16, in_chans=3, **SIZE)
    with pytest.raises(VitscopeError, match="channel"):
        open_teacher(options, student, CPU)


def test_a_missing_teacher_is_an_error_before_training(tiny: Tiny) -> None:
    with pytest.raises(VitscopeError, match="no model"):
        train(tiny(distillation="hard", teacher="runs/nowhere"))
