from __future__ import annotations

import functools
import signal
import subprocess
import sys
from importlib import import_module, metadata
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from vitscope.cli import COMMANDS, run
from vitscope.errors import FirstProcessError, VitscopeError


def test_without_arguments_the_help_is_printed(capsys):
    assert run([]) == 0
    out = capsys.readouterr().out
    assert all(command in out for command in COMMANDS)


def test_help_and_no_arguments_say_the_same(capsys):
    run([])
    first = capsys.readouterr().out
    run(["--help"])
    assert capsys.readouterr().out == first


def test_an_unknown_command_suggests_the_nearest_and_exits_with_2(capsys):
    assert run(["analise"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "no command 'analise'" in captured.err
    assert "Did you mean analyze?" in captured.err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_its_help_with_examples(command, capsys):
    with pytest.raises(SystemExit) as stop:
        run([command, "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert f"usage: vitscope {command}" in out
    assert "examples:" in out
    assert f"\n  vitscope {command}" in out


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_option_exits_with_2(command, capsys):
    with pytest.raises(SystemExit) as stop:
        run([command, "something", "--no-such-option"])
    assert stop.value.code == 2
    assert "--no-such-option" in capsys.readouterr().err


def test_a_misspelt_option_suggests_the_nearest(capsys):
    with pytest.raises(SystemExit):
        run(["analyze", "test_vit", "--data", "mnist5k", "--imges", "4"])
    assert "--images" in capsys.readouterr().err


def test_an_error_of_the_library_is_its_message_alone(monkeypatch, capsys):
    def fail(arguments):
        raise VitscopeError("The moon is in the wrong phase.")

    monkeypatch.setattr("vitscope.cli.models.main", fail)
    assert run(["models"]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "The moon is in the wrong phase.\n")


def test_a_bug_is_one_line_and_a_file_with_the_traceback(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vitscope.cli.models.main", lambda words: {}["moon"])
    assert run(["models", "a b"]) == 1
    out, err = capsys.readouterr()
    (file,) = tmp_path.glob("vitscope-crash-*.txt")
    assert out == ""
    assert err == (
        f"vitscope stopped at something unforeseen: KeyError: 'moon'; the traceback is in {file}. Please report it.\n"
    )
    text = file.read_text()
    assert "command   vitscope models 'a b'\n" in text
    assert f"torch {metadata.version('torch')}" in text
    assert "Traceback (most recent call last)" in text
    assert 'lambda words: {}["moon"]' in text


def test_a_bug_in_code_of_ones_own_is_named_by_its_line(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_words.py").write_text(
        "import torch\n\ndef main(words):\n    return torch.ones(2) @ torch.ones(3)\n"
    )
    monkeypatch.setattr("vitscope.cli.models.main", import_module("own_words").main)
    assert run(["models"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("vitscope stopped in own_words.py, line 4: RuntimeError: ")
    assert "unforeseen" not in err


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "not enough memory (MemoryError)"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "not enough memory"),
        (torch.OutOfMemoryError("CUDA out of memory."), "A smaller --batch-size"),
        (RecursionError("maximum recursion depth exceeded"), "nested too deep"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_memory_and_depth_have_a_sentence_of_their_own(error, words, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vitscope.cli.models.main", Mock(side_effect=error))
    assert run(["models"]) == 1
    err = capsys.readouterr().err
    assert words in err
    assert "unforeseen" not in err
    assert len(list(tmp_path.iterdir())) == 1


def test_without_a_folder_to_write_to_the_traceback_goes_to_the_temporary_one(monkeypatch, tmp_path, capsys):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("vitscope.cli.models.main", Mock(side_effect=ZeroDivisionError))
    assert run(["models"]) == 1
    (file,) = tmp_path.iterdir()
    assert str(file) in capsys.readouterr().err


def test_whoever_debugs_gets_the_error_itself(monkeypatch):
    monkeypatch.setenv("VITSCOPE_DEBUG", "1")
    monkeypatch.setattr("vitscope.cli.models.main", Mock(side_effect=ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        run(["models"])


def test_a_file_that_cannot_be_used_is_the_users_matter(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vitscope.cli.models.main", lambda words: Path("m" * 300).read_text())
    assert run(["models"]) == 2
    assert capsys.readouterr().err == f"Cannot use {'m' * 300}: File name too long.\n"
    assert list(tmp_path.iterdir()) == []


def test_of_several_processes_the_others_say_who_they_are_and_do_not_repeat_the_first(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    for error, said in ((VitscopeError("No."), "[process 1] No.\n"), (FirstProcessError("No."), "")):
        monkeypatch.setattr("vitscope.cli.models.main", Mock(side_effect=error))
        assert run(["models"]) == 2
        assert capsys.readouterr().err == said


@pytest.mark.parametrize(("command", "resumes"), [("models", False), ("analyze", True)])
def test_ctrl_c_exits_with_130_and_says_whether_the_command_can_go_on(command, resumes, monkeypatch, capsys):
    def stop(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"vitscope.cli.{command}.main", stop)
    assert run([command]) == 130
    assert ("The same command" in capsys.readouterr().err) == resumes


def test_after_ctrl_c_a_message_of_the_run_comes_before_the_general_one(monkeypatch, capsys):
    def stop(arguments):
        raise KeyboardInterrupt("Stopped after 3 epochs.")

    monkeypatch.setattr("vitscope.cli.analyze.main", stop)
    assert run(["analyze"]) == 130
    assert capsys.readouterr().err == "\nStopped after 3 epochs.\n"


def begin(*words: str, **options) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


# a command that is still at it when the signal comes
WAITING = """
import time
import vitscope.models
from vitscope.cli import main

vitscope.models.iter_models = lambda pattern: (print("begun", flush=True), time.sleep(60))
main(["models"])
"""


def test_a_real_interrupt_signal_leaves_no_traceback():
    # a shell starts background jobs with Ctrl-C ignored; whoever runs the tests so must not change what is tested
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with begin("-c", WAITING, preexec_fn=heed) as process:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        err = process.stderr.read()
        process.stdout.close()
    assert process.returncode == 130
    assert "Traceback" not in err


def test_a_reader_that_goes_away_is_no_error():
    with begin("-m", "vitscope", "models", "test_vit") as process:
        process.stdout.close()
        err = process.stderr.read()
    assert (process.returncode, err) == (0, "")
