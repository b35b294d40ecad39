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


def test_a_table_for_a_paper_is_printed_or_written(finished_run, tmp_path, capsys):
    words = ["report", str(finished_run), "--table", "top1=Top-1,entropy_normalised"]
    assert run(words) == 0
    assert capsys.readouterr().out.startswith("| model | Top-1 (%) | entropy_normalised (share) |\n")
    assert run([*words, "--out", str(tmp_path / "t.tex")]) == 0
    assert capsys.readouterr().out == f"Table: {tmp_path / 't.tex'}\n"
    assert r"\toprule" in (tmp_path / "t.tex").read_text()


def test_options_of_a_table_without_a_table_are_refused(finished_run, tmp_path, capsys):
    assert run(["report", str(finished_run), "--format", "csv"]) == 2
    assert "--table top1,pgd@1/255" in capsys.readouterr().err
    assert run(["report", str(finished_run), "--table", "top1", "--out", str(tmp_path / "t.doc")]) == 2
    assert ".tex" in capsys.readouterr().err


def test_a_run_is_cited(finished_run, tmp_path, capsys):
    assert run(["cite", str(finished_run)]) == 0
    assert "@inproceedings{guo2017calibration," in capsys.readouterr().out
    assert run(["cite", str(finished_run), "--out", str(tmp_path / "v.bib")]) == 0
    assert "@software{vitscope," in (tmp_path / "v.bib").read_text()
