"""Saved activations against a plain forward pass with a cache."""

import shutil
from collections import namedtuple

import numpy as np
import pytest
import torch

from vitscope.analyses import analyze
from vitscope.analyses.save import Save, open_saved
from vitscope.data import load_data
from vitscope.errors import NumericalError, RunError, UnsupportedModelError, VitscopeError
from vitscope.models import open_model

SMALL = {"img_size": 28, "patch_size": 7, "in_chans": 1, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 10}
PATTERN, RESIDUAL = "blocks.1.attn.hook_pattern", "blocks.0.hook_resid_post"


@pytest.fixture(scope="module")
def model():
    return open_model("vit_tiny_patch16_224", "random", reg_tokens=2, **SMALL)


@pytest.fixture(scope="module")
def digits():
    return load_data("mnist5k", "test", images=50, masks=False)


@pytest.fixture(scope="module")
def cache(model, digits):
    images = torch.cat([b.images for b in digits.batches(model.preprocess, 50)])
    with torch.no_grad():
        return model.run_with_cache(images, "*")[1]


def save(model, digits, out, **options):
    return analyze(model, digits, {"save": options}, out, batch_size=16, progress=False, report=False)


def test_saved_values_are_those_of_the_forward_pass(model, digits, cache, tmp_path):
    run = save(model, digits, tmp_path / "run", points=["blocks.*.hook_resid_post", PATTERN, "hook_embed"])
    saved = open_saved(run)
    assert set(saved) == {RESIDUAL, "blocks.1.hook_resid_post", PATTERN, "hook_embed"}
    for name, point in saved.items():
        assert point.shape == tuple(cache[name].shape)
        assert np.allclose(point[range(50)], cache[name], atol=1e-6)
    image, value = list(saved[RESIDUAL])[17]
    assert image == 17
    assert np.allclose(value, cache[RESIDUAL][17], atol=1e-6)
    assert isinstance(saved[RESIDUAL].shard(0, 0), np.memmap)


def test_shards_are_bounded_and_the_index_finds_every_image(digits, tmp_path):
    wide = open_model("vit_tiny_patch16_224", "random", **SMALL | {"embed_dim": 512})
    run = save(wide, digits, tmp_path / "run", points=[RESIDUAL], shard_mb=1)
    paths = sorted((tmp_path / "run" / "activations" / RESIDUAL).glob("*.npy"))
    assert len(paths) == 2
    assert max(p.stat().st_size for p in paths) <= 2**20 + 128
    point = open_saved(tmp_path / "run")[RESIDUAL]
    images = torch.cat([b.images for b in digits.batches(wide.preprocess, 50)])
    with torch.no_grad():
        expected = wide.run_with_cache(images, [RESIDUAL])[1][RESIDUAL]
    assert np.allclose(point[[49, 0, 31]], expected[[49, 0, 31]], atol=1e-5)
    assert run.table("saved")["image"].tolist() == list(range(50))


def test_tokens_and_half_precision_and_projection(model, digits, cache, tmp_path):
    run = save(model, digits, tmp_path / "a", points=[RESIDUAL], tokens="class", dtype="float16")
    point = open_saved(run)[RESIDUAL]
    assert point[3].dtype == np.float16
    assert np.allclose(point[range(50)], cache[RESIDUAL][:, :1], atol=2e-3)
    run = save(model, digits, tmp_path / "b", points=[RESIDUAL], tokens="image", project=True)
    with torch.no_grad():
        expected = model.to_class_space(cache[RESIDUAL])[:, 3:]
    assert np.allclose(open_saved(run)[RESIDUAL][range(50)], expected, atol=1e-5)


def test_values_too_large_for_half_precision_are_refused(digits, tmp_path):
    model = open_model("vit_tiny_patch16_224", "random", **SMALL)
    with torch.no_grad():
        model.module.blocks[0].mlp.fc2.bias.fill_(1e5)
    with pytest.raises(NumericalError, match="float32"):
        save(model, digits, tmp_path / "run", points=[RESIDUAL], dtype="float16")


def test_a_disk_too_small_is_refused_before_it_is_full(model, digits, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    needed = 50 * 19 * 32 * 4  # images, tokens, width, bytes
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, needed - 1))
    with pytest.raises(RunError, match=r"would take at least 0\.122 MB"):
        save(model, digits, tmp_path / "run", points=[RESIDUAL])
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, needed))
    assert save(model, digits, tmp_path / "run", points=[RESIDUAL]).status == "finished"


def test_what_cannot_be_saved_is_refused_with_the_reason(model, digits, tmp_path):
    headless = open_model("vit_tiny_patch16_224", "random", **SMALL | {"num_classes": 0})
    tokenless = open_model("vit_tiny_patch16_224", "random", class_token=False, global_pool="avg", **SMALL)
    for wrong, kind, options in [
        (model, VitscopeError, {"points": []}),
        (model, VitscopeError, {"points": ["blocks.9.hook_resid_post"]}),
        (model, VitscopeError, {"points": ["blocks.0.attn.hook_bias"]}),
        (model, VitscopeError, {"points": [PATTERN], "project": True}),
        (model, VitscopeError, {"points": [RESIDUAL], "dtype": "int8"}),
        (model, VitscopeError, {"points": [RESIDUAL], "tokens": "some"}),
        (headless, UnsupportedModelError, {"points": [RESIDUAL], "project": True}),
        (tokenless, UnsupportedModelError, {"points": [RESIDUAL], "tokens": "class"}),
    ]:
        with pytest.raises(kind):
            save(wrong, digits, tmp_path / "run", **options)
        shutil.rmtree(tmp_path / "run", ignore_errors=True)


def test_a_glob_may_cover_points_that_the_model_does_not_have(model, digits, tmp_path):
    saved = open_saved(save(model, digits, tmp_path / "run", points=["blocks.0.attn.*"]))
    assert "blocks.0.attn.hook_bias" not in saved
    assert "blocks.0.attn.hook_q" in saved


def test_save_needs_a_run_folder_and_open_saved_a_run_that_saved():
    analysis = Save(points=[RESIDUAL])
    analysis.start(open_model("vit_tiny_patch16_224", "random", **SMALL))
    with pytest.raises(VitscopeError, match="run folder"):
        analysis.begin()


def test_open_saved_says_when_nothing_was_saved(model, digits, tmp_path):
    run = analyze(model, digits, ["accuracy"], tmp_path / "run", progress=False, report=False)
    with pytest.raises(RunError, match="no saved activations"):
        open_saved(run)


def test_a_damaged_list_of_points_is_named(model, digits, tmp_path):
    run = save(model, digits, tmp_path / "run", points=[RESIDUAL])
    file = tmp_path / "run" / "activations" / "points.json"
    for content in ("[]", "{", f'{{"{RESIDUAL}": 3}}', f'{{"{RESIDUAL}": {{"shape": "wide"}}}}'):
        file.write_text(content)
        with pytest.raises(RunError, match=rf"{file} .*--overwrite"):
            open_saved(run)


def test_texts_are_saved_in_rows_of_as_many_tokens_as_were_asked_for(shared, tmp_path):
    model = open_model(shared / "weights" / "stories260K")
    (tmp_path / "a.txt").write_text("Once upon a time\nTom had a big red ball and a dog\nLily ran")
    how = {"unit": "lines", "context": 24, "batch_size": 2, "progress": False, "report": False}
    points = ["blocks.1.hook_resid_post", "blocks.1.attn.hook_pattern"]
    run = analyze(model, tmp_path / "a.txt", ["save"], tmp_path / "run", save=points, **how)
    saved, tokens = open_saved(run), run.table("saved")["tokens"].tolist()
    text = "Tom had a big red ball and a dog"
    with torch.no_grad():
        _, cache = model.run_with_cache(text, points)
    n = len(model.tokens(text))
    assert tokens[1] == n
    assert saved[points[0]].shape == (3, 24, 64)
    np.testing.assert_allclose(saved[points[0]][1][:n], cache[points[0]][0], atol=1e-5)
    np.testing.assert_allclose(saved[points[1]][1][:, :n, :n], cache[points[1]][0], atol=1e-5)
    assert not saved[points[0]][2][tokens[2] :].any()
    with pytest.raises(VitscopeError, match="context"):
        analyze(model, tmp_path / "a.txt", ["save"], tmp_path / "no", save=points, unit="lines", progress=False)
