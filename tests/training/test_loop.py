from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from vitscope import open_model
from vitscope.data import load_data
from vitscope.data.randomness import permutation
from vitscope.errors import DataError, NumericalError, RunError, VitscopeError, WeightsError
from vitscope.training import TrainOptions, augment, loop, train
from vitscope.training.checkpoint import LAST, load_checkpoint

Tiny = Callable[..., TrainOptions]


def test_it_learns_and_the_run_folder_opens_as_a_model(tiny: Tiny) -> None:
    run = train(tiny(epochs=12))
    table = run.table("training")
    assert list(table.columns) == ["epoch", "lr", "train_loss", "train_accuracy", "test_loss", "test_accuracy"]
    assert table["epoch"].tolist() == list(range(1, 13))
    assert run.status == "finished"
    # an independent look at the saved weights finds the accuracy and the loss that the table claims
    model = open_model(run.path, run.checkpoints_dir / LAST / "model.safetensors")
    data = load_data("texture_data:textures", "test")
    batch = next(iter(data.batches(model.preprocess, 100)))
    with torch.no_grad():
        logits = model(batch.images)
    assert (logits.argmax(1) == batch.labels).double().mean() == table["test_accuracy"].iloc[-1]
    assert F.cross_entropy(logits, batch.labels).item() == pytest.approx(table["test_loss"].iloc[-1], rel=1e-5)
    assert table["test_accuracy"].iloc[-1] > 0.9
    assert model.classes == ["dark", "bright", "across", "down"]
    assert model.num_classes == 4
    assert run.summary["train.test_accuracy"]["value"] == pytest.approx(100 * table["test_accuracy"].iloc[-1])
    assert run.summary["train.best_accuracy"]["value"] == pytest.approx(100 * table["test_accuracy"].max())


def test_an_epoch_is_plain_adamw_over_the_order_of_the_epoch(tiny: Tiny) -> None:
    plain = {"img_size": 16, "patch_size": 4, "in_chans": 1, "embed_dim": 16, "depth": 1, "num_heads": 2}
    options = tiny(
        model_options=plain,
        optimizer="adamw",
        augment="none",
        epochs=1,
        schedule="constant",
        warmup_epochs=0.0,
        clip_grad=None,
        lr=1e-3,
    )
    run = train(options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = open_model(options.model, "random", seed=0, num_classes=4, **plain).module.train()
    images = torch.stack([
        torch.from_numpy(np.array(item.image, dtype=np.float32))[None] / 127.5 - 1
        for item in load_data("texture_data:textures", "train")
    ])  # fmt: skip
    labels = torch.arange(96) % 4
    decayed = [p for p in module.parameters() if p.ndim > 1 and p.shape[0] != 1]
    others = [p for p in module.parameters() if not any(p is d for d in decayed)]
    optimizer = torch.optim.AdamW(
        [{"params": others, "weight_decay": 0.0}, {"params": decayed}], 1e-3, weight_decay=0.05
    )
    for chosen in torch.tensor(permutation(96, 0, 0)).view(6, 16):
        optimizer.zero_grad()
        F.cross_entropy(module(images[chosen]), labels[chosen]).backward()
        optimizer.step()
    saved = load_checkpoint(run.checkpoints_dir / LAST).weights
    for name, value in module.state_dict().items():
        assert torch.allclose(saved[name], value, atol=2e-5), name


def test_the_rate_warms_up_and_then_follows_a_cosine(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    real = loop.Schedule

    def spying(options: TrainOptions, optimizer: torch.optim.Optimizer, steps: int) -> object:
        optimizer.register_step_post_hook(lambda o, *_: rates.append(o.param_groups[0]["lr"]))
        return real(options, optimizer, steps)

    monkeypatch.setattr(loop, "Schedule", spying)
    train(tiny(epochs=3, lr=1e-2, warmup_epochs=0.5, warmup_lr=1e-4, min_lr=1e-3))
    step = np.arange(18)
    cosine = 1e-3 + 0.5 * (1e-2 - 1e-3) * (1 + np.cos(np.pi * step / 18))
    expected = np.where(step < 3, 1e-4 + (1e-2 - 1e-4) * step / 3, cosine)
    assert np.allclose(rates, expected)


def test_nothing_of_the_callers_randomness_or_modes_is_touched(tiny: Tiny) -> None:
    torch.manual_seed(5), np.random.seed(6), random.seed(7)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    train(tiny(epochs=1, probe=("accuracy",), probe_images=8))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert random.getstate() == before[2]


def test_a_nan_loss_stops_names_the_step_and_keeps_the_last_good_checkpoint(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = augment.EpochAugmentation.__call__
    seen = iter(range(100))

    def poisoned(self: object, images: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return real(self, images, indices) * (float("nan") if next(seen) == 8 else 1)

    monkeypatch.setattr(augment.EpochAugmentation, "__call__", poisoned)
    with pytest.raises(NumericalError, match=r"nan at step 8 \(step 2 of 6 in epoch 2\)") as caught:
        train(tiny())
    assert "smaller lr" in str(caught.value)
    assert "First to be bad: the images of the batch" in str(caught.value)
    folder = Path(tiny().out)
    checkpoint = load_checkpoint(folder / "checkpoints" / LAST)
    assert checkpoint.state["progress"]["epoch"] == 1
    assert all(value.isfinite().all() for value in checkpoint.weights.values())
    assert open_model(folder).num_classes == 4


def test_weights_that_explode_are_not_saved(tiny: Tiny) -> None:
    options = tiny(lr=1e30, warmup_epochs=0.0, clip_grad=None, batch_size=96)  # one step per epoch
    with pytest.raises(NumericalError):
        train(options)
    assert not (Path(options.out) / "checkpoints" / LAST).exists()


def test_another_configuration_is_refused_with_the_difference(tiny: Tiny) -> None:
    train(tiny(epochs=1))
    with pytest.raises(RunError, match=r"options\.lr: 0\.005 -> 0\.001"):
        train(tiny(epochs=1, lr=1e-3))
    assert train(tiny(epochs=1, workers=1)).status == "finished"  # does not change results
    assert train(tiny(epochs=1, lr=1e-3, overwrite=True)).table("training") is not None


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"batch_size": 97}, DataError, "larger than the 96 training images"),
        ({"model_options": {"num_classes": 7}}, VitscopeError, "num_classes=7 .* has 4 classes"),
        ({"model": "vit_tinny_patch16_224"}, VitscopeError, "Did you mean vit_tiny"),
        ({"model_options": {"no_such_thing": 1}}, VitscopeError, "no_such_thing"),
        ({"optimizer": "adamv"}, VitscopeError, "Did you mean adam"),
        ({"data": "mnist5q"}, DataError, "Did you mean mnist5k"),
        ({"probe": ("acuracy",)}, VitscopeError, "Did you mean accuracy"),
        ({"attention": "rpc:layers=0-2"}, VitscopeError, "names block 2, but the model has 2 blocks"),
        ({"attention": "rpq"}, VitscopeError, "Did you mean rpc"),
        ({"weights": "nowhere.safetensors"}, WeightsError, "No weights at nowhere.safetensors"),
        ({"randaugment": "augmix-m3"}, VitscopeError, "timm writes it as"),
        ({"distillation": "hard", "teacher": "vit_tinny"}, VitscopeError, "no model 'vit_tinny'"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    tiny: Tiny, changes: dict, error: type[VitscopeError], words: str
) -> None:
    options = tiny(**changes)
    with pytest.raises(error, match=words):
        train(options)
    assert not Path(options.out).exists()


def test_a_single_class_is_nothing_to_learn(tiny: Tiny, textures: Path) -> None:
    (textures / "one_class.py").write_text(
        "import numpy as np\ndef same():\n    return np.zeros((20, 16, 16), np.uint8), [0] * 20, ['all']\n"
    )
    with pytest.raises(DataError, match="1 class"):
        train(tiny(data="one_class:same", batch_size=4))


def test_unreadable_images_are_left_out_and_listed(tiny: Tiny, tmp_path: Path) -> None:
    from PIL import Image

    for split, n in (("train", 24), ("val", 8)):
        for i in range(n):
            folder = tmp_path / "pictures" / split / f"class{i % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.new("L", (16, 16), 200 * (i % 2)).save(folder / f"{i:02d}.png")
    broken = tmp_path / "pictures" / "train" / "class0" / "00.png"
    broken.write_bytes(broken.read_bytes()[:40])
    run = train(tiny(data=str(tmp_path / "pictures"), epochs=2, batch_size=8))
    assert run.skipped["path"].str.endswith("class0/00.png").tolist() == [True]
    assert any("1 images could not be read" in w for w in run.warnings)
    with pytest.raises(DataError, match="class0/00"):
        train(tiny("strict", data=str(tmp_path / "pictures"), epochs=2, batch_size=8, strict=True))
