from __future__ import annotations

import numpy as np
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitscope.analyses.separation import Separation, fuzziness, fuzziness_from_moments, pixel_fuzziness
from vitscope.data import load_data
from vitscope.errors import DataError, VitscopeError
from vitscope.models import open_model


def by_pseudo_inverse(x, labels, averaging):
    """The definition, with d x d matrices, in numpy."""
    x, labels = np.asarray(x, dtype=np.float64), np.asarray(labels)
    classes, counts = np.unique(labels, return_counts=True)
    weights = np.full(len(classes), 1 / len(classes)) if averaging == "class" else counts / counts.sum()
    between, within = np.zeros((x.shape[1],) * 2), np.zeros((x.shape[1],) * 2)
    for k, n, w in zip(classes, counts, weights):
        mine = x[labels == k]
        centre = mine.mean(0)
        between += w * np.outer(centre - x.mean(0), centre - x.mean(0))
        within += w / n * (mine - centre).T @ (mine - centre)
    return np.trace(within @ np.linalg.pinv(between, rcond=1e-10, hermitian=True))


def moments(x, labels, k):
    counts = torch.bincount(labels, minlength=k)
    sums = torch.zeros(k, x.shape[1], dtype=torch.float64).index_add_(0, labels, x)
    return counts, sums, torch.stack([x[labels == j].T @ x[labels == j] for j in range(k)])


def cloud(seed, n=120, d=9, k=4, spread=2.0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(k, (n,), generator=generator)
    centres = spread * torch.randn(k, d, generator=generator, dtype=torch.float64)
    return centres[labels] + torch.randn(n, d, generator=generator, dtype=torch.float64), labels


def test_the_published_program_is_reproduced(shared):
    golden = np.load(shared / "golden/fuzziness.npz")
    for i in range(3):
        x, labels = torch.tensor(golden[f"{i}_features"]), torch.tensor(golden[f"{i}_labels"])
        assert fuzziness(x, labels) == pytest.approx(float(golden[f"{i}_fuzziness"]), abs=1e-9)


@given(seed=st.integers(0, 10_000), averaging=st.sampled_from(["class", "samples"]), d=st.integers(2, 12))
@settings(max_examples=40, deadline=None)
def test_subspace_and_streamed_forms_equal_the_pseudo_inverse(seed, averaging, d):
    x, labels = cloud(seed, d=d)
    expected = by_pseudo_inverse(x, labels, averaging)
    assert fuzziness(x, labels, averaging) == pytest.approx(expected, rel=1e-7)
    assert fuzziness_from_moments(*moments(x, labels, 5), averaging) == pytest.approx(expected, rel=1e-6)


@given(seed=st.integers(0, 10_000), scale=st.floats(1e-3, 1e3))
@settings(max_examples=25, deadline=None)
def test_rotation_shift_and_scale_change_nothing(seed, scale):
    x, labels = cloud(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    rotation = torch.linalg.qr(torch.randn(9, 9, generator=generator, dtype=torch.float64))[0]
    moved = scale * (x @ rotation) + torch.randn(9, generator=generator, dtype=torch.float64)
    assert fuzziness(moved, labels) == pytest.approx(fuzziness(x, labels), rel=1e-8)


def test_the_two_averages_agree_for_balanced_classes_only():
    x, _ = cloud(3)
    balanced, skewed = torch.arange(120) % 4, (torch.arange(120) % 7).clamp(max=3)
    assert fuzziness(x, balanced, "class") == pytest.approx(fuzziness(x, balanced, "samples"))
    assert fuzziness(x, skewed, "class") != pytest.approx(fuzziness(x, skewed, "samples"), rel=1e-3)


def test_tighter_classes_are_less_fuzzy_by_the_square_of_their_radius():
    x, labels = cloud(5)
    centres = torch.stack([x[labels == k].mean(0) for k in range(4)])[labels]
    halved = centres + (x - centres) / 2
    assert fuzziness(halved, labels) == pytest.approx(fuzziness(x, labels) / 4)


@pytest.fixture(scope="module")
def digits():
    return load_data("mnist5k", "test", images=200)


@pytest.fixture(scope="module")
def model():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        options = {"img_size": 28, "patch_size": 7, "in_chans": 1, "embed_dim": 24, "depth": 2, "num_heads": 2}
        return open_model(timm.create_model("vit_tiny_patch16_224", num_classes=10, **options))


def test_every_row_equals_the_definition_on_the_activations(model, digits):
    from vitscope.analyses.one_pass import measure

    analysis = Separation()
    analysis.prepare(digits, model)
    measure(model, digits.batches(model.preprocess, 64), [analysis])
    (batch,) = digits.batches(model.preprocess, 200)
    with torch.no_grad():
        logits, cache = model.run_with_cache(batch.images, ["blocks.0.hook_resid_pre", "blocks.*.hook_resid_post"])
    streams = [cache["blocks.0.hook_resid_pre"], *(cache[f"blocks.{i}.hook_resid_post"] for i in range(2))]
    expected = {("pixels", "", 0): batch.images.flatten(1), ("logits", "", 3): logits}
    for layer, x in enumerate(streams):
        point = "block" if layer else "embedding"
        expected |= {(point, "class", layer): x[:, 0], (point, "mean", layer): x[:, 1:].mean(1)}
    table = analysis.tables()["separation"].set_index(["point", "token", "layer"])
    assert set(table.index) == set(expected)
    for key, x in expected.items():
        if key == ("embedding", "class", 0):
            assert not table.loc[key, "defined"], "before the first block every class token is the same"
        else:
            assert table.loc[key, "fuzziness"] == pytest.approx(by_pseudo_inverse(x, batch.labels, "class"), rel=1e-5)
    assert (table["images"] == 200).all()


def test_pixels_are_measured_once_per_dataset(model, digits, monkeypatch):
    first = pixel_fuzziness(digits, model.preprocess)
    monkeypatch.setattr(type(digits), "batches", lambda *a, **k: pytest.fail("read again"))
    assert pixel_fuzziness(digits, model.preprocess) == first


def test_one_class_is_refused_and_too_many_dimensions_say_what_they_would_take(model, digits):
    from vitscope.analyses.one_pass import measure

    sevens = digits.subset([i for i, label in enumerate(digits.labels) if label == 7])
    analysis = Separation(pixels=False)
    measure(model, sevens.batches(model.preprocess, 64), [analysis])
    with pytest.raises(DataError, match="two classes or more"):
        analysis.tables()
    with pytest.raises(VitscopeError, match=r"1000 classes x 192 dimensions .* GiB"):
        Separation().start(open_model("vit_tiny_patch16_224.augreg_in21k_ft_in1k", "random"))
    with pytest.raises(VitscopeError, match="averaging='mean'"):
        Separation(averaging="mean")
