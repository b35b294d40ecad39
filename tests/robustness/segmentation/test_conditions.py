from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vitscope import evaluate, open_model
from vitscope.data import load_data
from vitscope.errors import VitscopeError
from vitscope.models import Model
from vitscope.models.preprocessing import Preprocess
from vitscope.robustness.corruptions import corrupt, image_seed
from vitscope.robustness.evaluating import shifted_data
from vitscope.robustness.evaluation.evaluate_options import EvaluateOptions
from vitscope.robustness.segmentation.conditions import SegmentationConditions
from vitscope.robustness.segmentation.moving import elastic_origins, moved_labels
from vitscope.robustness.segmentation.panel import corruption_panel

sys.path.insert(0, str(Path(__file__).parents[2]))
from pixel_model import PixelViT

pytest.importorskip("imagecorruptions")
RECIPE = Preprocess((3, 16, 16), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "bilinear")


@pytest.mark.parametrize("size", [(64, 96), (40, 33)])
def test_labels_follow_pixels_through_elastic_transform(size: tuple[int, int]):
    """Red is the column and green the row, so the corrupted picture says where each of its pixels came from."""
    height, width = size
    y, x = np.mgrid[:height, :width]
    picture = np.stack([2 * x, 2 * y, 0 * x], 0).astype(np.uint8)
    labels = (x // 8 + 20 * (y // 8)).astype(np.int64)
    seed = image_seed(0, "a", "elastic_transform", 5)
    moved = corrupt(torch.from_numpy(picture)[None], "elastic_transform", 5, [seed])[0].numpy() / 2
    found = moved_labels(labels, size, 5, seed)
    near = [np.abs(m - 8 * np.round(m / 8)) < 1 for m in moved[:2]]  # between two labels, rounding decides
    clear = ~(near[0] | near[1])
    expected = (np.round(moved[0]) // 8 + 20 * (np.round(moved[1]) // 8)).astype(int)
    assert clear.mean() > 0.4
    assert (found[clear] == expected[clear]).all()
    assert (found != labels).mean() > 0.02  # something moved, at severity 5
    origins = elastic_origins(height, width, 5, seed)
    assert np.abs(origins[0] - y).max() < 8


def test_larger_maps_move_as_the_picture_does():
    labels = np.kron(np.arange(12).reshape(3, 4), np.ones((64, 64), np.int64))  # (192, 256)
    large, small = moved_labels(labels, (96, 128), 5, 3), moved_labels(labels[::2, ::2], (96, 128), 5, 3)
    assert (large == np.kron(small, np.ones((2, 2), np.int64))).mean() > 0.96
    assert (large != labels).mean() > 0.04


def test_conditions_are_the_clean_pictures_and_their_corruptions():
    clean = load_data("pixel_model:uneven", first=3)
    data = SegmentationConditions(clean, [("contrast", 3), ("gaussian_noise", 2)], seed=4)
    assert len(data) == 9
    batches = list(data.batches(RECIPE, 8))
    plain = list(clean.batches(RECIPE, 8))
    for i in range(3):
        assert torch.equal(batches[i].inputs, plain[i].inputs)
        before = ((plain[i].inputs * 0.5 + 0.5) * 255).round().to(torch.uint8)
        seed = image_seed(4, clean.paths[i], "gaussian_noise", 2)
        noisy = corrupt(before, "gaussian_noise", 2, [seed]).float().div(255).sub(0.5).div(0.5)
        torch.testing.assert_close(batches[6 + i].inputs, noisy)
        assert torch.equal(batches[3 + i].targets, plain[i].targets)
    assert data.paths[3] == f"contrast/3/{clean.paths[0]}"
    assert data.gallery(8) == {0, 1, 2, 3, 7}  # all clean ones, and one of each corruption
    assert data.gallery(2) == {0, 1, 3}
    assert [b.number for b in data.batches(RECIPE, 8, rank=1, world=2)] == [1, 3, 5, 7]
    assert data.fingerprint() != SegmentationConditions(clean, [("contrast", 3)], seed=4).fingerprint()


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(0)
    return open_model(PixelViT())


def test_an_evaluation_has_a_row_per_condition_paired_with_clean(model: Model, tmp_path: Path):
    given: dict[str, Any] = {"corrupt": ["elastic_transform", "contrast"], "severities": ["1", "5"], "progress": False}
    given["report"] = False
    data = load_data("pixel_model:squares", first=6)
    run = evaluate(model, data, out=tmp_path / "run", **given)
    table = run.table("segmentation")
    rows = table[table["metric"] == "mean_iou"].set_index(["corruption", "severity"])
    tried = [(name, level) for name in ("contrast", "elastic_transform") for level in (1, 5)]
    assert list(rows.index) == [("none", 0), *tried]
    np.testing.assert_allclose(rows["change"], rows["value"] - rows["value"].iloc[0])
    assert rows["change_low"].isna().tolist() == [True] + [False] * 4
    changed = rows.iloc[1:]
    assert (changed["change_low"] <= changed["change_high"]).all()
    plain = evaluate(model, data, out=tmp_path / "plain", progress=False, report=False)
    first = plain.table("segmentation")
    np.testing.assert_allclose(first["value"], table["value"].iloc[:3])
    panel: Any = corruption_panel({run.label: run})
    assert list(panel.figures) == ["segmentation_corruptions", "segmentation_severity"]
    by_severity = rows.groupby(level="severity")["value"].mean()
    assert panel.card.lines[run.label] == pytest.approx(by_severity.tolist())
    shown = run.table("segmentation_gallery")
    told = shown["condition"].fillna("").tolist()
    assert told[6:] == ["contrast 1", "contrast 5", "elastic transform 1", "elastic transform 5"]
    assert told[:6] == [""] * 6
    assert "hardest" in panel.findings[0].text
    assert any("moved along" in warning for warning in run.warnings)
    again = EvaluateOptions.from_config(run.config)
    assert (again.corrupt, again.severities) == (("contrast", "elastic_transform"), ("1", "5"))


def test_elastic_transform_can_be_left_out():
    clean = load_data("pixel_model:squares", first=2)
    data: Any = shifted_data(clean, corrupt="digital", severities="2", elastic="skip")
    assert [name for name, _ in data.conditions] == ["none", "contrast", "pixelate", "jpeg_compression"]
    with pytest.raises(VitscopeError, match="nothing else is asked for"):
        shifted_data(clean, corrupt="elastic_transform", elastic="skip")


def test_sets_of_one_class_per_image_are_refused(tmp_path: Path):
    clean = load_data("pixel_model:squares", first=2)
    (tmp_path / "n01440764").mkdir()
    with pytest.raises(VitscopeError, match="images with one class each"):
        shifted_data(clean, ood={"R": str(tmp_path)}, corrupt="contrast")
