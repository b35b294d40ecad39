"""Learnt lenses in the training loop: only the heads learn, they learn what is asked for, and a kill loses nothing."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from vitscope.errors import DataError, VitscopeError
from vitscope.interrupt import Interrupted
from vitscope.models import open_model
from vitscope.models.learnt_lens import attach, without_lenses
from vitscope.training import TrainOptions, train
from vitscope.training.loop import Training
from vitscope.training.refinement import Learner, refinement_loss

SIZES = {"img_size": 16, "patch_size": 4, "in_chans": 1, "embed_dim": 16, "depth": 3, "num_heads": 2, "mlp_ratio": 2.0}


@pytest.fixture(scope="module")
def trained() -> dict[str, str]:
    """Run folders by the options of their models: each is trained once."""
    return {}


@pytest.fixture
def backbone(tiny, trained, tmp_path_factory):
    """A run folder of a small ViT that has learned something; a pooling one where asked for."""

    def made(**options):
        key = str(options)
        if key not in trained:
            out = str(tmp_path_factory.mktemp("backbone") / "run")
            train(tiny(out, model_options={**SIZES, **options}, epochs=4, augment="none"))
            trained[key] = out
        return trained[key]

    return made


@pytest.fixture
def lens(textures, tmp_path):
    """`lens(out name, backbone, **changes)`: options that train a lens on it."""

    def options(out: str, backbone: str, **changes) -> TrainOptions:
        values = {"out": str(tmp_path / out), "data": "texture_data:textures", "epochs": 2, "batch_size": 16}
        return TrainOptions(**{**values, "lr": 5e-3, "progress": False, "refine": backbone, **changes})

    return options


def weights(run) -> dict[str, torch.Tensor]:
    return open_model(run).module.state_dict()


@pytest.mark.parametrize("loss", ["kl", "cross_entropy"])
def test_the_loss_is_its_definition(loss):
    generator = torch.Generator().manual_seed(0)
    read = torch.randn(3, 2, 4, 5, generator=generator, dtype=torch.float64)
    last = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
    labels, expected = torch.tensor([0, 3, 4]), 0.0
    for image in range(3):
        for head in range(2):
            for token in range(4):
                q = [math.exp(v) for v in read[image, head, token].tolist()]
                q = [v / sum(q) for v in q]
                p = [math.exp(v) for v in last[image, token].tolist()]
                p = [v / sum(p) for v in p]
                kl = sum(a * math.log(a / b) for a, b in zip(p, q))
                expected += (kl if loss == "kl" else -math.log(q[int(labels[image])])) / 8
    found = refinement_loss((read, last, read[:, :, 0]), labels, loss)
    assert float(found) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", ["refined", "linear"])
@pytest.mark.parametrize("pooled", [False, True], ids=["class token", "pooled"])
def test_the_heads_learn_and_the_model_stays_to_the_bit(kind, pooled, backbone, lens):
    frozen = backbone(**({"class_token": False, "global_pool": "avg"} if pooled else {}))
    run = train(lens("lens", frozen, refine_kind=kind, epochs=3))
    before, after = weights(frozen), weights(run.path)
    assert {name: v for name, v in without_lenses(after).items() if not torch.equal(v, before[name])} == {}
    history = run.table("training")
    assert history["train_loss"].iloc[-1] < history["train_loss"].iloc[0]
    model = open_model(run.path)
    assert model.lenses == (kind,)
    images = torch.randn(3, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits, cache = model.run_with_cache(images, "blocks.*.hook_resid_post")
        assert torch.equal(logits, open_model(frozen)(images))
        x = cache["blocks.0.hook_resid_post"]
        plain = model.to_class_space(x if kind == "linear" else x[:, 0])
        assert not torch.allclose(model.to_class_space(x, kind, block=0), plain, atol=1e-3)


def test_a_linear_lens_comes_nearer_to_the_last_block_than_the_plain_projection(backbone, lens):
    """KL on held-out pictures, before and after."""
    frozen = backbone()
    options = lens("lens", frozen, refine_kind="linear", epochs=4, refine_tokens=0)
    model = open_model(train(options).path)
    from vitscope.data import load_data

    batch = next(load_data("texture_data:textures", "test").batches(model.preprocess, 41))
    plain = open_model(frozen)
    attach(plain.module, "linear")  # new: the identity
    kl = [
        float(refinement_loss(Learner(m, options)(batch.images), batch.labels, "kl").detach()) / 41
        for m in (plain, model)
    ]
    assert kl[1] < 0.7 * kl[0]


def test_stopped_in_the_middle_it_goes_on_to_the_same_bits(backbone, lens, monkeypatch):
    frozen = backbone()
    straight = train(lens("straight", frozen, refine_kind="linear", refine_tokens=5))
    step = Training.step

    def stopping(self, at, batch):
        step(self, at, batch)
        self.stops = self.stops or at == 7

    monkeypatch.setattr(Training, "step", stopping)
    options = lens("stopped", frozen, refine_kind="linear", refine_tokens=5)
    with pytest.raises(Interrupted):
        train(options)
    monkeypatch.setattr(Training, "step", step)
    resumed = train(options)
    for which in ("last", "best"):
        files = [r.checkpoints_dir / which / "model.safetensors" for r in (straight, resumed)]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_a_second_lens_joins_the_first_and_fine_tuning_leaves_both_behind(backbone, lens, tiny):
    first = train(lens("first", backbone(), epochs=1))
    second = train(lens("second", str(first.path), refine_kind="linear", epochs=1))
    model = open_model(second.path)
    assert model.lenses == ("refined", "linear")
    kept = {name: value for name, value in weights(first.path).items() if name.startswith("transformerheads.")}
    assert all(torch.equal(value, model.module.state_dict()[name]) for name, value in kept.items())
    tuned = train(tiny("tuned", weights=str(second.path), model_options=SIZES, epochs=1))
    assert open_model(tuned.path).lenses == ()


def test_what_makes_no_lens_is_refused_before_anything_is_written(backbone, lens, tiny, tmp_path):
    frozen = backbone()
    with pytest.raises(VitscopeError, match="model_options does not go with refine"):
        lens("lens", frozen, model_options={"depth": 2})
    with pytest.raises(VitscopeError, match="mixup does not go with refine"):
        lens("lens", frozen, mixup=0.8)
    with pytest.raises(VitscopeError, match="--refine RUN --refine-kind linear"):
        lens("lens", "linear")
    with pytest.raises(VitscopeError, match="There is no model 'nothing'"):
        lens("lens", "nothing").check()
    with pytest.raises(DataError, match="4 classes"):
        train(lens("lens", frozen, data="mnist5k"))
    one = tiny("one", model_options={**SIZES, "depth": 1}, epochs=1)
    with pytest.raises(VitscopeError, match="it has one block"):
        train(lens("lens", str(train(one).path)))
    assert not (tmp_path / "lens").exists()


def test_the_command_line_trains_one(backbone, textures, tmp_path, capsys):
    from vitscope.cli.train import main

    words = ["--refine", backbone(), "--refine-kind", "linear", "--data", "texture_data:textures", "--epochs", "1"]
    main([*words, "--batch-size", "16", "--no-progress", "--out", str(tmp_path / "lens")])
    assert open_model(tmp_path / "lens").lenses == ("linear",)
    page = (tmp_path / "lens" / "report.html").read_text(encoding="utf-8")
    assert "are frozen: what learns are the 2 linear heads" in page
    assert Path(tmp_path / "lens" / "report.html").stat().st_size > 0
