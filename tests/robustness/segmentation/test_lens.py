"""Patches that lose their class, against a plain loop over patches of two caches."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from vitscope import attack, evaluate, open_model
from vitscope.data import load_data
from vitscope.errors import VitscopeError
from vitscope.models import Model
from vitscope.robustness.attack_options import AttackOptions
from vitscope.robustness.evaluation.evaluate_options import EvaluateOptions
from vitscope.robustness.segmentation.conditions import SegmentationConditions
from vitscope.robustness.segmentation.lens import PatchLens
from vitscope.robustness.segmentation.lens_panel import attack_lens_panel, corruption_lens_panel

sys.path.insert(0, str(Path(__file__).parents[2]))
from pixel_model import PixelViT
from segmented_scenes import CLASSES, PATCH, SIZE, scene_batches, tiny

QUIET: dict[str, Any] = {"progress": False, "report": False}


@pytest.mark.parametrize("decoder", ["linear", "mask"])
def test_the_table_is_what_a_loop_over_patches_says(decoder: str):
    model, (batch,) = tiny(decoder), scene_batches(5)
    changed = batch.images + 1.5 * torch.randn(batch.images.shape, generator=torch.Generator().manual_seed(1))
    maps = batch.targets, batch.targets.clone()
    maps[1][:, :, :8] = 2  # something moved there
    lens = PatchLens(model)
    sums = lens.new_sums(2)
    lens.compare(sums, 1, batch.images, changed, maps, batch.indices)
    assert not any(sums[name][0].any() for name in sums)  # the other version
    table = lens.table(sums, [{"version": "a"}, {"version": "b"}])
    with torch.no_grad():
        caches = [model.run_with_cache(x, "blocks.*.hook_resid_post")[1] for x in (batch.images, changed)]
    streams = [[c[f"blocks.{b}.hook_resid_post"][:, 1:] for b in range(3)] for c in caches]
    told = [[model.to_class_space(x).argmax(-1) for x in stream] for stream in streams]
    side, rows = SIZE // PATCH, []
    for i in range(len(batch.images)):
        for t in range(side * side):
            y, x = divmod(t, side)
            cells = [m[i, y * PATCH : (y + 1) * PATCH, x * PATCH : (x + 1) * PATCH] for m in maps]
            counts = [torch.bincount(c[c >= 0], minlength=CLASSES) for c in cells]
            if counts[0].sum() == 0 or counts[0].argmax() != counts[1].argmax():
                continue
            own = int(counts[0].argmax())
            right = [[bool(told[v][b][i, t] == own) for b in range(3)] for v in (0, 1)]
            moved = [float((streams[1][b] - streams[0][b])[i, t].norm() / streams[0][b][i, t].norm()) for b in range(3)]
            if right[0][2]:
                rows.append((right, moved))
    mine = table[table["tokens"] == "all"].set_index("block")
    assert set(table["version"]) == {"b"}
    assert mine["n_patches"].tolist() == [len(rows)] * 3
    gone = [right for right, _ in rows if not right[1][2]]
    assert 3 < len(gone) < len(rows)
    for b in range(3):
        assert mine.loc[b, "right_clean"] == pytest.approx(100 * sum(r[0][b] for r, _ in rows) / len(rows))
        assert mine.loc[b, "right_changed"] == pytest.approx(100 * sum(r[1][b] for r, _ in rows) / len(rows))
        assert mine.loc[b, "moved"] == pytest.approx(sum(m[b] for _, m in rows) / len(rows), rel=1e-4)
        assert mine.loc[b, "lost"] == sum(first([not r for r in right[1]]) == b for right in gone)
        assert mine.loc[b, "won"] == sum(first(right[0]) == b for right in gone)
    parts = table[table["tokens"] != "all"].groupby("block")[["lost", "won", "n_patches"]].sum()
    assert (parts == mine[["lost", "won", "n_patches"]]).all().all()


def first(held: list[bool]) -> int:
    """The first block from which all are true."""
    return next(b for b in range(len(held)) if all(held[b:]))


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(0)
    return open_model(PixelViT())


def test_an_attack_shows_where_patches_lose_their_class_beside_noise(model: Model, tmp_path: Path):
    data = load_data("pixel_model:squares", first=6)
    given: dict[str, Any] = {"steps": 3, "lens": True, "lens_eps": "16/255", **QUIET}
    run = attack(model, data, ["pgd"], ["0", "16/255"], tmp_path / "run", **given)
    table = run.table("segmentation_attack_lens")
    assert set(table["attack"]) == {"pgd", "noise"}
    assert set(table["eps"]) == {"16/255"}
    ends = table[(table["block"] == 1) & (table["tokens"] == "all")].set_index("attack")
    assert (ends["right_clean"] == 100).all()
    assert ends.loc["pgd", "right_changed"] < ends.loc["noise", "right_changed"]
    for name in ("pgd", "noise"):
        assert ends.loc[name, "n_lost"] == round(
            ends.loc[name, "n_patches"] * (1 - ends.loc[name, "right_changed"] / 100)
        )
    panel = attack_lens_panel({run.label: run})
    assert panel is not None
    assert "pgd (budget 16/255) takes the class from" in panel.findings[0].text
    again = AttackOptions.from_config(run.config)
    assert (bool(again.lens), again.lens_eps) == (True, "16/255")
    with pytest.raises(VitscopeError, match=r"lens-eps 9/255 is not among the epsilons: 1/255"):
        attack(model, data, ["fgsm"], "1/255", tmp_path / "a", lens=True, lens_eps="9/255", **QUIET)
    with pytest.raises(VitscopeError, match="one lens, that on patches"):
        attack(model, data, ["fgsm"], "1/255", tmp_path / "b", lens=["attention"], **QUIET)


def test_corruptions_show_where_patches_lose_their_class(model: Model, tmp_path: Path):
    pytest.importorskip("imagecorruptions")
    data = load_data("pixel_model:uneven", first=5)
    given: dict[str, Any] = {"corrupt": ["contrast", "elastic_transform"], "severities": ["5"], "lens": True, **QUIET}
    run = evaluate(model, data, out=tmp_path / "run", **given)
    table = run.table("segmentation_lens")
    assert {"contrast", "elastic_transform"} == set(table["corruption"])
    # the same pairs, put together by hand
    conditions = SegmentationConditions(data, [("contrast", 5)], seed=0)
    batches = list(conditions.batches(model.preprocess, 1))
    lens = PatchLens(model)
    sums = lens.new_sums(1)
    for clean, changed in zip(batches[:5], batches[5:]):
        lens.compare(sums, 0, clean.inputs, changed.inputs, (clean.targets, changed.targets), clean.indices)
    expected = lens.table(sums, [{"corruption": "contrast", "severity": 5}])
    found = table[table["corruption"] == "contrast"].reset_index(drop=True)
    for column in ("right_clean", "right_changed", "moved", "lost", "won", "n_patches", "n_images"):
        assert found[column].tolist() == pytest.approx(expected[column].tolist(), rel=1e-5), column
    assert corruption_lens_panel({run.label: run}) is not None
    assert EvaluateOptions.from_config(run.config).lens
    with pytest.raises(VitscopeError, match="say what changes them"):
        evaluate(model, data, out=tmp_path / "plain", lens=True, **QUIET)
    with pytest.raises(VitscopeError, match="one class per image"):
        EvaluateOptions(corrupt=("contrast",), lens=True).suited(None, load_data("mnist5k", "test", images=2))
