"""Causes of segmentations: a class for every pixel, and pictures of several sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from segmented_scenes import scene_batches, tiny
from vitscope.analyses import create_analysis, measure
from vitscope.analyses.base import Setting
from vitscope.data.batch import Batch
from vitscope.errors import UnsuitableDataError, UnsupportedModelError, VitscopeError
from vitscope.tasks.segmentation import Segmentation


def scenes(model, images=3) -> Batch:
    """Pictures of 8 bits, each pixel labelled with the model's own answer, some of them ignored."""
    (batch,) = scene_batches(images)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (model.preprocess.mean, model.preprocess.std))
    pixels = (batch.inputs / 8 + 0.3).clamp(0, 1).mul(255).round() / 255
    batch = replace(batch, inputs=(pixels - mean) / std)
    with torch.no_grad():
        return replace(batch, targets=torch.where(batch.targets >= 0, model(batch.inputs).argmax(1), -1))


def studied(model, batch, name, **options):
    study = create_analysis(name, **options)
    study.setting = Setting(task=Segmentation())
    measure(model, [batch], [study])
    return study


@pytest.mark.parametrize("decoder", ["linear", "mask"])
def test_pixels_are_the_answers_of_a_segmentation(decoder):
    model = tiny(decoder)
    batch = scenes(model)
    table = studied(model, batch, "causes.ablation", kinds=["mlp", "resid"]).tables()["causes_ablation"]
    known = batch.targets >= 0
    truth = batch.targets.clamp(min=0)[:, None]
    with torch.no_grad(), model.edits({"blocks.1.hook_mlp_out": lambda value, point: torch.zeros_like(value)}):
        after = model(batch.inputs)
    row = table.set_index("component").loc["mlp.1"]
    assert row["logit_after"] == pytest.approx(float(after.gather(1, truth)[:, 0][known].mean()), abs=1e-5)
    right = (after.argmax(1) == batch.targets)[known].double().mean()
    assert row["accuracy_after"] == pytest.approx(100 * float(right))
    assert row["n_answers"] == int(known.sum())
    last = table[(table["kind"] == "resid") & (table["block"] == 2)].set_index("tokens")
    assert last.loc["class", "logit_change"] == 0  # a decoder reads patches alone
    assert last.loc["image", "logit_change"] != 0


def test_an_attacked_segmentation_is_restored_by_its_clean_stream():
    model = tiny()
    study = studied(model, scenes(model), "causes.patching", pairs=["fgsm@4/255"], kinds=["resid", "mlp"])
    tables = study.tables()
    assert tables["causes_patching_pairs"]["used"].tolist() == [3]
    table = tables["causes_patching"].set_index(["direction", "component", "tokens"])
    for direction in ("denoising", "noising"):
        assert table.loc[(direction, "resid.2", "image"), "share"] == pytest.approx(1, abs=1e-5)
        assert table.loc[(direction, "resid.2", "image"), "decisions"] == pytest.approx(100)
        assert 0 < table.loc[(direction, "mlp.1", "all"), "share"] < 1
        # behind the last block a linear decoder and a norm are left: the estimate is near, and of the same sign
        assert table.loc[(direction, "mlp.2", "all"), "estimate"] > 0


def test_pictures_of_another_size_have_their_own_grid():
    model = tiny()
    generator = torch.Generator().manual_seed(0)
    images, numbers = torch.randn(2, 3, 32, 20, generator=generator), torch.arange(2)
    other = Batch(images, torch.zeros(2, 32, 20, dtype=torch.int64), numbers, ["a", "b"])
    table = studied(model, other, "causes.ablation", kinds=["resid"]).tables()["causes_ablation"]
    assert set(table["tokens"]) == {"class", "image"}
    with pytest.raises(UnsuitableDataError, match="8x5 patches, another one 6x6"):
        studied(model, other, "causes.ablation", kinds=["resid"], tokens="each")
    means = create_analysis("point_means", points=["blocks.0.hook_mlp_out"])
    with pytest.raises(UnsuitableDataError, match="a has 41 tokens, others have 37"):
        measure(model, [other], [means])


def test_what_cannot_be_asked_of_pixels_is_said():
    model = tiny(window=16, stride=8)
    with pytest.raises(UnsupportedModelError, match="windows each"):
        studied(model, scene_batches(2)[0], "causes.ablation")
    data = type("Scenes", (), {"task": Segmentation(), "name": "scenes"})()
    for word, error, message in (
        ("cw@1", VitscopeError, "here every pixel has one"),
        ("corrupt:elastic_transform@3", UnsuitableDataError, "move pixels"),
        ("class", UnsuitableDataError, "need images of two classes"),
    ):
        with pytest.raises(error, match=message):
            create_analysis("causes.patching", pairs=[word]).makers[0].check_data(data)
