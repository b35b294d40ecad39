from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from vitscope.analyses.separation import outputs, profile
from vitscope.analyses.separation.panel import separation_panel
from vitscope.report.figures import house_style
from vitscope.runs import Run


def panel(**runs):
    with house_style():
        return separation_panel(runs)


@pytest.fixture(scope="module")
def alone(reported_run):
    return panel(small=reported_run)


def test_the_finding_tells_the_spike_against_pixels_and_embedding_apart(alone):
    (finding,) = alone.findings
    peak = 260 * 1.2 * 0.9**3
    assert f"D = {peak:.0f}" in finding.text
    assert f"{peak / 25:.2f} times the raw pixels" in finding.text
    assert f"{peak / 250:.3f} times the patch embedding" in finding.text
    assert "per block ×0.600 (R² 1.00 of log D)" in finding.text
    assert "describes it better" not in finding.text


def test_a_slider_shows_a_frame_per_probed_epoch(alone):
    html = alone.html
    assert re.findall(r'data-label="(\d+)"', html) == ["0", "1", "2", "3"]
    assert html.count("<svg") == 4


def test_several_trainings_share_one_profile_and_each_writes_its_own_files(probed_run, tmp_path):
    two = panel(a=probed_run, b=Run.open(probed_run.path))
    assert len(two.write) == 2
    assert [f.text.partition(":")[0] for f in two.findings] == ["a", "b"]
    assert "separation_profile" in two.figures
    for label in "ab":  # each says whose it is
        (ax,) = two.figures[f"separation_epochs_{label}"].axes[:1]
        assert any(text.get_text().startswith(f"{label}: ") for text in ax.texts)
    assert set(two.tables) >= {"separation_fits", "separation_spike", "separation_epoch_fits"}


def with_fits(run: Run) -> Run:
    """The run with the curves over the blocks of every epoch, as a training leaves it."""
    probe = run.table("probe_separation")
    parts = [
        profile.block_fits(rows).assign(epoch=epoch, split=split)
        for (epoch, split), rows in probe.groupby(["epoch", "split"])
    ]
    with Run.create(run.path, run.config, kind="train") as writing:
        writing.write_table("probe_separation_fits", pd.concat(parts), allow_nan=profile.FIT_COLUMNS)
    return Run.open(run.path)


def test_curves_that_are_in_the_tables_are_drawn_and_not_fitted_again(probed_run, monkeypatch):
    fitted = panel(small=probed_run)
    run = with_fits(probed_run)
    with house_style():
        monkeypatch.setattr(outputs, "epoch_figures", lambda *_: {})
        monkeypatch.setattr(outputs, "encoder", lambda: None)
        monkeypatch.setattr(outputs, "write_gif", lambda path, frames: path.write_bytes(b""))
        outputs.write_outputs(run)  # leaves the curves over the epochs
        monkeypatch.undo()
    monkeypatch.setattr(profile, "compare_fits", lambda *_: pytest.fail("fitted again"))
    stored = panel(small=run)
    assert stored.findings == fitted.findings
    assert stored.html == fitted.html
    for name in ("separation_fits", "separation_epoch_fits"):
        pd.testing.assert_frame_equal(stored.tables[name], fitted.tables[name], check_exact=True, check_dtype=False)
    for name in ("separation_profile", "separation_epochs"):
        for ours, theirs in zip(stored.figures[name].axes[0].lines, fitted.figures[name].axes[0].lines, strict=True):
            np.testing.assert_array_equal(ours.get_ydata(), theirs.get_ydata())


def test_without_tables_there_is_no_panel(tmp_path):
    with Run.create(tmp_path / "other", {"label": "x"}, kind="train") as run:
        pass
    assert panel(x=run) is None


def test_points_that_were_not_measured_are_left_out(probed_run):
    table = probed_run.table("probe_separation")
    with Run.create(probed_run.path, probed_run.config, kind="train") as run:
        kept = table[(table["epoch"] == 3) & ~table["point"].isin(["pixels", "logits"])]
        run.write_table("probe_separation", kept, allow_nan=["fuzziness"])
    assert "separation_epochs" not in panel(small=run).figures
