"""Teachers that are no ViT: nothing looks into them, they only have to answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from vitscope.errors import VitscopeError, WeightsError
from vitscope.training import TrainOptions, train
from vitscope.training.teachers import Classifier, open_answers

Tiny = Callable[..., TrainOptions]
CPU = torch.device("cpu")


@pytest.fixture
def network() -> torch.nn.Module:
    """A convolutional network for four classes, whose batch norms have seen something."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = timm.create_model("regnety_002", num_classes=4)
        module.train()(torch.randn(8, 3, 32, 32))
    return module.eval()


@pytest.mark.parametrize("kind", ["safetensors", "pth", "checkpoint"])
def test_a_convolutional_network_opens_from_a_file_and_answers_as_it_does(
    tmp_path: Path, network: torch.nn.Module, kind: str
) -> None:
    file = tmp_path / ("cnn.safetensors" if kind == "safetensors" else "cnn.pth")
    state = network.state_dict()
    if kind == "safetensors":
        save_file(state, file)
    else:
        torch.save(state if kind == "pth" else {"model": state, "epoch": 3}, file)
    before = torch.random.get_rng_state()
    teacher = open_answers("regnety_002", file, CPU)
    assert torch.equal(before, torch.random.get_rng_state())
    assert isinstance(teacher, Classifier)
    assert (teacher.num_classes, teacher.preprocess.input_size) == (4, (3, 224, 224))
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    assert torch.equal(teacher(images), network(images))
    assert not any(p.requires_grad for p in teacher.module.parameters())


def test_a_student_learns_from_it(tiny: Tiny, tmp_path: Path, network: torch.nn.Module) -> None:
    save_file(network.state_dict(), tmp_path / "cnn.safetensors")
    taught = {"distillation": "soft", "teacher": "regnety_002", "teacher_weights": str(tmp_path / "cnn.safetensors")}
    model = {**tiny().model_options, "img_size": 16}
    run = train(tiny("taught", epochs=1, batch_size=48, share=0.5, model_options=model, **taught))
    plain = train(tiny("plain", epochs=1, batch_size=48, share=0.5, model_options=model))
    assert run.status == "finished"
    assert run.table("training")["train_loss"][0] != plain.table("training")["train_loss"][0]


def test_a_grey_teacher_and_one_of_other_classes_are_known_by_their_weights(tmp_path: Path) -> None:
    grey = timm.create_model("resnet18", num_classes=7, in_chans=1)
    torch.save(grey.state_dict(), tmp_path / "grey.pth")
    teacher = open_answers("resnet18", tmp_path / "grey.pth", CPU)
    assert (teacher.num_classes, teacher.preprocess.input_size) == (7, (1, 224, 224))
    assert F.softmax(teacher(torch.zeros(1, 1, 32, 32)), 1).shape == (1, 7)


class Evil:
    def __reduce__(self) -> tuple:
        return (print, ("run",))


def test_a_file_that_would_run_code_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"model": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(WeightsError):
        open_answers("regnety_002", tmp_path / "evil.pth", CPU)
    assert "run" not in capsys.readouterr().out


def test_other_weights_missing_ones_and_unknown_names_are_errors(tmp_path: Path, network: torch.nn.Module) -> None:
    torch.save(network.state_dict(), tmp_path / "cnn.pth")
    with pytest.raises(WeightsError, match="another architecture"):
        open_answers("resnet18", tmp_path / "cnn.pth", CPU)
    with pytest.raises(WeightsError, match="No weights at"):
        open_answers("resnet18", tmp_path / "nowhere.pth", CPU)
    with pytest.raises(VitscopeError, match="Did you mean regnety_160"):
        open_answers("regnety_16", tmp_path / "cnn.pth", CPU)
