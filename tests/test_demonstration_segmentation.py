from __future__ import annotations

import dataclasses
import io
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import vitscope
from vitscope.cli import run
from vitscope.training import RECIPES, train


def test_the_demo_with_scenes_walks_the_whole_way(tmp_path: Path) -> None:
    quick = RECIPES["quick-scenes"]
    sizes = {**quick.options["model_options"], "depth": 2, "embed_dim": 16, "num_heads": 2, "patch_size": 7}
    options = {**quick.options, "share": 0.02, "model_options": sizes, "batch_size": 8}
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as printed:
        patch.setitem(RECIPES, "quick-scenes", dataclasses.replace(quick, options=options))
        patch.setattr("vitscope.demonstration.SCENES_SEEN", 6)
        patch.setattr("vitscope.demonstration.CORRUPTED", {"corrupt": ("contrast",), "severities": ("3",)})
        # one after the other and here: processes of their own are tested with the demo of digits
        patch.setattr("vitscope.training.side_by_side.train_side_by_side", lambda options: [train(o) for o in options])
        assert run(["demo", "--segmentation", "--epochs", "1", "--no-progress", "--out", str(tmp_path)]) == 0
    assert "mean IoU" in printed.getvalue()
    page = (tmp_path / "report.html").read_text()
    assert all(name in page for name in ("scenes-softmax", "scenes-rpc", "know what it is", "stay within the class"))
    lens = vitscope.Run.open(tmp_path / "lens" / "scenes-rpc").table("patches_identifiability")
    assert set(lens["block"]) == {0, 1}
    opened = vitscope.open_model(tmp_path / "scenes-rpc")
    assert [block.attn.name for block in opened.blocks] == ["rpc", "symmetric"]


def test_two_demos_at_once_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--text", "--segmentation"]) != 0
    assert "two demos" in capsys.readouterr().err
