from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from vitscope.errors import RunError, VitscopeError
from vitscope.report import build_report
from vitscope.runs import Run
from vitscope.sweeps import sweep
from vitscope.sweeps.job import Job
from vitscope.sweeps.panel import sweep_panel
from vitscope.sweeps.sweeping import failed_runs
from vitscope.training import TrainOptions


def test_runs_are_normal_runs_and_their_averages_are_in_the_tables(finished_sweep):
    run = finished_sweep
    table = run.table("sweep_runs")
    assert (run.status, list(table["status"])) == ("finished", ["finished"] * 6)
    for row in table.to_dict("records"):
        own = Run.open(run.path / "runs" / row["run"])
        assert (own.kind, own.status) == ("train", "finished")
        assert own.config["options"]["lr"] == float(row["option.lr"])
        assert own.config["options"]["seed"] == row["seed"]
        assert row["test_accuracy"] == own.table("training")["test_accuracy"].iloc[-1]
        probe = own.table("probe_separation")
        last = probe[(probe["epoch"] == 1) & (probe["point"] == "block") & (probe["token"] == "class")]
        assert row["last_fuzziness"] == last["fuzziness"].iloc[-1]
    summary = run.table("sweep_summary").set_index(["setting", "metric"])
    mine = table[table["setting"] == "lr=0.001"]
    assert summary.loc[("lr=0.001", "test_accuracy"), "mean"] == pytest.approx(mine["test_accuracy"].mean())
    profile = run.table("sweep_profile")
    assert set(profile["setting"]) == {"lr=0.001", "lr=0.01"}
    assert (profile["runs"] == 3).all()


def test_every_figure_of_every_probe_is_averaged_over_the_seeds(finished_sweep):
    run = finished_sweep
    averages = [name.removeprefix("sweep_probe_") for name in run.list_tables() if name.startswith("sweep_probe_")]
    assert averages == ["attention", "separation", "separation_fits", "separation_spike"]
    runs = [Run.open(run.path / "runs" / f"lr-0.001_seed-{seed}") for seed in range(3)]
    attention = run.table("sweep_probe_attention").set_index(["setting", "epoch", "block", "query", "metric", "figure"])
    for metric, query in (("entropy", "class"), ("distance", "image")):
        own = [own.table("probe_attention").query("epoch == 1 and block == 2") for own in runs]
        means = [t[(t["metric"] == metric) & (t["query"] == query)]["mean"].mean() for t in own]
        row = attention.loc[("lr=0.001", 1, 2, query, metric, "mean")]
        low, high = stats.t.interval(0.95, 2, loc=np.mean(means), scale=stats.sem(means))
        assert (row["mean"], row["smallest"], row["runs"]) == pytest.approx((np.mean(means), min(means), 3))
        if row["unit"] != "share":
            assert (row["low"], row["high"]) == pytest.approx((low, high))
    training = run.table("sweep_training").set_index(["setting", "epoch", "figure"])
    expected = np.mean([own.table("training")["test_loss"].iloc[0] for own in runs])
    assert training.loc[("lr=0.001", 1, "test_loss"), "mean"] == pytest.approx(expected)


def test_without_a_probe_there_are_accuracy_and_loss_and_nothing_else(tiny, here):
    run = sweep(tiny(), {}, seeds=1, cluster="local")
    assert run.list_tables() == ["sweep_runs", "sweep_summary", "sweep_training"]
    metrics = ["train_loss", "train_accuracy", "test_loss", "test_accuracy", "best_accuracy"]
    assert run.table("sweep_summary")["metric"].tolist() == metrics
    assert (run.table("sweep_summary")["runs"] == 1).all()
    assert not list((run.path / "runs").rglob("probe_*"))


def test_texts_are_averaged_and_told_by_perplexity(here, tmp_path):
    pytest.importorskip("transformers")
    (texts := tmp_path / "texts").mkdir()
    for split in ("train", "test"):
        (texts / f"{split}.txt").write_text("one two three four\n" * 40)
    how = {"data": str(texts), "model": "lm-small", "model_options": {"depth": 1, "embed_dim": 16, "num_heads": 2}}
    text = {"vocabulary": "words", "context": 8, "epochs": 1, "batch_size": 4, "progress": False}
    run = sweep(TrainOptions(str(tmp_path / "sweep"), **how, **text), {"lr": [1e-4, 1e-2]}, seeds=3, cluster="local")
    table = run.table("sweep_runs")
    summary = run.table("sweep_summary").set_index(["setting", "metric"])
    for setting in ("lr=0.0001", "lr=0.01"):
        logs = np.log(table[table["setting"] == setting]["test_perplexity"])
        row = summary.loc[(setting, "test_perplexity")]
        low, high = np.exp(stats.t.interval(0.95, 2, loc=logs.mean(), scale=stats.sem(logs)))
        assert (row["mean"], row["low"], row["high"]) == pytest.approx((np.exp(logs.mean()), low, high))
    training = run.table("sweep_training").set_index(["setting", "figure"])
    assert training.loc[("lr=0.01", "test_perplexity"), "mean"] == pytest.approx(row["mean"])
    panel = sweep_panel({"sweep": run})
    assert panel.findings[0].text.startswith("best is lr=0.01: held-out perplexity ")
    assert "last is lr=0.0001 with" in panel.findings[0].text
    assert "lowest held-out perplexity of 2 settings: lr=0.01" in panel.card.says


def test_a_failed_run_is_told_with_its_log_and_tried_again(tiny, here, monkeypatch):
    works, broken = Job.__call__, [True]

    def call(self):
        if broken[0] and self.options.seed == 0:
            raise VitscopeError("the disk of seed 0 is full")
        return works(self)

    monkeypatch.setattr(Job, "__call__", call)
    run = sweep(tiny(), {}, seeds=2, cluster="local")
    table = run.table("sweep_runs").set_index("seed")
    assert list(table["status"]) == ["failed", "finished"]
    assert "the disk of seed 0 is full" in table.loc[0, "reason"]
    assert "the disk of seed 0 is full" in (run.path / table.loc[0, "log"]).read_text()
    assert run.status == "unfinished"
    assert len(failed_runs(run)) == 1
    broken[0] = False
    again = sweep(tiny(), {}, seeds=2, cluster="local")
    assert (again.status, failed_runs(again)) == ("finished", [])
    assert [job.options.seed for job in here[-1].submitted] == [0], "only what was missing"


def test_a_finished_sweep_computes_nothing_and_can_be_extended(tiny, here):
    first = sweep(tiny(), {"lr": ["1e-3"]}, seeds=1, cluster="local")
    before = (first.tables_dir / "sweep_runs.csv").read_bytes()
    again = sweep(tiny(), {"lr": ["1e-3"]}, seeds=1, cluster="local")
    assert len(here) == 1
    assert (again.tables_dir / "sweep_runs.csv").read_bytes() == before
    more = sweep(tiny(), {"lr": ["1e-3", "2e-3"]}, seeds=1, cluster="local")
    assert len(more.table("sweep_runs")) == 2
    assert [job.options.lr for job in here[-1].submitted] == [2e-3]
    assert Run.open(more.path).config["vary"] == {"lr": ["1e-3", "2e-3"]}


def test_other_options_in_the_same_folder_are_refused(tiny, here):
    sweep(tiny(), {}, seeds=1, cluster="local")
    with pytest.raises(RunError, match=r"options\.batch_size: 64 -> 32"):
        sweep(tiny(batch_size=32), {}, seeds=1, cluster="local")


def test_the_page_of_a_sweep_is_drawn_from_its_tables(finished_sweep, monkeypatch):
    monkeypatch.setattr("vitscope.training.probes_panel.OF_A_TABLE", 1)  # quicker
    page = build_report(finished_sweep.path, strict=True).read_text()
    assert 'id="sweep"' in page
    assert "Best is lr=" in page
    for name in ("sweep-profile.svg", "sweep-quantities.svg", "sweep-probe-attention-entropy.svg"):
        assert (finished_sweep.figures_dir / name).exists()
