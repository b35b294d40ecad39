from __future__ import annotations

import pytest

from vitscope.cli import run
from vitscope.cli.attack import corrected
from vitscope.errors import VitscopeError
from vitscope.robustness.attack_options import AttackOptions
from vitscope.runs import Run

SMALL = ["img_size=28", "patch_size=14", "in_chans=1", "embed_dim=16", "depth=2", "num_heads=2", "num_classes=10"]
MODEL = ["vit_tiny_patch16_224", "--weights", "random", "--model-options", *SMALL]


def test_options_reach_the_study():
    options = AttackOptions(models=("m",), attacks=("fgsm,pgd", "noise"), eps=("1/255..2/255",), steps=7, lens=True)
    study = options.study()
    assert [analysis.name for analysis in options.analyses()] == ["attack"]
    assert study["attacks"] == {"fgsm": {}, "pgd": {}, "noise": {}}
    assert (study["eps"], study["steps"], study["lens"]) == (
        ["1/255..2/255"],
        7,
        True,
    )
    assert AttackOptions(attacks=("pgd",), set={"pgd.restarts": 5}).chosen() == {"pgd": {"restarts": 5}}
    with pytest.raises(VitscopeError, match=r"ATTACK.OPTION=VALUE.*\(fgsm\)"):
        AttackOptions(attacks=("fgsm",), set={"pgd.restarts": 5}).chosen()
    with pytest.raises(VitscopeError, match="twice"):
        AttackOptions(attacks=("fgsm,fgsm",)).chosen()


def test_the_command_writes_tables_and_a_report(tmp_path, capsys):
    words = ["attack", *MODEL, "--data", "mnist5k", "--images", "20", "--attacks", "noise,fgsm"]
    words += ["--eps", "8/255", "16/255", "--out", str(tmp_path / "run"), "--no-progress", "--gallery", "4"]
    assert run(words) == 0
    out = capsys.readouterr().out
    assert "attack.fgsm@16/255" in out
    table = Run.open(tmp_path / "run").table("attack")
    assert table[["attack", "eps"]].to_numpy().tolist() == [
        [attack, eps] for attack in ("noise", "fgsm") for eps in ("8/255", "16/255")
    ]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "How easily does it break?" in page
    assert "could not be drawn" not in page


def test_eight_prints_the_command_with_eight_255ths(capsys):
    assert run(["attack", *MODEL, "--data", "mnist5k", "--eps", "8", "--attacks", "fgsm"]) == 2
    err = capsys.readouterr().err
    assert f"vitscope attack {' '.join(MODEL)} --data mnist5k --eps 8/255 --attacks fgsm" in err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["m", "--eps", "8", "16", "--data", "d"], "vitscope attack m --eps 8/255,16/255 --data d"),
        (["m", "--eps", "8", "--data", "d", "--eps", "16"], "vitscope attack m --eps 8/255,16/255 --data d"),
        (["m", "--eps=8,16", "--out", "my runs"], "vitscope attack m --eps 8/255,16/255 --out 'my runs'"),
    ],
)
def test_only_the_epsilons_of_the_command_are_corrected(words, expected):
    assert corrected(words, "8/255,16/255") == expected


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--attacks", "pgdd"], "Did you mean pgd"),
        (["--attacks", "sparse-l1"], "--norm l1"),
        (["--protocol", "mine"], "published"),
        (["--attacks", "pgd", "--set", "pgd.stps=5"], "Did you mean steps"),
    ],
)
def test_bad_words_are_answered_with_better_ones(words, complaint, capsys):
    assert run(["attack", *MODEL, "--data", "mnist5k", *words]) == 2
    assert complaint in capsys.readouterr().err


def test_a_folder_without_labels_is_refused(tmp_path, capsys):
    from PIL import Image

    Image.new("L", (28, 28)).save(tmp_path / "one.png")
    assert run(["attack", *MODEL, "--data", str(tmp_path), "--attacks", "fgsm"]) == 2
    assert "has a label" in capsys.readouterr().err
