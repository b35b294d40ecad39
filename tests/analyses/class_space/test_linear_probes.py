"""Probes trained by one pass and tested by another, against scikit-learn on the activations themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.linear_model import Ridge

from vitscope.analyses import tables_of
from vitscope.analyses.class_space.linear_probes import LinearProbes
from vitscope.analyses.one_pass import measure
from vitscope.data import load_data
from vitscope.errors import DataError, VitscopeError


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two folders of noise pictures in classes 0, 1, 2, 3 of the head: 40 to train on, 20 to test on."""
    root = tmp_path_factory.mktemp("probes")
    rng = np.random.default_rng(0)
    for split, n in (("train", 10), ("val", 5)):
        for label in range(4):
            folder = root / split / str(label)
            folder.mkdir(parents=True)
            for i in range(n):
                pixels = rng.integers(0, 120, (28, 28)) + 30 * label
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{split}{label}{i}.png")
    return root


@pytest.fixture(scope="module")
def small(tools):
    return tools["build"](num_classes=4)


def tensors(model, data):
    batches = list(data.batches(model.preprocess, 7))
    return torch.cat([b.images for b in batches]), torch.cat([b.labels for b in batches])


def test_accuracies_equal_scikit_learns_ridge_on_the_kept_activations(small, folders):
    train, test = load_data(folders, "train"), load_data(folders, "val")
    analysis = LinearProbes(train=str(folders), train_split="train", alphas=[1.0, 100.0], batch_size=7)
    measure(small, test.batches(small.preprocess, 6), [analysis])
    tables = analysis.tables()
    by_position = tables["probe_positions"].set_index(["block", "point", "token", "alpha"])
    (x_train, y_train), (x_test, y_test) = tensors(small, train), tensors(small, test)
    with torch.no_grad():
        caches = [
            small.run_with_cache(x, "blocks.1.hook_mlp_out")[1]["blocks.1.hook_mlp_out"] for x in (x_train, x_test)
        ]
    targets = np.where(y_train.numpy()[:, None] == np.arange(4), 1.0, -1.0)
    hits = []
    for token in [*range(17), -1]:
        pick = (lambda c: c[:, 1:].mean(1)) if token == -1 else (lambda c, t=token: c[:, t])
        for alpha in (1.0, 100.0):
            probe = Ridge(alpha=alpha).fit(pick(caches[0]).double().numpy(), targets)
            guess = probe.predict(pick(caches[1]).double().numpy()).argmax(1)
            accuracy = 100 * (guess == y_test.numpy()).mean()
            assert by_position.loc[1, "mlp_out", token, alpha]["accuracy"] == pytest.approx(accuracy)
            if alpha == 1.0 and token > 0:
                hits.append(accuracy)
    summary = tables["probes"].set_index(["block", "point", "tokens", "alpha"])
    assert summary.loc[1, "mlp_out", "image", 1.0]["accuracy"] == pytest.approx(np.mean(hits))
    with torch.no_grad():
        projected = small.to_class_space(caches[1]).argmax(-1).numpy()
    expected = 100 * (projected[:, 3] == y_test.numpy()).mean()
    assert by_position.loc[1, "mlp_out", 3, 1.0]["projection"] == pytest.approx(expected)
    assert by_position.loc[1, "mlp_out", 3, 1.0]["projection_among"] == pytest.approx(expected)


def test_a_run_trains_once_resumes_and_gives_the_same_tables(small, folders, tmp_path):
    from vitscope.analyses.engine import analyze

    def go(out):
        probes = LinearProbes(train=str(folders), train_split="train", tokens="class,mean", alphas=[1.0])
        return analyze(small, load_data(folders, "val"), [probes], out, report=False, progress=False)

    run = go(tmp_path / "a")
    direct = LinearProbes(train=str(folders), train_split="train", tokens="class,mean", alphas=[1.0])
    measure(small, load_data(folders, "val").batches(small.preprocess, 64), [direct])
    table = direct.tables()["probes"]
    np.testing.assert_allclose(run.table("probes")["accuracy"], table["accuracy"])
    assert set(table["tokens"]) == {"class", "mean"}
    assert not (tmp_path / "a" / "state").exists()


def test_the_control_has_columns_of_its_own(small, folders):
    analysis = LinearProbes(train=str(folders), train_split="train", tokens="class", alphas=[1.0], control="random")
    measure(small, load_data(folders, "val").batches(small.preprocess, 64), [analysis])
    assert "accuracy_control" in tables_of(analysis)["probes"].columns


def test_testing_on_training_images_is_refused(small, folders):
    analysis = LinearProbes(train=str(folders), train_split="train", tokens="class")
    with pytest.raises(DataError, match="training image"):
        measure(small, load_data(folders, "train").batches(small.preprocess, 64), [analysis])


def test_a_copy_of_a_training_image_is_found_behind_names_that_meet_by_chance(small, folders, tmp_path):
    import shutil

    for label in range(4):
        (tmp_path / "val" / str(label)).mkdir(parents=True)
        for i in range(4):  # the same file names as in training, other pictures
            shutil.copy(
                folders / "val" / str(label) / f"val{label}{i}.png",
                tmp_path / "val" / str(label) / f"train{label}{i}.png",
            )
    test = load_data(tmp_path, "val")
    analysis = LinearProbes(train=str(folders), train_split="train", tokens="class")
    measure(small, test.batches(small.preprocess, 64), [analysis])
    shutil.copy(folders / "train" / "3" / "train39.png", tmp_path / "val" / "3")  # and one that is the same
    with pytest.raises(
        DataError, match=r"val/3/train39\.png is a training image of the probes \(train/3/train39\.png\)"
    ):
        measure(small, load_data(tmp_path, "val").batches(small.preprocess, 64), [analysis.fresh()])


def test_probes_that_are_trained_on_other_classes_are_remarked(small, folders, monkeypatch):
    monkeypatch.setattr(small, "classes", list("0123"))
    same, other = (LinearProbes(train=str(folders), train_split="train", tokens="class") for _ in range(2))
    same.start(small)
    assert same.remarks == []
    monkeypatch.setattr(small, "classes", ["cat", "dog", "frog", "ship"])
    other.start(small)
    (remark,) = other.remarks
    assert remark.startswith("of the images that probes are trained on: ")
    assert "called cat, dog" in remark


def test_training_images_must_be_named_and_memory_must_do(small, folders, monkeypatch):
    with pytest.raises(VitscopeError, match=r"probes\.train="):
        measure(small, [], [LinearProbes()])
    import os

    monkeypatch.setattr(os, "sysconf", lambda name: 1000)
    with pytest.raises(VitscopeError, match=r"tokens=class,mean"):
        measure(small, [], [LinearProbes(train=str(folders), train_split="train")])
