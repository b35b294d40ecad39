from __future__ import annotations

import pytest
import yaml

from vitscope.cli import run
from vitscope.runs import Run

SMALL = ["--recipe", "quick", "--share", "0.05", "--epochs", "1", "--model-options", "depth=1", "embed_dim=16"]


def test_a_model_is_trained_and_can_be_analysed_from_its_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["train", *SMALL, "--no-progress", "--out", "trained"]) == 0
    assert "Report: trained/report.html" in capsys.readouterr().out
    trained = Run.open(tmp_path / "trained")
    assert (trained.status, trained.kind) == ("finished", "train")
    assert trained.environment["command"].startswith("vitscope train --recipe quick")
    words = ["trained", "--data", "mnist5k", "--images", "10", "--only", "accuracy", "--no-progress", "--out", "seen"]
    assert run(["analyze", *words]) == 0
    assert Run.open(tmp_path / "seen").config["model"]["run"] == "trained"

    assert run(["train", "--config", "trained/config.yaml", "--no-progress", "--seed", "1", "--out", "other"]) == 0
    before, after = (Run.open(tmp_path / name).config["options"] for name in ("trained", "other"))
    assert after == {**before, "seed": 1}


def test_options_of_the_model_add_to_those_of_the_recipe(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setenv("VITSCOPE_DEBUG", "1")  # so that the error below comes through
    monkeypatch.setattr("vitscope.training.train", lambda options, command: seen.append(options) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(["train", *SMALL])
    options = seen[0].model_options
    assert (options["depth"], options["embed_dim"], options["img_size"]) == (1, 16, 28)


BAD = {
    "unknown recipe": (["--recipe", "quik"], "Did you mean quick"),
    "recipe and file": (["--recipe", "quick", "--config", "x.yaml"], "choose one"),
    "unknown model": (["--model", "vit_tinny_patch16_224"], "Did you mean"),
    "unknown data": (["--data", "mnist5"], "Did you mean mnist5k"),
    "no epochs": (["--epochs", "0"], "epochs=0"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_a_message_and_exit_code_2(case, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words, message = BAD[case]
    assert run(["train", *words, "--no-progress", "--out", "out"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_option_that_the_file_misspells_is_refused(tmp_path, capsys):
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"epoch": 3}))
    assert run(["train", "--config", str(file)]) == 2
    assert "Did you mean epochs" in capsys.readouterr().err
