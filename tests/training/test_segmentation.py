"""Classes of pixels in the one training loop."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import launch
from vitscope import evaluate, open_model
from vitscope.data import load_data
from vitscope.errors import UnsupportedModelError, VitscopeError
from vitscope.interrupt import Interrupted
from vitscope.training import TrainOptions, recipe_options, train
from vitscope.training.loop import Training
from vitscope.training.schedule import Schedule
from vitscope.training.setup import build_model, build_optimizer, open_data

sys.path.insert(0, str(Path(__file__).parents[1]))
from pixel_model import PixelViT

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., TrainOptions]:
    def options(out: str = "run", **changes: Any) -> TrainOptions:
        values: dict[str, Any] = {
            "out": str(tmp_path / out),
            "data": "pixel_model:uneven",
            "model": "pixel_model:PixelViT",
            "augment": "joint",
            "augment_options": {"smallest": 0.8, "largest": 1.3, "colours": False},
            "epochs": 3,
            "batch_size": 6,
            "lr": 1e-2,
            "progress": False,
        }
        return TrainOptions(**{**values, **changes})

    return options


def test_a_training_tells_colours_apart_and_is_judged_by_mean_iou(tiny: Callable[..., TrainOptions], tmp_path: Path):
    run = train(tiny())
    table = run.table("training")
    assert {"train_mean_iou", "test_mean_iou", "test_mean_accuracy", "test_accuracy"} <= set(table.columns)
    assert table["test_mean_iou"].iloc[-1] > 0.5  # uniform answers have 0.2
    best = run.summary["train.best_mean_iou"]["value"]
    assert best == pytest.approx(100 * table["test_mean_iou"].max())
    model = open_model(run.path)
    assert (model.preprocess.crop_mode, model.classes) == ("short", ["red", "green", "blue"])
    judged = evaluate(model, "pixel_model:uneven", out=tmp_path / "judged", progress=False, report=False)
    found = judged.table("segmentation").set_index("metric")["value"]["mean_iou"]
    assert min(abs(found - 100 * value) for value in table["test_mean_iou"]) < 0.05  # of the last epoch, or the best


def test_a_stopped_training_ends_with_the_same_bits(tiny: Callable[..., TrainOptions], monkeypatch: pytest.MonkeyPatch):
    straight = train(tiny("straight", epochs=2, checkpoint_steps=1))
    step = Training.step

    def stopped(self: Training, at: int, batch: Any) -> None:
        if at == 2 and not stopped_once:
            stopped_once.append(at)
            self.stop.made = True
        step(self, at, batch)

    stopped_once: list[int] = []
    monkeypatch.setattr(Training, "step", stopped)
    with pytest.raises(Interrupted):
        train(tiny("stopped", epochs=2, checkpoint_steps=1))
    again = train(tiny("stopped", epochs=2, checkpoint_steps=1))
    for file in ("tables/training.csv", "checkpoints/last/model.safetensors"):
        assert (straight.path / file).read_bytes() == (again.path / file).read_bytes()


def test_frozen_parts_stay_and_the_others_learn(tiny: Callable[..., TrainOptions]):
    options = tiny(epochs=1, freeze="blocks,patch_embed", model_options={"drop_path_rate": 0.5})
    before = build_model(options, open_data(options).train).module.state_dict()
    after = open_model(train(options).path).module.state_dict()
    for name, value in after.items():
        frozen = name.startswith(("blocks.", "patch_embed."))
        assert torch.equal(value, before[name]) == frozen, name
    with pytest.raises(VitscopeError, match=r"no part 'block'. Did you mean blocks"):
        train(tiny("other", freeze="block"))


def test_parts_learn_at_rates_of_their_own(tiny: Callable[..., TrainOptions]):
    options = tiny(lr_scale={"blocks": 0.1, "blocks.1": 0.5}, epochs=10, schedule="poly", warmup_epochs=0.0)
    module = build_model(options, open_data(options).train).module
    optimizer = build_optimizer(options, module)
    Schedule(options, optimizer, 4).set(0)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    found = {name: rates[id(p)] for name, p in module.named_parameters()}
    assert found["blocks.0.attn.qkv.weight"] == pytest.approx(1e-3)
    assert found["blocks.1.norm1.bias"] == pytest.approx(5e-3)
    assert found["head.weight"] == pytest.approx(1e-2)
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decays[id(module.head.weight)] == 0.05
    assert decays[id(module.head.bias)] == decays[id(module.pos_embed)] == 0
    with pytest.raises(VitscopeError, match="is no factor of the learning rate"):
        build_optimizer(tiny(lr_scale={"head": "slow"}), module)


def test_poly_falls_with_its_power_step_by_step(tiny: Callable[..., TrainOptions]):
    options = tiny(schedule="poly", poly_power=0.9, lr=1e-3, min_lr=1e-5, warmup_epochs=0.0, epochs=5)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1e-3)
    schedule, steps = Schedule(options, optimizer, 8), 40
    found = []
    for step in range(steps):
        schedule.set(step)
        found.append(optimizer.param_groups[0]["lr"])
    expected = 1e-5 + (1e-3 - 1e-5) * (1 - np.arange(steps) / steps) ** 0.9
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_published_settings_are_a_recipe():
    options = recipe_options("segmenter")
    assert (options.optimizer, options.optimizer_options, options.lr) == ("sgd", {"momentum": 0.9}, 1e-3)
    assert (options.weight_decay, options.schedule, options.poly_power, options.min_lr) == (0.0, "poly", 0.9, 1e-5)
    assert (options.batch_size, options.epochs, options.augment, options.augment_options) == (8, 64, "joint", {})
    assert options.model_options["drop_path_rate"] == 0.1
    assert options.model_options["window"] == options.model_options["stride"] == 512
    assert recipe_options("segmenter-small").data == "digit-scenes"


def test_every_option_of_the_published_recipe_is_accepted(tmp_path: Path):
    """Smaller sizes, other pictures; the rest as published."""
    sizes = {"backbone": "vit_tiny_patch16_224", "embed_dim": 16, "depth": 2, "num_heads": 2, "image_size": 32}
    sizes |= {"window": 32, "stride": 32}
    changes: dict[str, Any] = {"data": "pixel_model:uneven", "test_split": "test", "epochs": 1, "workers": 0}
    run = train(recipe_options("segmenter", out=tmp_path / "run", model_options=sizes, progress=False, **changes))
    model = open_model(run.path)
    assert (model.module.window, model.module.stride) == ((32, 32), (32, 32))
    assert model.module.encoder.blocks[1].drop_path1.drop_prob == pytest.approx(0.1)
    assert run.config["options"]["schedule"] == "poly"
    assert 0 <= run.table("training")["test_mean_iou"].iloc[-1] <= 1


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"mixup": 0.8}, "mixup would leave label maps as they are: --augment joint"),
        ({"augment": "flip", "augment_options": {}}, "augment would leave label maps as they are"),
        ({"augment_options": {"mirrored": 1}}, "there is no 'mirrored'. Did you mean mirror"),
        ({"augment_options": {"mirror": "no"}}, "mirror='no' is no number"),
        ({"data": "mnist5k", "model": "vit_tiny_patch16_224"}, "moves label maps along, and mnist5k has none"),
        ({"model_options": {"num_classes": 5}}, "num_classes=5 was asked for, but pixel_model:uneven has 3 classes"),
    ],
)
def test_what_does_not_go_with_label_maps_is_refused(
    tiny: Callable[..., TrainOptions], changes: dict[str, Any], why: str
):
    with pytest.raises(VitscopeError, match=why):
        train(tiny(**changes))
    with pytest.raises(VitscopeError, match="augment_options are those of augment='joint'"):
        tiny(augment="none")


def test_a_model_that_answers_once_per_image_is_refused(tiny: Callable[..., TrainOptions]):
    options = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}
    with pytest.raises(UnsupportedModelError, match="take a `segmenter`"):
        train(tiny(model="vit_tiny_patch16_224", model_options=options))


def test_a_batch_without_a_class_teaches_nothing_and_breaks_nothing(tiny: Callable[..., TrainOptions]):
    """One map of the training part has no class at all: batches of one item are sometimes that one."""
    run = train(tiny(batch_size=1, epochs=1, augment="none", augment_options={}))
    weights = open_model(run.path).module.state_dict()
    assert all(value.isfinite().all() for value in weights.values())


SCRIPT = """
import sys
import torch
from pixel_model import PixelViT
from vitscope import evaluate, open_model
from vitscope.data import load_data
torch.manual_seed(0)
evaluate(open_model(PixelViT()), load_data("pixel_model:uneven"), out=sys.argv[1], corrupt="contrast,gaussian_noise",
         severities="2", progress=False, report=False)
"""


def test_two_processes_give_the_tables_of_one(tmp_path: Path):

    torch.manual_seed(0)
    given: dict[str, Any] = {"corrupt": "contrast,gaussian_noise", "severities": "2", "progress": False}
    one = evaluate(open_model(PixelViT()), load_data("pixel_model:uneven"), out=tmp_path / "one", report=False, **given)
    done = launch.run("-c", SCRIPT, tmp_path / "two", world=2, cwd=tmp_path, env={"PYTHONPATH": str(TESTS)})
    assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in (one.path / "tables").iterdir())
    assert "segmentation_images.csv" in names
    for name in names:
        assert (one.path / "tables" / name).read_bytes() == (tmp_path / "two" / "tables" / name).read_bytes(), name
