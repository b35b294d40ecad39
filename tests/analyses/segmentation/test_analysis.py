from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import confusion_matrix

from vitscope import analyze, open_model
from vitscope.analyses.segmentation.analysis import SegmentationFigures
from vitscope.analyses.share import Share
from vitscope.data import Source, load_data, register_dataset
from vitscope.errors import DataError, UnsuitableDataError, UnsupportedModelError
from vitscope.models import Model
from vitscope.report import build_report
from vitscope.statistics.bootstrap import poisson_weights

sys.path.insert(0, str(Path(__file__).parents[2]))
from pixel_model import PixelViT

QUIET: dict[str, Any] = {"progress": False, "report": False}


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(0)
    return open_model(PixelViT())


@pytest.fixture(scope="module")
def run(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("run") / "one"
    return analyze(model, load_data("pixel_model:uneven"), ["segmentation"], out, **QUIET)


def answers(model: Model) -> list[tuple[np.ndarray, np.ndarray]]:
    """(truth, answer) of every picture, by a plain loop in float64, without anything of the analysis."""
    data, found = load_data("pixel_model:uneven"), []
    module = PixelViT().double().eval()
    module.load_state_dict({k: v.double() for k, v in model.module.state_dict().items()})
    with torch.no_grad():
        for batch in data.batches(model.preprocess, 1):
            size = batch.targets.shape[1:]
            logits = F.interpolate(module(batch.inputs.double()), size, mode="bilinear", align_corners=False)
            found.append((batch.targets[0].numpy(), logits.argmax(1)[0].numpy()))
    return found


def test_figures_are_those_of_a_plain_loop(model: Model, run: Any):
    pairs = answers(model)
    truth = np.concatenate([t[t >= 0] for t, _ in pairs])
    said = np.concatenate([a[t >= 0] for t, a in pairs])
    matrix = confusion_matrix(truth, said, labels=range(3))
    table = run.table("segmentation_confusions")
    found = np.zeros((3, 3))
    found[table["label"], table["answer"]] = table["pixels"]
    assert np.abs(found - matrix).sum() <= 2e-3 * matrix.sum()  # float32 against float64 near a border
    right, there, predicted = np.diagonal(found), found.sum(1), found.sum(0)
    classes = run.table("segmentation_classes")
    assert classes["class_name"].tolist() == ["red", "green", "blue"]
    np.testing.assert_allclose(classes["iou"], 100 * right / (there + predicted - right))
    np.testing.assert_allclose(classes["accuracy"], 100 * right / there)
    figures = run.table("segmentation").set_index("metric")["value"]
    np.testing.assert_allclose(figures["mean_iou"], classes["iou"].mean())
    np.testing.assert_allclose(figures["mean_accuracy"], classes["accuracy"].mean())
    np.testing.assert_allclose(figures["accuracy"], 100 * right.sum() / there.sum())
    assert run.table("segmentation")["n"].tolist() == [10] * 3


def test_intervals_are_those_of_samples_of_images(run: Any):
    """From the counts per image on disk: every image as often as its weights say, all over again."""
    rows = run.table("segmentation_images")
    counts = np.zeros((10, 3, 3))
    for r in rows.to_dict("records"):
        counts[r["image"], :, r["label"]] = r["right"], r["pixels"], r["answered"]
    drawn = []
    for weights in np.stack([poisson_weights(0, i, 500) for i in range(10)], 1):
        right, there, said = np.einsum("i,ikc->kc", weights, counts)
        with np.errstate(invalid="ignore"):
            drawn.append(np.nanmean(right / (there + said - right)))
    low, high = np.quantile(drawn, [0.025, 0.975])
    row = run.table("segmentation").iloc[0]
    np.testing.assert_allclose([row["low"], row["high"]], [100 * low, 100 * high])
    assert row["low"] < row["value"] < row["high"]
    spread = run.table("segmentation_classes")
    assert (spread["iou_low"] < spread["iou_high"]).all()


def test_weights_are_poisson_of_mean_one_and_an_image_keeps_its_own():
    weights = np.stack([poisson_weights(0, i, 400) for i in range(50)])
    assert weights.mean() == pytest.approx(1, abs=0.03)
    assert weights.var() == pytest.approx(1, abs=0.05)
    assert np.array_equal(weights[3], poisson_weights(0, 3, 400))
    assert not np.array_equal(weights[3], poisson_weights(1, 3, 400))


def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(model: Model, run: Any, tmp_path: Path, monkeypatch: Any):
    count = Share.count

    def killed(self: Share, batch: Any) -> None:
        count(self, batch)
        if batch.number == 4:
            raise KeyboardInterrupt
        if batch.number == 2:
            self.save()

    data, out = load_data("pixel_model:uneven"), tmp_path / "killed"
    monkeypatch.setattr(Share, "count", killed)
    with pytest.raises(KeyboardInterrupt):
        analyze(model, data, ["segmentation"], out, **QUIET)
    monkeypatch.setattr(Share, "count", count)
    again = analyze(model, data, ["segmentation"], out, **QUIET)
    for name in run.list_tables():
        assert (again.path / "tables" / f"{name}.csv").read_bytes() == (
            run.path / "tables" / f"{name}.csv"
        ).read_bytes()


def test_shares_of_two_processes_add_up(model: Model, run: Any):
    data, parts = load_data("pixel_model:uneven"), []
    for rank in range(2):
        part = SegmentationFigures()
        part.setting = replaced(part.setting, classes=tuple(data.classes))
        part.start(model)
        part.prepare(data, model)
        for batch in data.batches(model.preprocess, 8, rank=rank, world=2):
            batch.outputs = model(batch.inputs)
            part.end_batch(batch)
        parts.append(part)
    parts[0].merge(parts[1])
    for name, table in parts[0].tables().items():
        pd.testing.assert_frame_equal(table, run.table(name), check_dtype=False, rtol=1e-9)


def replaced(setting: Any, **changes: Any) -> Any:
    from dataclasses import replace

    return replace(setting, **changes)


def test_the_page_shows_pictures_classes_and_confusions(run: Any):
    page = build_report(run).read_text()
    assert "Which pixels are told right, and what is taken for what?" in page
    for name in ("segmentation-gallery", "segmentation-classes", "segmentation-confusions"):
        assert (run.figures_dir / f"{name}.svg").exists()
    gallery = run.table("segmentation_gallery")
    assert len(gallery) == 8
    per_image = run.table("segmentation_images").groupby("image")[["right", "pixels"]].sum()
    expected = 100 * per_image["right"] / per_image["pixels"]
    np.testing.assert_allclose(gallery["accuracy"], expected[gallery["image"]])


def test_what_cannot_be_judged_is_refused(model: Model, tmp_path: Path):
    @register_dataset("empty maps")
    def empty() -> Source:
        return Source(np.zeros((3, 8, 8, 3), np.uint8), classes=["a", "b", "c"], maps=[np.full((8, 8), 255)] * 3)

    with pytest.raises(DataError, match="No image that could be read has a pixel with a class"):
        analyze(model, load_data("empty maps"), ["segmentation"], tmp_path / "a", **QUIET)
    data = load_data("pixel_model:squares")
    with pytest.raises(DataError, match="tells 5 classes apart, but pixel_model:squares has 3"):
        analyze(open_model(PixelViT(5)), data, ["segmentation"], tmp_path / "b", **QUIET)
    classifier = open_model("vit_tiny_patch16_224", "random", num_classes=3, img_size=16, patch_size=4, depth=1)
    with pytest.raises(UnsupportedModelError, match=r"answers with \(3,\) numbers per image"):
        analyze(classifier, load_data("pixel_model:squares", first=1), ["segmentation"], tmp_path / "c", **QUIET)
    with pytest.raises(UnsuitableDataError, match="is made for segmentation, and mnist5k is for classification"):
        analyze(model, load_data("mnist5k", images=4), ["segmentation"], tmp_path / "d", **QUIET)
    with pytest.raises(UnsuitableDataError, match="looks for the class of each image"):
        analyze(model, data, ["accuracy"], tmp_path / "e", **QUIET)
