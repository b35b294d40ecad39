"""Published settings and formulas of the trainings, written out again without timm or vitscope, against vitscope's."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import curve_fit
from torch import nn

from vitscope import open_model
from vitscope.analyses.separation import compare_fits
from vitscope.data import load_data
from vitscope.data.transforms import build_transform
from vitscope.errors import VitscopeError
from vitscope.training import TrainOptions, recipe_options, train
from vitscope.training.picture_augment import PictureAugmentation
from vitscope.training.schedule import Schedule, rate_noise
from vitscope.training.setup import build_model, build_optimizer, probe_data

EPOCHS, STEPS, WARM, START, PEAK, LEAST = 12, 5, 2, 1e-6, 1e-3, 1e-5  # warmed up over 2 epochs of 5 steps
EVERY_WEIGHT_DECAYS = {"filter_bias_and_bn": False}
ACCURACIES = [0.1, 0.2, 0.3, 0.29, 0.3, 0.28, 0.31, 0.31, 0.31, 0.31, 0.30, 0.2]


def rates(accuracies: list[float] | None = None, **changes: object) -> list[float]:
    """What vitscope sets, step by step."""
    settings: dict = {"epochs": EPOCHS, "lr": PEAK, "warmup_epochs": WARM, "warmup_lr": START, "min_lr": LEAST}
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=PEAK)
    schedule = Schedule(TrainOptions(**{**settings, **changes}), optimizer, STEPS)
    found = []
    for step in range(EPOCHS * STEPS):
        schedule.set(step, (accuracies or [])[: step // STEPS])
        found.append(optimizer.param_groups[0]["lr"])
    return found


def warmed(t: float, after: float) -> float:
    return START + t * (PEAK - START) / WARM if t < WARM else after


def cosine(t: float) -> float:
    return warmed(t, LEAST + (PEAK - LEAST) * (1 + math.cos(math.pi * t / EPOCHS)) / 2)


def falling(t: float) -> float:
    return warmed(t, PEAK * 0.3 ** math.floor(t / 4))


@pytest.mark.parametrize(("schedule", "curve"), [("cosine", cosine), ("step", falling)])
def test_a_rate_follows_its_curve_by_step_by_epoch_or_an_epoch_late_as_deit(schedule, curve):
    settings = {"schedule": schedule, "decay_epochs": 4.0, "decay_rate": 0.3}
    epochs = [epoch for epoch in range(EPOCHS) for _ in range(STEPS)]
    expected = {
        "step": [curve(step / STEPS) for step in range(EPOCHS * STEPS)],
        "epoch": [curve(epoch) for epoch in epochs],
        "late": [curve(max(epoch - 1, 0)) for epoch in epochs],  # DeiT's first two epochs have the first rate
    }
    for rate_set, curve_there in expected.items():
        np.testing.assert_allclose(rates(rate_set=rate_set, **settings), curve_there, rtol=1e-6)


def plateau(accuracies: list[float], patience: int, factor: float) -> list[float]:
    """The rate of each epoch: after more than `patience` epochs without an accuracy better by 1e-4 of it, it falls."""
    found, rate, best, bad = [START], PEAK, -math.inf, 0
    for ended, accuracy in enumerate(accuracies[: EPOCHS - 1], start=1):
        if ended > WARM:
            better = accuracy > best * (1 + 1e-4) if best > -math.inf else True
            best, bad = (accuracy, 0) if better else (best, bad + 1)
            if bad > patience:
                rate, bad = max(rate * factor, LEAST), 0
        found.append(START + ended * (PEAK - START) / WARM if ended <= WARM else rate)
    return found


@pytest.mark.parametrize("patience", [0, 1, 3])
def test_a_plateau_waits_for_the_held_out_accuracy(patience):
    expected = np.repeat(plateau(ACCURACIES, patience, 0.5), STEPS)
    found = rates(ACCURACIES, schedule="plateau", patience_epochs=patience, decay_rate=0.5)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert len(set(found)) > 3


def noise(seed: int, epoch: int, limit: float) -> float:
    generator = torch.Generator().manual_seed(seed + epoch)
    while abs(draw := torch.randn(1, generator=generator).item()) >= limit:
        pass
    return draw


@pytest.mark.parametrize("rate_set", ["step", "epoch", "late"])
def test_noise_on_the_rate_is_a_function_of_seed_and_epoch(rate_set):
    plain = np.array(rates(schedule="step", rate_set=rate_set))
    noisy = rates(schedule="step", rate_set=rate_set, lr_noise=(0.25, 0.75), lr_noise_pct=0.5, seed=7)
    counted = np.repeat(np.arange(EPOCHS), STEPS) - (rate_set == "late")
    factors = [1 + noise(7, int(t), 0.5) if 3 <= t < 9 else 1 for t in counted]
    np.testing.assert_allclose(noisy, plain * factors, rtol=1e-6)
    assert rate_noise(7, 3, 0.5, deviation=0.01) == pytest.approx(0.01 * noise(7, 3, 50), rel=1e-6)


def test_a_plateau_with_noise_falls_from_the_rate_without_it():
    plain = rates(ACCURACIES, schedule="plateau", patience_epochs=1)
    noisy = rates(ACCURACIES, schedule="plateau", patience_epochs=1, lr_noise=(0.5,))
    factors = np.repeat([1 + noise(0, e, 0.67) if e >= 6 else 1 for e in range(EPOCHS)], STEPS)
    np.testing.assert_allclose(noisy, plain * factors, rtol=1e-6)


def test_the_rate_of_the_deit_recipe_in_its_own_epochs():
    """1e-3 for batches of 1,024; warm-up over 5 epochs from 1e-6, of which epoch 0 is seen twice; then the cosine."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1e-3)
    schedule = Schedule(recipe_options("deit", rate_set="late"), optimizer, 1251)
    for epoch, expected in [
        (0, 1e-6),
        (1, 1e-6),
        (2, 1e-6 + (1e-3 - 1e-6) / 5),
        (151, 1e-5 + (1e-3 - 1e-5) * (1 + math.cos(math.pi * 150 / 300)) / 2),
        (299, 1e-5 + (1e-3 - 1e-5) * (1 + math.cos(math.pi * 298 / 300)) / 2),
    ]:
        schedule.set(epoch * 1251 + 17)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(expected, rel=1e-6)


def test_random_erasing_fills_a_box_as_its_mode_says():
    from PIL import Image

    from vitscope.data.randomness import preserved_globals, seed_globals
    from vitscope.models import Preprocess

    recipe = Preprocess((3, 32, 32), (0.5,) * 3, (0.5,) * 3)
    grey = Image.new("RGB", (32, 32), (255, 255, 255))  # 1 after normalisation
    for mode, colours in [("const", 1), ("rand", 1), ("pixel", 2)]:
        augment = PictureAugmentation(recipe, TrainOptions(erase=1.0, erase_mode=mode))
        with preserved_globals():
            seed_globals(3)
            x = augment(grey, torch.Generator())
        box = (x[0] != 1).nonzero()
        (top, left), (bottom, right) = box.min(0).values, box.max(0).values
        inside = x[:, top : bottom + 1, left : right + 1].flatten(1)
        assert len(box) == inside.shape[1]  # one rectangle
        assert 0.02 * 0.8 < len(box) / 32**2 < 1 / 3 * 1.2
        assert min(len(set(channel.tolist())) for channel in inside) >= colours
        assert (mode == "const") == (not inside.any())


def start_of(**changes: object) -> dict[str, torch.Tensor]:
    data = load_data("mnist5k", "train", images=20)
    model = {"depth": 1, "img_size": 32}
    settings: dict = {"model": "deit_tiny_patch16_224", "model_options": model, "attention": "symmetric", **changes}
    return build_model(TrainOptions(**settings), data).module.state_dict()


def test_a_training_can_start_as_a_program_that_forgets_to_call_its_initialiser():
    """Uniform within 1 / sqrt(inputs), biases too, instead of timm's normal 0.02 and biases of 0."""
    theirs, ours = start_of(init="torch"), start_of()
    layers = [key.removesuffix(".weight") for key in ours if key.endswith(("qkv.weight", "proj.weight", "fc1.weight"))]
    for layer in (name for name in layers if name != "patch_embed.proj"):
        bound = 192**-0.5
        assert 0.98 * bound < theirs[f"{layer}.weight"].abs().max() <= bound
        assert theirs[f"{layer}.bias"].std() == pytest.approx(bound / math.sqrt(3), rel=0.1)
        assert ours[f"{layer}.weight"].std() == pytest.approx(0.02, rel=0.05)
        assert not ours[f"{layer}.bias"].any()
    for name in ("cls_token", "pos_embed"):
        assert theirs[name].std() == pytest.approx(0.02, rel=0.25)
    assert all(torch.equal(a, b) for a, b in zip(theirs.values(), start_of(init="torch").values()))
    with pytest.raises(VitscopeError, match="as the memory happens to be"):
        start_of(model_options={"weight_init": "skip"})


def test_the_studys_small_model_has_a_width_of_348():
    model = open_model("deit_small_patch16_224", "random", embed_dim=348)
    assert (model.layout.width, model.layout.heads) == (348, 6)
    assert sum(p.numel() for p in model.module.parameters()) == 18_179_476
    assert sum(p.numel() for p in open_model("deit_small_patch16_224", "random").module.parameters()) == 22_050_664


class StudysLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(64, 8, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(64), nn.LayerNorm(64)
        self.mlp = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64), nn.Dropout(0.2))

    def forward(self, x):  # (B, N, C)
        x = self.norm1(x + self.attn(x, x, x, need_weights=False)[0])
        return self.norm2(x + self.mlp(x))


def studys(state: dict[str, torch.Tensor]) -> tuple[nn.ModuleList, dict]:
    """The study's encoder on PyTorch's own parts, with the weights of `small`."""
    names = {"attn.in_proj_": "attn.qkv.", "attn.out_proj.": "attn.proj.", "mlp.0": "mlp.fc1", "mlp.2": "mlp.fc2"}
    layers = nn.ModuleList(StudysLayer() for _ in range(7))
    for i, layer in enumerate(layers):
        own = {}
        for key in layer.state_dict():
            ours = key
            for theirs, timms in names.items():
                ours = ours.replace(theirs, timms)
            own[key] = state[f"blocks.{i}.{ours}"]
        layer.load_state_dict(own)
    return layers, state


def studys_answer(layers: nn.ModuleList, w: dict, images: torch.Tensor) -> torch.Tensor:
    x = F.conv2d(images, w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], stride=7).flatten(2).mT
    x = torch.cat([w["cls_token"].expand(len(x), -1, -1), x], 1) + w["pos_embed"]
    for layer in layers:
        x = layer(x)
    return F.linear(x[:, 0], w["head.weight"], w["head.bias"])


@pytest.fixture(scope="module")
def recipes_model():
    options = recipe_options("small", data="mnist5k")
    return build_model(options, load_data("mnist5k", "train", images=100))


def test_the_recipes_model_answers_as_the_studys_in_evaluation_and_with_its_dropout(recipes_model):
    module = recipes_model.module.double()
    state = {k: v.clone() for k, v in module.state_dict().items()}
    layers, w = studys(state)
    layers.double()
    images = torch.randn(5, 1, 28, 28, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.testing.assert_close(module.eval()(images), studys_answer(layers.eval(), w, images), rtol=0, atol=1e-6)
        answers = []
        for answer in (lambda: module.train()(images), lambda: studys_answer(layers.train(), w, images)):
            torch.manual_seed(3)
            answers.append(answer())
        torch.testing.assert_close(*answers, rtol=0, atol=1e-6)  # one mask per block, in the same place
        assert not torch.allclose(answers[0], module.eval()(images), atol=1e-3)
    module.float()


def test_the_recipes_model_starts_as_the_studys(recipes_model):
    """PyTorch's MultiheadAttention: Xavier over (3 C, C), biases 0; its other layers uniform in +-1 / sqrt(inputs)."""
    w = recipes_model.module.state_dict()
    bounds = {
        "blocks.3.attn.qkv.weight": math.sqrt(6 / (3 * 64 + 64)),
        "blocks.3.attn.proj.weight": 1 / math.sqrt(64),
        "blocks.3.mlp.fc1.weight": 1 / math.sqrt(64),
        "blocks.3.mlp.fc2.weight": 1 / math.sqrt(128),
        "patch_embed.proj.weight": 1 / math.sqrt(49),
        "head.weight": 1 / math.sqrt(64),
    }
    for name, bound in bounds.items():
        assert w[name].abs().max() <= bound
        assert w[name].abs().max() > 0.98 * bound
        assert w[name].std() == pytest.approx(bound / math.sqrt(3), rel=0.05)
    for name in ("cls_token", "pos_embed", "blocks.3.attn.qkv.bias", "blocks.3.attn.proj.bias"):
        assert not w[name].any()
    assert w["blocks.3.mlp.fc1.bias"].any()


def test_the_recipe_normalises_as_the_study(recipes_model):
    data = load_data("mnist5k", "train", images=3)
    x, _ = build_transform(recipes_model.preprocess)(data.read(0).image)
    pixels = np.asarray(data.read(0).image.convert("L"), dtype=np.float64)[None] / 255
    np.testing.assert_allclose(x.numpy(), (pixels - 0.1307) / 0.3081, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (torch.optim.Adam, {}),
        (torch.optim.AdamW, {"optimizer": "adamw", "weight_decay": 0.01, "optimizer_options": EVERY_WEIGHT_DECAYS}),
        (torch.optim.SGD, {"optimizer": "momentum", "optimizer_options": {"momentum": 0.0}}),
        (torch.optim.ASGD, {"optimizer": "asgd"}),
    ],
)  # fmt: skip
def test_optimizers_of_the_studys_sweep_are_pytorchs_with_their_defaults(theirs, ours):
    weights = []
    for build in (
        lambda net: theirs(net.parameters(), lr=1e-3),
        lambda net: build_optimizer(recipe_options("small", **ours), net),
    ):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3)).double()
            optimizer = build(net)
            for _ in range(4):
                optimizer.zero_grad()
                net(torch.randn(5, 4, dtype=torch.float64)).square().sum().backward()
                optimizer.step()
        weights.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
    torch.testing.assert_close(*weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "values", [[292.3, 27.4, 16.5, 12.5, 9.08, 6.98, 6.18], [25, 20, 18, 17, 16.5, 16.2, 16]], ids=str
)
def test_the_published_fit_of_seven_layers_is_one_of_ours(values):
    def decay(x, a, b, c):
        return a * np.exp(-b * x) + c

    x, y = np.arange(1, 8), np.array(values)
    found, _ = curve_fit(decay, x, y, p0=(100, 0.1, 0), maxfev=2000)
    r2 = 1 - ((y - decay(x, *found)) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    (ours,) = (fit for fit in compare_fits(x.tolist(), values) if (fit.curve, fit.errors) == ("exponential", "D"))
    np.testing.assert_allclose((ours.a, ours.b, ours.c), found, rtol=1e-5)
    assert ours.r2 == pytest.approx(r2, abs=1e-6)


def published_fuzziness(features: np.ndarray, labels: np.ndarray) -> float:
    """trace(SSW pinv(SSB)) with every class alike, through a full pseudo-inverse."""
    centred = features - features.mean(0)
    within, between = (np.zeros((features.shape[1],) * 2) for _ in range(2))
    for k in range(10):
        own = centred[labels == k]
        within += (own - own.mean(0)).T @ (own - own.mean(0)) / len(own) / 10
        between += np.outer(own.mean(0), own.mean(0)) / 10
    return float(np.trace(within @ np.linalg.pinv(between, rcond=1e-10)))


def test_probes_of_the_recipe_measure_all_images_as_the_study_does(tmp_path: Path):
    options = recipe_options(
        "small", data="mnist5k", share=0.1, epochs=1, model_options={"depth": 2}, probe=("separation",),
        probe_splits=("train",), out=tmp_path / "run", progress=False,
    )  # fmt: skip
    run = train(options)
    table = run.table("probe_separation")
    assert set(table["images"]) == {400}  # all that it learned from
    data = probe_data(options, "train")
    model = open_model(run.path, run.checkpoints_dir / "last" / "model.safetensors")
    parts: dict[str, list] = {"pixels": [], "block1": [], "block2": [], "logits": [], "labels": []}
    for batch in data.batches(model.preprocess, 64):
        with torch.no_grad():
            logits, cache = model.run_with_cache(batch.images, "blocks.*.hook_resid_post")
        tokens = [cache[f"blocks.{i}.hook_resid_post"][:, 0] for i in range(2)]
        for values, found in zip(parts.values(), (batch.images.flatten(1), *tokens, logits, batch.labels)):
            values.append(found)
    features = {name: torch.cat(values).double().numpy() for name, values in parts.items()}
    expected = [published_fuzziness(features[name], features["labels"]) for name in list(parts)[:4]]
    rows = table[(table["epoch"] == 1) & (table["token"].fillna("") != "mean") & (table["point"] != "embedding")]
    np.testing.assert_allclose(rows["fuzziness"].tolist(), expected, rtol=1e-6)
    saved = json.loads((run.path / "model.json").read_text())
    assert saved["kwargs"]["norm_eps"] == 1e-5
    assert saved["preprocess"]["mean"] == [0.1307]
