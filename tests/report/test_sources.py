"""From folders to the models of a page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from vitscope.errors import RunError
from vitscope.report.sources import default_page, gather, owner_of, parts_of
from vitscope.runs import Run


def test_a_folder_of_runs_stands_for_its_runs(make_run: Callable[..., Run]) -> None:
    a, b = make_run("a"), make_run("b")
    assert list(gather(a.path.parent)) == ["a", "b"]
    assert list(gather([b.path, a])) == ["b", "a"]
    assert list(gather([a, a.path])) == ["a"]


def test_equal_names_are_told_apart_by_their_folders(make_run: Callable[..., Run]) -> None:
    runs = gather([make_run("m", folder="first"), make_run("m", folder="second")])
    assert list(runs) == ["m (first)", "m (second)"]


def test_a_training_joins_the_analysis_of_its_model(
    make_run: Callable[..., Run], make_training: Callable[..., Run]
) -> None:
    training = make_training("t1")
    other = make_training("t2")
    analysis = make_run("m", config={"model": {"name": "m", "run": "t1", "run_path": str(training.path)}})
    runs = gather([training, analysis, other])
    assert list(runs) == ["m", "vit_demo"]
    assert runs["m"].table("training") is not None
    assert runs["m"].table("images") is not None
    assert owner_of(runs["m"], "training").path == training.path
    assert "accuracy.top1" in runs["m"].summary
    assert runs["vit_demo"].path == other.path


def test_runs_that_look_at_one_model_in_different_ways_are_one_model(
    make_run: Callable[..., Run], make_training: Callable[..., Run]
) -> None:
    training = make_training("t1")
    model = {"name": "m", "run": "t1", "run_path": str(training.path)}
    seen = make_run("m", folder="seen", config={"model": model, "analyses": {"attention": {}}})
    attacked = make_run("m", folder="attacked", config={"model": model, "analyses": {"attack": {}}})
    again = make_run("m", folder="again", config={"model": model, "analyses": {"attention": {"per_image": True}}})
    other = make_run("m", folder="other", config={"model": {"name": "m2"}, "analyses": {"probes": {}}})
    (one,) = gather([seen, attacked, training]).values()
    assert [part.path for part in parts_of(one)] == [seen.path, attacked.path, training.path]
    assert list(gather([seen, again])) == ["m (seen)", "m (again)"]
    assert list(gather([seen, other])) == ["m", "m2"]


def test_no_runs_and_no_folder_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="at least one run"):
        gather([])
    with pytest.raises(RunError, match="no run folder"):
        gather([tmp_path / "absent"])
    with pytest.raises(RunError, match="not a run"):
        gather([tmp_path])


def test_the_page_lies_in_the_run_or_in_the_folder_that_holds_all(make_run: Callable[..., Run]) -> None:
    a, b = make_run("a"), make_run("b")
    assert default_page([a]) == a.path.resolve() / "report.html"
    assert default_page([a, b]) == a.path.resolve().parent / "report.html"
