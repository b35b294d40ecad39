from __future__ import annotations

import numpy as np
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitscope.analyses import create_analysis
from vitscope.analyses.separation import Separation, fuzziness, pixel_fuzziness
from vitscope.analyses.separation.definition import fuzziness_from_moments, image_weights
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


def moments(x, labels, k, averaging):
    counts = torch.bincount(labels, minlength=k)
    weights = image_weights(counts, averaging)
    sums = torch.stack([x[labels == j].sum(0) for j in range(k)])
    return counts, weights, sums, (weights[labels, None] * x).T @ x


def cloud(seed, n=120, d=9, k=4, spread=2.0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(k, (n,), generator=generator)
    centres = spread * torch.randn(k, d, generator=generator, dtype=torch.float64)
    return centres[labels] + torch.randn(n, d, generator=generator, dtype=torch.float64), labels


def test_the_published_program_is_reproduced(shared):
    golden = np.load(shared / "golden/fuzziness.npz")
    for i in range(3):
        x, labels = torch.tensor(golden[f"{i}_features"]), torch.tensor(golden[f"{i}_labels"])
        published = pytest.approx(float(golden[f"{i}_fuzziness"]), abs=1e-9)
        assert fuzziness(x, labels) == published
        classes = labels.unique(return_inverse=True)[1]
        assert fuzziness_from_moments(*moments(x, classes, int(classes.max()) + 1, "class")) == published


@given(seed=st.integers(0, 10_000), averaging=st.sampled_from(["class", "samples"]), d=st.integers(2, 12))
@settings(max_examples=40, deadline=None)
def test_subspace_and_streamed_forms_equal_the_pseudo_inverse(seed, averaging, d):
    x, labels = cloud(seed, d=d)
    expected = by_pseudo_inverse(x, labels, averaging)
    assert fuzziness(x, labels, averaging) == pytest.approx(expected, rel=1e-7)
    assert fuzziness_from_moments(*moments(x, labels, 5, averaging)) == pytest.approx(expected, rel=1e-6)


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
    before, summary = analysis.tables(), analysis.summary()
    analysis.sums = dict(sorted(analysis.sums.items(), reverse=True))  # as a file or a merge may order them
    assert all(analysis.tables()[name].equals(found) for name, found in before.items())
    assert analysis.summary() == summary


def test_pixels_are_measured_once_per_dataset(model, digits, monkeypatch):
    first = pixel_fuzziness(digits, model.preprocess)
    monkeypatch.setattr(type(digits), "batches", lambda *a, **k: pytest.fail("read again"))
    assert pixel_fuzziness(digits, model.preprocess) == first


def test_a_profile_comes_with_its_fits_and_its_spike(model, digits):
    from vitscope.analyses.one_pass import measure

    analysis = Separation()
    analysis.prepare(digits, model)
    measure(model, digits.batches(model.preprocess, 64), [analysis])
    tables = analysis.tables()
    assert set(tables) == {"separation", "separation_fits", "separation_spike"}
    assert len(tables["separation_fits"]) == 0, "two blocks are too few for a curve"
    spike = tables["separation_spike"].set_index("token")
    profile = tables["separation"].set_index(["point", "token", "layer"])["fuzziness"]
    blocks = profile["block"]["class"]
    assert spike.loc["class", "place"] == blocks.idxmax()
    assert spike.loc["class", "over_pixels"] == pytest.approx(blocks.max() / profile["pixels", "", 0])
    assert spike.loc["class", "over_embedding"] == pytest.approx(blocks.max() / profile["embedding", "mean", 0])


def test_a_thousand_classes_take_no_more_than_their_means():
    analysis = Separation()
    analysis.start(open_model("vit_tiny_patch16_224.augreg_in21k_ft_in1k", "random"))
    assert sum(value.numel() * value.element_size() for value in analysis.sums.values()) < 100e6


def test_an_unreadable_image_takes_its_share_of_the_weight_with_it(model, digits):
    """Weights come from the planned sizes: what is counted is the definition with w_k proportional to n_k / planned."""
    from vitscope.analyses.one_pass import measure

    analysis = Separation(pixels=False)
    analysis.prepare(digits, model)
    rest = digits.subset([i for i, label in enumerate(digits.labels) if label != 3 or i % 3])
    (batch,) = rest.batches(model.preprocess, 200)
    measure(model, [batch], [analysis])
    table = analysis.tables()["separation"].set_index("point")
    with torch.no_grad():
        logits = model(batch.images).double().numpy()
    sizes = np.bincount(digits.labels, minlength=10)
    labels = np.array(rest.labels)
    counts = np.bincount(labels, minlength=10)
    between = within = 0
    for k in range(10):
        mine = logits[labels == k]
        w, m = counts[k] / sizes[k], mine.mean(0)
        between = between + w * np.outer(m - logits.mean(0), m - logits.mean(0))
        within = within + w / len(mine) * (mine - m).T @ (mine - m)
    expected = np.trace(within @ np.linalg.pinv(between, rcond=1e-10, hermitian=True))
    assert table.loc["logits", "fuzziness"] == pytest.approx(expected, rel=1e-6)


def picked(digits, keep):
    return digits.subset([i for i, label in enumerate(digits.labels) if keep(i, label)])


def test_samples_that_cannot_be_measured_are_refused_and_missing_classes_are_named(model, digits):
    sevens = picked(digits, lambda i, label: label == 7)
    with pytest.raises(DataError, match="two classes or more"):
        Separation().prepare(sevens, model)
    first = {label: i for i, label in reversed(list(enumerate(digits.labels)))}
    with pytest.raises(DataError, match=r"10 classes have one each.*--per-class"):
        Separation().prepare(picked(digits, lambda i, label: first[label] == i), model)
    with pytest.warns(UserWarning, match=r"2 of 10 classes have no image in mnist5k \(3, 8\)"):
        Separation(pixels=False).prepare(picked(digits, lambda i, label: label not in (3, 8)), model)
    with pytest.raises(VitscopeError, match="averaging='mean'"):
        Separation(averaging="mean")


def test_constant_features_have_no_fuzziness_rather_than_none():
    labels = torch.arange(12) % 3
    assert np.isnan(fuzziness(torch.full((12, 5), 0.1), labels))
    alike = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)).repeat_interleave(3, 0)  # equal class means
    assert np.isnan(fuzziness(alike, labels))


def test_labels_may_be_any_numbers_and_a_model_refuses_those_it_has_no_class_for(model, digits):
    x, labels = cloud(1)
    assert fuzziness(x, labels * 17 - 5) == pytest.approx(fuzziness(x, labels))
    wide = digits.subset(range(len(digits)))
    wide.labels[5] = 10
    with pytest.raises(DataError, match=r"label 10 in mnist5k, but the model has classes 0\.\.9"):
        Separation().prepare(wide, model)


def test_more_classes_than_dimensions_are_no_problem():
    x, labels = cloud(2, n=400, d=3, k=12)
    assert fuzziness(x, labels) == pytest.approx(by_pseudo_inverse(x, labels, "class"), rel=1e-7)
    assert fuzziness_from_moments(*moments(x, labels, 12, "class")) == pytest.approx(fuzziness(x, labels), rel=1e-7)


def test_measuring_without_the_class_sizes_says_what_to_call(model, digits):
    from vitscope.analyses.one_pass import measure

    with pytest.raises(VitscopeError, match=r"call prepare\(data, model\)"):
        measure(model, digits.batches(model.preprocess, 64), [Separation()])


def test_by_default_data_that_separation_cannot_use_leaves_it_out(model, digits):
    from vitscope.analyses.selection import start_analyses

    first = {label: i for i, label in reversed(list(enumerate(digits.labels)))}
    one_each = picked(digits, lambda i, label: first[label] == i)
    running, remarks = start_analyses([Separation(), create_analysis("accuracy")], model, one_each, explicit=False)
    assert [analysis.name for analysis in running] == ["accuracy"]
    assert "'separation' was left out" in remarks[0]
    with pytest.raises(DataError, match="one each"):
        start_analyses([Separation()], model, one_each, explicit=True)


def test_sums_that_would_fill_the_memory_are_refused(model, monkeypatch):
    monkeypatch.setattr("vitscope.analyses.separation.analysis.MOST_BYTES", 1000)
    with pytest.raises(VitscopeError, match=r"10 classes x 24 dimensions .* GiB"):
        Separation().start(model)


@pytest.mark.parametrize("shift", [0.0, 1e-16])
def test_class_means_that_coincide_have_no_fuzziness(shift):
    """Exactly, or but for rounding: a D of 1e35 would be a number about nothing."""
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    both, labels = torch.cat([x, x + shift]), torch.arange(2).repeat_interleave(40)
    assert np.isnan(fuzziness(both, labels))
    assert np.isnan(fuzziness_from_moments(*moments(both, labels, 2, "class")))
