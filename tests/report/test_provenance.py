"""Headline facts and 'How this was made'."""

from __future__ import annotations

from collections.abc import Callable

from vitscope.report.provenance import headline, key_figures, making, notices, timing_line
from vitscope.runs import Run


def test_facts_that_models_share_are_said_once(make_run: Callable[..., Run]) -> None:
    a = make_run("a")
    b = make_run("b", config={"data": {"name": "cifar10", "split": "test", "fingerprint": "other"}})
    assert headline({"a": a})[:2] == [("Data", "mnist5k (test)"), ("Images", "1,000")]
    assert headline({"a": a, "b": b})[0] == ("Data", "a: mnist5k (test) · b: cifar10 (test)")


def test_different_images_and_unfinished_runs_are_announced(make_run: Callable[..., Run]) -> None:
    a = make_run("a")
    other = make_run("b", config={"data": {"name": "mnist5k", "fingerprint": "other"}})
    unfinished = make_run("c", finished=False)
    assert notices({"a": a}) == []
    assert "did not see the same images" in notices({"a": a, "b": other})[0]
    b = make_run("d", config={"data": {"name": "mnist5k", "fingerprint": "other"}})
    for table in b.tables_dir.glob("*.csv"):  # nothing was measured of both
        table.rename(table.with_stem(f"other_{table.stem}"))
    assert notices({"a": a, "d": b}) == []
    assert "run in c is unfinished (run the same command again" in notices({"c": unfinished})[0]
    with Run.create(unfinished.path, unfinished.config, kind="analyze"):
        assert "being written by process" in notices({"c": unfinished})[0]


def test_key_figures_have_a_cell_per_model_also_where_one_has_none(
    make_run: Callable[..., Run], make_training: Callable[..., Run]
) -> None:
    rows = key_figures({"a": make_run("a"), "t": make_training("t")})
    assert [row["name"] for row in rows] == ["recognised at the first guess", "loss"]
    assert rows[0]["cells"] == ['<span class="number" title="93.4567891">93.5 %</span>', "–"]
    assert rows[0]["n"] == "1,000"


def test_a_value_in_the_name_of_a_figure_keeps_its_point(make_run: Callable[..., Run]) -> None:
    run = make_run("a")
    with Run.create(run.path, run.config, kind="analyze") as writer:
        writer.write_summary({"attack.sparse_l1@0.05": {"value": 1.0, "unit": "%", "n": 3}})
    assert key_figures({"a": run})[-1]["name"] == "attack: sparse l1 at 0.05"


def test_shares_are_shown_in_percent(make_run: Callable[..., Run]) -> None:
    run = make_run("a")
    with Run.create(run.path, run.config, kind="analyze") as writer:
        writer.write_summary({"attention.mass": {"value": 0.0645, "unit": "share", "n": 3}})
    assert key_figures({"a": run})[-1]["cells"] == ['<span class="number" title="0.0645">6.45 %</span>']


def test_making_names_command_versions_fingerprint_and_warnings(make_run: Callable[..., Run]) -> None:
    made = making("a", make_run("a"))
    facts = dict(made["facts"])
    assert facts["Command"] == "vitscope analyze 'a' --data mnist5k"
    assert facts["Data fingerprint"] == "9f2c51d0aa31"
    assert "torch " in facts["Versions"]
    assert len(made["warnings"]) == len(made["skipped"]) == 1
    assert "fingerprint: 9f2c51d0aa31" in made["config"]


def test_timings_are_read_by_their_unit() -> None:
    assert timing_line("analyze.seconds", 83.25) == ("analyze: time", "1 min 23 s", "83.25 s")
    assert timing_line("peak_memory_bytes", 812345678) == ("peak memory", "812 MB", "812345678 bytes")
    assert timing_line("images_per_second", 612.5) == ("images per second", "612", "612.5")
    assert timing_line("device", "cpu") == ("device", "cpu", "")
