"""Zero-shot classes: logits against CLIP's formula written out, the lens on every token, and bad files refused."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import timm
import torch

from vitscope.analyses import tables_of
from vitscope.analyses.class_space.identifiability import Identifiability
from vitscope.analyses.class_space.memories import class_directions
from vitscope.analyses.control import random_twin
from vitscope.analyses.one_pass import measure
from vitscope.data.batch import Batch
from vitscope.errors import UnsupportedModelError, VitscopeError
from vitscope.models import open_model
from vitscope.models.class_vectors import attach
from vitscope.runs import Run

SMALL = {"depth": 2, "embed_dim": 32, "num_heads": 2, "img_size": 32, "patch_size": 16}
CLIP = "vit_base_patch16_clip_224.openai"
TOWERS = {  # embedding: a projection, nothing, a projection behind attention pooling
    CLIP: 512,
    "vit_base_patch16_siglip_gap_224": 32,
    "vit_base_patch16_siglip_224": 32,
    "vit_pe_core_tiny_patch16_384": 512,
    "eva02_base_patch16_clip_224": 512,
}


def vectors(width, classes=7, seed=0):
    return np.random.default_rng(seed).normal(size=(classes, width)).astype(np.float32)


def opened(name, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # bare names whose tags disagree say so
        return open_model(name, "random", **SMALL, **options)


def pictures(model, n=3):
    return torch.randn(n, *model.preprocess.input_size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", TOWERS)
@torch.no_grad()
def test_logits_are_the_scaled_cosine_of_image_and_class(name):
    tower = opened(name)
    given = vectors(TOWERS[name])
    model = opened(name, class_vectors=given, logit_scale=50.0, logit_bias=-3.0)
    model.module.double()
    x = pictures(model).double()
    embedding = tower.module.double()(x).numpy()  # (B, D), as timm computes it
    expected = np.empty((3, 7))
    for i, e in enumerate(embedding):
        for k, t in enumerate(given.astype(float)):
            expected[i, k] = 50 * (e @ t) / (np.sqrt(e @ e) * np.sqrt(t @ t)) - 3
    assert np.abs(model(x).numpy() - expected).max() < 1e-4  # the head was made in float32
    assert model.num_classes == 7
    assert "zero-shot" in " ".join(model.notes)


@torch.no_grad()
def test_in_float64_the_formula_holds_to_the_last_digits():
    module = timm.create_model("vit_base_patch16_clip_224", num_classes=512, **SMALL).double().eval()
    x, given = torch.randn(2, 3, 32, 32, dtype=torch.float64), torch.from_numpy(vectors(512)).double()
    embedding = module(x)
    attach(module, given, 100.0, 0.5)
    lengths = embedding.square().sum(1).sqrt()[:, None] * given.square().sum(1).sqrt()
    assert (module(x) - (100 * embedding @ given.T / lengths + 0.5)).abs().max() < 1e-9


@pytest.mark.parametrize("name", [CLIP, "vit_base_patch16_siglip_gap_224"])
@torch.no_grad()
def test_every_token_is_read_as_the_tower_reads_its_own(name):
    given = vectors(TOWERS[name])
    tower, model = opened(name), opened(name, class_vectors=given)
    logits, cache = model.run_with_cache(pictures(model), "blocks.1.hook_resid_post")
    x = cache["blocks.1.hook_resid_post"]
    read = model.to_class_space(x)  # (B, N, K)
    embedded = tower.module.head(tower.module.fc_norm(tower.module.norm(x)))
    expected = 100 * torch.nn.functional.cosine_similarity(embedded[:, :, None], torch.from_numpy(given), dim=-1)
    assert torch.allclose(read, expected, atol=1e-3)
    if model.layout.class_tokens:
        assert torch.allclose(read[:, 0], logits, atol=1e-3)


def test_a_tower_that_pools_by_attention_has_answers_and_no_lens():
    model = opened("vit_base_patch16_siglip_224", class_vectors=vectors(32))
    assert "pools its tokens by attention" in model.why_no_class_space()
    with pytest.raises(UnsupportedModelError, match="pools its tokens by attention"):
        model.to_class_space(torch.zeros(1, 32))


def test_class_space_analyses_and_their_control_take_a_zero_shot_model():
    model = opened(CLIP, class_vectors=vectors(512), class_names=[f"class {k}" for k in range(7)])
    assert model.classes[3] == "class 3"
    batch = Batch(pictures(model, 4), torch.tensor([0, 3, 6, 2]), torch.arange(4), [f"{i}.png" for i in range(4)])
    analysis = Identifiability(permutations=9, control="random")
    measure(model, [batch], [analysis])
    table = tables_of(analysis)["class_space_identifiability"]
    assert (table["n_classes"] == 7).all()
    assert table["mean_control"].notna().all()
    twin = random_twin(model, seed=1)
    assert torch.equal(twin.module.head.weight, model.module.head.weight)  # other tower, same classes
    assert not torch.equal(twin.module.patch_embed.proj.weight, model.module.patch_embed.proj.weight)


@torch.no_grad()
def test_a_class_direction_is_where_the_cosine_before_its_length_rises():
    given = vectors(512)
    model = opened(CLIP, class_vectors=given)
    module = model.module
    unit = torch.from_numpy(given / np.linalg.norm(given, axis=1, keepdims=True))
    expected = 100 * unit @ module.fc_norm.projection.weight * module.norm.weight
    expected -= expected.mean(1, keepdim=True)
    assert torch.allclose(class_directions(model), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (vectors(100), "100 wide, the image embedding of .* is 512"),
        (np.where(np.arange(512) == 3, np.nan, vectors(512)), "NaN or infinite, first that of class 0"),
        (vectors(512) * (np.arange(7) != 4)[:, None], r"1 class vector\(s\) are zero, first that of class 4"),
        (vectors(512)[:1], "at least two"),
        (vectors(512)[0], r"of shape \(512,\): expected numbers of shape \(classes, 512\)"),
        (vectors(512).astype(complex), "complex128"),
        (np.array([["a"] * 512] * 7), "expected numbers"),
    ],
    ids=["width", "nan", "zero", "one", "flat", "complex", "words"],
)
def test_bad_class_vectors_are_refused_with_what_is_wrong(values, words, tmp_path):
    np.save(tmp_path / "v.npy", values)
    with pytest.raises(VitscopeError, match=words):
        opened(CLIP, class_vectors=tmp_path / "v.npy")


def test_files_that_are_no_plain_array_are_refused(tmp_path):
    np.save(tmp_path / "pickled.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(VitscopeError, match="pickled objects are refused"):
        opened(CLIP, class_vectors=tmp_path / "pickled.npy")
    np.savez(tmp_path / "several.npz", a=vectors(512))
    with pytest.raises(VitscopeError, match="holds several arrays"):
        opened(CLIP, class_vectors=tmp_path / "several.npz")
    (tmp_path / "empty.npy").touch()
    (tmp_path / "text.npy").write_text("no array")
    for name in ("empty.npy", "text.npy"):
        with pytest.raises(VitscopeError, match="cannot be read as class vectors"):
            opened(CLIP, class_vectors=tmp_path / name)
    with pytest.raises(VitscopeError, match="No class vectors at"):
        opened(CLIP, class_vectors=tmp_path / "absent.npy")


def test_names_are_one_per_class(tmp_path):
    np.save(tmp_path / "v.npy", vectors(512))
    (tmp_path / "names.txt").write_text("\n".join("abcdefg") + "\n")
    model = opened(CLIP, class_vectors=tmp_path / "v.npy", class_names=tmp_path / "names.txt")
    assert model.classes == [*"abcdefg"]
    assert model.source["class_vectors"]["names"] == str(tmp_path / "names.txt")
    with pytest.raises(VitscopeError, match="6 names for 7 class vectors"):
        opened(CLIP, class_vectors=vectors(512), class_names=[*"abcdef"])
    with pytest.raises(VitscopeError, match="class_names go with class_vectors"):
        opened(CLIP, class_names=[*"abcdefg"])


def test_models_with_classes_of_their_own_take_none():
    with pytest.raises(VitscopeError, match="has 1,000 classes of its own"):
        opened("vit_tiny_patch16_224", class_vectors=vectors(1000))
    module = timm.create_model("deit_tiny_distilled_patch16_224", num_classes=0, **SMALL)
    with pytest.raises(UnsupportedModelError, match="Class vectors cannot be given to"):
        open_model(module, class_vectors=vectors(32))


def test_a_run_is_made_and_made_again_from_the_command_line(tmp_path):
    from vitscope.analyses.request import AnalyzeOptions
    from vitscope.cli.analyze import main

    np.save(tmp_path / "v.npy", vectors(512, classes=10))
    words = [CLIP, "--weights", "random", "--model-options", *(f"{key}={value}" for key, value in SMALL.items())]
    words += ["--data", "mnist5k", "--images", "20", "--only", "accuracy,class_space.identifiability", "--no-progress"]
    words += ["--class-vectors", str(tmp_path / "v.npy"), "--logit-scale", "20", "--gallery", "0", "--no-report"]
    main([*words, "--out", str(tmp_path / "run")])
    run = Run.open(tmp_path / "run")
    assert set(run.table("class_space_identifiability")["n_classes"]) == {10}
    again = AnalyzeOptions.from_config(run.config)
    assert (again.class_vectors, again.logit_scale, again.logit_bias) == (str(tmp_path / "v.npy"), 20.0, 0.0)
    with pytest.raises(VitscopeError, match="No file at"):
        AnalyzeOptions(models=(CLIP,), data="mnist5k", class_vectors="absent.npy").check()
