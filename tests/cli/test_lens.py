from __future__ import annotations

import pytest

from vitscope.analyses.class_space.lens_options import LensOptions
from vitscope.cli import run
from vitscope.errors import VitscopeError

SMALL = ["img_size=28", "patch_size=14", "in_chans=1", "embed_dim=16", "depth=2", "num_heads=2", "num_classes=10"]


def test_options_reach_every_part_and_set_wins():
    options = LensOptions(models=("m",), control="random", variant="code", train="d", set={"probes.alphas": [5.0]})
    request = options.as_request()
    assert request.only == (
        "accuracy",
        "class_space.identifiability",
        "class_space.composition",
        "class_space.memories",
        "class_space.lens",
        "perturbation",
        "probes",
    )
    for name in request.only[1:]:
        assert request.set[f"{name}.control"] == "random"
        assert request.set[f"{name}.variant"] == "code"
    assert request.set["probes.alphas"] == [5.0]
    assert LensOptions(models=("m",), parts=("relevance,lens",)).as_request().only == (
        "accuracy",
        "relevance",
        "class_space.lens",
    )
    with pytest.raises(VitscopeError, match="Did you mean memories"):
        LensOptions(models=("m",), parts=("memorys",)).as_request()


def test_the_command_writes_a_report_with_the_masks_of_the_digits(tmp_path, capsys):
    words = ["lens", "vit_tiny_patch16_224", "--weights", "random", "--model-options", *SMALL, "--data", "mnist5k"]
    words += ["--images", "20", "--out", str(tmp_path / "run"), "--no-progress", "--gallery", "2"]
    assert run(words) == 0
    tables = {p.stem for p in (tmp_path / "run" / "tables").glob("*.csv")}
    assert {"class_space_identifiability", "class_space_class_vs_context", "perturbation", "maps_class_space"} <= tables
    assert "At which block do tokens know the class?" in (tmp_path / "run" / "report.html").read_text()
    assert "class_space.identifiability.identifiable_image" in capsys.readouterr().out


def test_the_mask_rule_is_recorded_and_a_rerun_keeps_it(tmp_path):
    from vitscope.analyses.request import AnalyzeOptions
    from vitscope.runs import Run

    words = ["lens", "vit_tiny_patch16_224", "--weights", "random", "--model-options", *SMALL, "--data", "mnist5k"]
    words += ["--images", "20", "--parts", "identifiability", "--no-progress", "--no-report"]
    for rule in ("centre", "corner"):
        assert run([*words, "--mask-rule", rule, "--out", str(tmp_path / rule)]) == 0
    centre, corner = (Run.open(tmp_path / rule) for rule in ("centre", "corner"))
    assert "mask_rule" not in centre.config["data"]  # as in runs that knew no such option
    assert corner.config["data"]["mask_rule"] == "corner"
    assert AnalyzeOptions.from_config(corner.config).mask_rule == "corner"
    counts = [
        run.table("class_space_identifiability").query("tokens == 'object'")["n_tokens"] for run in (centre, corner)
    ]
    assert not counts[0].equals(counts[1])
    assert run([*words, "--mask-rule", "corners", "--out", str(tmp_path / "wrong")]) == 2
