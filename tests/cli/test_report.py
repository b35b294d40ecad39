from __future__ import annotations

from vitscope.cli import run


def test_a_report_is_redrawn_from_the_run_folder_alone(finished_run, vitscope):
    page = finished_run / "report.html"
    page.unlink()
    result = vitscope("report", str(finished_run))
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"Report: {page}\n"
    assert "test_vit" in page.read_text()


def test_the_page_can_lie_elsewhere(finished_run, tmp_path):
    assert run(["report", str(finished_run), "--out", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").exists()


def test_no_run_at_all_is_refused(capsys):
    assert run(["report"]) == 2
    assert "run folder" in capsys.readouterr().err


def test_a_folder_that_does_not_exist_is_refused(tmp_path, capsys):
    assert run(["report", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err
