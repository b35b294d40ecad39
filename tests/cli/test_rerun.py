from __future__ import annotations

from vitscope.cli import run


def test_a_run_is_done_again_beside_the_old_one_with_the_same_tables(finished_run):
    assert run(["rerun", str(finished_run)]) == 0
    again = finished_run.with_name("tiny-rerun")
    tables = sorted(path.name for path in (finished_run / "tables").iterdir())
    assert tables
    assert sorted(path.name for path in (again / "tables").iterdir()) == tables
    for name in tables:
        assert (again / "tables" / name).read_bytes() == (finished_run / "tables" / name).read_bytes()
    assert (again / "config.yaml").read_bytes() == (finished_run / "config.yaml").read_bytes()


def test_a_folder_that_is_no_run_is_refused(tmp_path, capsys):
    assert run(["rerun", str(tmp_path)]) == 2
    assert "is not a run of vitscope" in capsys.readouterr().err
