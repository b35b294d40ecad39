from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from vitscope import attack, open_model
from vitscope.data import load_data
from vitscope.errors import VitscopeError
from vitscope.robustness.attack_options import AttackOptions
from vitscope.robustness.segmentation.attack import SegmentationAttack
from vitscope.robustness.segmentation.panel import attack_panel

sys.path.insert(0, str(Path(__file__).parents[2]))
from pixel_model import PixelViT


def test_attacks_on_the_pixel_loss_lower_mean_iou(tmp_path: Path):
    torch.manual_seed(0)
    model, data = open_model(PixelViT()), load_data("pixel_model:uneven", first=5)
    budgets, quiet = ["0", "2/255", "16/255"], {"progress": False, "report": False}
    run = attack(model, data, ["noise", "fgsm", "pgd"], budgets, tmp_path / "run", steps=4, **quiet)
    table = run.table("segmentation_attack")
    iou = table[table["metric"] == "mean_iou"].set_index(["attack", "eps"])
    clean = run.table("segmentation").set_index("metric")["value"]["mean_iou"]
    for name in ("noise", "fgsm", "pgd"):
        assert iou.loc[(name, "0"), "value"] == pytest.approx(clean)  # a budget of nothing is the clean run
        assert iou.loc[(name, "0"), "change"] == 0
    worst = {name: iou.loc[(name, "16/255"), "value"] for name in ("noise", "fgsm", "pgd")}
    assert worst["pgd"] < worst["noise"]
    assert worst["pgd"] < clean - 3
    accuracy = table[table["metric"] == "accuracy"].set_index(["attack", "eps"])["value"]
    assert accuracy["pgd", "16/255"] <= accuracy["pgd", "2/255"] <= accuracy["pgd", "0"] + 1e-9
    panel = attack_panel({run.label: run})
    assert panel is not None
    assert "leaves a mean IoU" in panel.findings[0].text
    assert panel.card.values[run.label].has_interval
    again = AttackOptions.from_config(run.config)
    assert set(again.attacks) == {"noise", "fgsm", "pgd"}
    np.testing.assert_allclose(run.table("segmentation_classes")["iou"].mean(), clean)


def test_what_is_made_for_one_class_per_image_is_refused(tmp_path: Path):
    data = load_data("pixel_model:squares", first=2)
    with pytest.raises(VitscopeError, match="cumulative is for items of one class each"):
        attack(open_model(PixelViT()), data, "fgsm", out=tmp_path / "a", cumulative=True, progress=False)
    pytest.importorskip("foolbox")
    with pytest.raises(VitscopeError, match="looks for another class of a whole image"):
        SegmentationAttack(attacks=["cw"], norm="l2", eps="1")
