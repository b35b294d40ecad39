from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from vitscope.cli import run
from vitscope.runs import Run

TINY = ["test_vit", "--weights", "random", "--model-options", "img_size=32", "depth=2", "num_classes=10"]
DIGITS = ["--data", "mnist5k", "--images", "20"]


def test_one_model_gives_a_run_folder_with_tables_and_a_report(vitscope, tmp_path):
    result = vitscope("analyze", *TINY, *DIGITS, "--only", "accuracy,attention", "--out", "out")
    assert result.returncode == 0, result.stderr
    assert "Report: out/report.html" in result.stdout
    assert (tmp_path / "out" / "report.html").stat().st_size > 1000
    finished = Run.open(tmp_path / "out")
    assert finished.status == "finished"
    assert finished.summary["accuracy.top1"]["n"] == 20
    assert finished.config["analyses"].keys() == {"accuracy", "attention"}
    assert "vitscope analyze test_vit" in json.loads((tmp_path / "out" / "environment.json").read_text())["command"]


def test_several_models_give_one_report(tmp_path, capsys):
    words = ["test_vit", "test_vit2", "--weights", "random", "random", *TINY[3:], *DIGITS, "--only", "accuracy"]
    assert run(["analyze", *words, "--no-progress", "--out", str(tmp_path)]) == 0
    assert f"Report: {tmp_path / 'report.html'}" in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text()
    assert "test_vit" in page
    assert "test_vit2" in page
    assert {Run.open(tmp_path / name).label for name in ("test_vit", "test_vit2")} == {"test_vit", "test_vit2"}


def test_the_saved_configuration_goes_in_again_and_the_command_line_wins(finished_run, tmp_path):
    config = finished_run / "config.yaml"
    assert run(["analyze", "--config", str(config), "--batch-size", "7", "--no-progress", "--out", str(tmp_path)]) == 0
    old, new = yaml.safe_load(config.read_text()), yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert new == {**old, "batch_size": 7}


def test_a_hand_written_configuration_uses_the_names_of_the_options(tmp_path):
    file = tmp_path / "mine.yaml"
    options = {"img_size": 32, "depth": 2, "num_classes": 10}
    asked = {"models": ["test_vit"], "weights": ["random"], "model_options": options, "data": "mnist5k", "images": 5}
    file.write_text(yaml.safe_dump({**asked, "only": ["attention"], "progress": False}))
    assert run(["analyze", "--config", str(file), "--out", str(tmp_path / "out")]) == 0
    config = Run.open(tmp_path / "out").config
    assert (config["data"]["n"], list(config["analyses"])) == (5, ["attention"])


def test_saved_activations_take_options_of_their_own(tmp_path):
    words = [*TINY, *DIGITS, "--save", "blocks.0.hook_resid_post", "--set", "save.dtype=float16", "--only", "accuracy"]
    assert run(["analyze", *words, "--no-progress", "--out", str(tmp_path)]) == 0
    saved = Run.open(tmp_path).config["analyses"]["save"]
    assert (saved["points"], saved["dtype"]) == (["blocks.0.hook_resid_post"], "float16")


BAD = {
    "no model": (["--data", "mnist5k"], "No model is given"),
    "no data": (TINY, "No data is given"),
    "unknown model": (["vit_tinny_patch16_224", *DIGITS], "Did you mean"),
    "unknown data": ([*TINY, "--data", "mnist5"], "Did you mean mnist5k"),
    "missing folder": ([*TINY, "--data", "no/such/folder"], "no/such/folder"),
    "unknown analysis": ([*TINY, *DIGITS, "--only", "acuracy"], "Did you mean accuracy"),
    "unknown option of an analysis": ([*TINY, *DIGITS, "--set", "accuracy.bin=3"], "bin"),
    "option of an analysis that does not run": ([*TINY, *DIGITS, "--set", "nothing.x=3"], "nothing.x"),
    "setting without value": ([*TINY, *DIGITS, "--set", "accuracy.bins"], "NAME=VALUE"),
    "too few weights": (["test_vit", "test_vit2", "--weights", "random", *DIGITS], "one per model"),
    "missing weights": (["test_vit", "--weights", "no.safetensors", *DIGITS], "no.safetensors"),
    "classes that do not match": (["test_vit", "--weights", "random", *DIGITS], "1,000"),
    "batch size": ([*TINY, *DIGITS, "--batch-size", "0"], "batch_size"),
    "missing configuration": (["--config", "no.yaml"], "no.yaml"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_a_message_and_exit_code_2_and_leaves_nothing_behind(case, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words, message = BAD[case]
    assert run(["analyze", *words, "--no-progress", "--out", "out"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


def test_a_misspelt_name_in_a_configuration_file_is_refused_with_the_file(tmp_path, capsys):
    file = tmp_path / "mine.yaml"
    file.write_text("batchsize: 3\n")
    assert run(["analyze", "--config", str(file)]) == 2
    error = capsys.readouterr().err
    assert str(file) in error
    assert "Did you mean batch_size?" in error


def test_another_configuration_in_the_same_folder_is_refused_with_the_difference(finished_run, capsys):
    before = {path: path.read_bytes() for path in finished_run.rglob("*.csv")}
    assert run(["analyze", *TINY, *DIGITS, "--seed", "1", "--out", str(finished_run)]) == 2
    error = capsys.readouterr().err
    assert "seed: 0 -> 1" in error
    assert "--overwrite" in error
    assert {path: path.read_bytes() for path in finished_run.rglob("*.csv")} == before


def test_a_finished_run_is_not_computed_again(finished_run: Path):
    stamps = [(path, path.stat().st_mtime_ns) for path in finished_run.glob("tables/*.csv")]
    assert run(["analyze", *TINY, *DIGITS, "--no-progress", "--out", str(finished_run)]) == 0
    assert [(path, path.stat().st_mtime_ns) for path in finished_run.glob("tables/*.csv")] == stamps


def test_an_option_of_one_default_analysis_leaves_the_others_optional(tmp_path):
    words = ["test_vit", "--weights", "random", "--model-options", "img_size=32", "depth=2", "num_classes=0", *DIGITS]
    words += ["--set", "separation.averaging=samples", "--no-progress", "--no-report", "--out", str(tmp_path)]
    assert run(["analyze", *words]) == 0
    finished = Run.open(tmp_path)
    assert any("'accuracy' was left out" in warning for warning in finished.warnings)
    assert "attention" in finished.config["analyses"]


def test_masks_can_be_left_aside(tmp_path):
    words = [*TINY, *DIGITS, "--only", "accuracy", "--no-masks", "--no-progress", "--no-report", "--out", str(tmp_path)]
    assert run(["analyze", *words]) == 0
    assert Run.open(tmp_path).config["data"]["masks"] is False  # digits have one: their ink


def test_black_and_white_masks_give_object_tables_with_their_decoding_and_a_rerun_keeps_it(tmp_path, capsys):
    from vitscope.analyses.request import AnalyzeOptions
    from vitscope.data import load_data

    digits = load_data("mnist5k", "test", images=20)
    for item in map(digits.read, range(20)):
        for folder, picture in (("val", item.image), ("val-segmentation", item.mask.point([0] + [255] * 255))):
            (tmp_path / folder / str(item.label)).mkdir(parents=True, exist_ok=True)
            picture.save(tmp_path / folder / str(item.label) / f"{item.index}.png")
    words = ["analyze", *TINY, "--data", str(tmp_path), "--split", "val", "--only", "class_space.identifiability"]
    words += ["--no-progress", "--no-report"]
    assert run([*words, "--strict", "--out", str(tmp_path / "strict")]) == 2
    assert "--mask-decoding nonzero" in capsys.readouterr().err
    assert run([*words, "--out", str(tmp_path / "plain")]) == 0
    assert run([*words, "--strict", "--mask-decoding", "nonzero", "--out", str(tmp_path / "decoded")]) == 0
    plain, decoded = (Run.open(tmp_path / name) for name in ("plain", "decoded"))
    assert any("--mask-decoding nonzero" in warning for warning in plain.warnings)
    assert "object" not in set(plain.table("class_space_identifiability")["tokens"])
    assert {"object", "context"} <= set(decoded.table("class_space_identifiability")["tokens"])
    assert AnalyzeOptions.from_config(decoded.config).mask_decoding == "nonzero"
