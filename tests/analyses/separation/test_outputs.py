from __future__ import annotations

import os
import subprocess

import numpy as np
import pytest
from PIL import Image

from vitscope.analyses.separation import animation, outputs
from vitscope.report.figures import house_style


def test_a_report_leaves_every_file_of_the_study(reported_run):
    figures = reported_run.figures_dir
    assert sorted(p.name for p in (figures / "epoch").iterdir()) == [f"epoch_{e:03d}.png" for e in range(4)]
    assert sorted(p.name for p in (figures / "layer").iterdir()) == [f"layer_{i:02d}.png" for i in range(1, 5)]
    for name in ("fuzziness_vs_epochs.png", "accuracy_vs_epochs.png"):
        assert Image.open(figures / name).size[0] > 1000
    with Image.open(figures / "training_fuzziness.gif") as gif:
        assert (gif.n_frames, gif.info.get("loop")) == (4, 0)
    assert not (figures / "training_fuzziness.mp4").exists()


def test_the_tidy_table_joins_fuzziness_with_the_epochs_scores(reported_run):
    run = reported_run
    table, probe, training = (run.table(n) for n in ("separation_training", "probe_separation", "training"))
    assert len(table) == len(probe)
    assert list(table.columns[:6]) == ["epoch", "layer", "point", "token", "split", "fuzziness"]
    assert table[table["epoch"] == 0]["train_loss"].isna().all(), "nothing was learned yet"
    for epoch, row in training.set_index("epoch").iterrows():
        mine = table[table["epoch"] == epoch]
        assert (mine["test_accuracy"] == row["test_accuracy"]).all()
        assert (mine["train_loss"] == row["train_loss"]).all()
    fits = run.table("separation_epoch_fits")
    law = fits[(fits["curve"] == "log_linear") & (fits["token"] == "class")].set_index("split")["rho"]
    np.testing.assert_allclose(law, 0.9)


def test_drawing_again_writes_the_same_tables(reported_run, probed_run, monkeypatch):
    monkeypatch.setattr(outputs, "epoch_figures", lambda *_: {})  # tables are what is compared here
    monkeypatch.setattr(outputs, "write_gif", lambda path, frames: path)
    monkeypatch.setattr(outputs, "encoder", lambda: None)
    with house_style():
        outputs.write_outputs(probed_run)
    for name in ("separation_training", "separation_epoch_fits"):
        first, again = (run.tables_dir / f"{name}.csv" for run in (reported_run, probed_run))
        assert again.read_bytes() == first.read_bytes()


def test_what_is_newer_than_its_tables_is_not_drawn_again(reported_run, monkeypatch):
    monkeypatch.setattr(outputs, "_save", lambda *_: pytest.fail("drawn again"))
    with house_style():
        assert outputs.write_outputs(reported_run) == []
        os.utime(reported_run.tables_dir / "training.csv")  # another epoch came
        with pytest.raises(pytest.fail.Exception, match="drawn again"):
            outputs.write_outputs(reported_run)


def test_a_long_training_is_thinned_out_but_keeps_its_ends():
    import pandas as pd

    probe = pd.DataFrame({"epoch": range(0, 151)})
    chosen = outputs.chosen_epochs(probe, 40)
    assert len(chosen) <= 41
    assert (chosen[0], chosen[-1]) == (0, 150)


def test_videos_have_a_frame_per_epoch_where_an_encoder_exists(tmp_path):
    ffmpeg = animation.encoder()
    if ffmpeg is None:
        pytest.skip("no video encoder (ffmpeg, or pip install 'vitscope[video]')")
    frames = [Image.new("RGB", (101, 61), (40 * i, 0, 90)) for i in range(4)]
    written = animation.write_videos(tmp_path / "film", frames, ffmpeg)
    assert [p.suffix for p in written] == [".mp4", ".webm"]
    for path in written:
        seen = subprocess.run([ffmpeg, "-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"], capture_output=True)
        still = round(animation.LAST_MS / animation.FRAME_MS)
        assert len(seen.stdout) == (4 + still) * 100 * 60 * 3, "odd sides are cut by a pixel"


def test_the_colours_of_the_gif_are_those_of_the_frames(tmp_path):
    frames = [Image.new("RGB", (20, 20), colour) for colour in ("white", "white")]
    frames[1].paste((213, 94, 0), (5, 5, 15, 15))
    animation.write_gif(tmp_path / "a.gif", frames)
    with Image.open(tmp_path / "a.gif") as gif:
        gif.seek(1)
        assert gif.convert("RGB").getpixel((10, 10)) == (213, 94, 0)
