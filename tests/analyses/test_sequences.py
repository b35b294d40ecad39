"""Not a line of the engine or of the report knows what goes in: data of whole numbers and an encoder without a grid."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

import launch
import vitscope

SCRIPT = Path(__file__).with_name("sequences.py")


def run(*words: str, processes: int = 1) -> int:
    return launch.run(SCRIPT, *(words if words[0] == "train" else ("analyze", *words)), world=processes).returncode


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("sequences") / "whole"
    assert run(str(out)) == 0
    return out


def load():
    spec = importlib.util.spec_from_file_location("sequences", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_points_are_those_of_the_modules_that_the_row_names():
    sequences = load()
    model, data = sequences.build(), sequences.Sequences()
    hooked = {}
    for name in ("embed", "last", "layers.1"):
        model.module.get_submodule(name).register_forward_hook(lambda m, i, o, name=name: hooked.setdefault(name, o))
    with torch.no_grad():
        logits, cache = model.run_with_cache(data.tokens)
    assert torch.equal(cache["hook_embed"], hooked["embed"])
    assert torch.equal(cache["ln_final.hook_normalized"], hooked["last"])
    assert torch.equal(cache["blocks.1.hook_resid_post"], hooked["layers.1"])
    assert cache["blocks.2.attn.hook_pattern"].shape == (50, 2, 13, 13)
    assert torch.equal(logits, model.module(data.tokens))
    assert str(model.layout) == "3 blocks x 2 heads of 8, width 16; 1 class + 0 register + 12 tokens"


def test_figures_are_those_of_the_model_itself(whole):
    sequences = load()
    model, data = sequences.build(), sequences.Sequences()
    with torch.no_grad():
        right = (model(data.tokens).argmax(1) == torch.tensor(data.labels)).double().mean()
        _, cache = model.run_with_cache(data.tokens, "blocks.0.attn.hook_pattern")
    table = pd.read_csv(whole / "tables" / "accuracy.csv").set_index("metric")["value"]
    assert table["top1"] == pytest.approx(100 * float(right))
    (pattern,) = cache.values()  # (B, H, N, N)
    away = np.abs(np.arange(12)[:, None] - np.arange(12))  # tokens lie one apart
    inside = pattern[:, :, 1:, 1:].double().numpy()
    expected = ((inside * away).sum((-1, -2)) / inside.sum((-1, -2))).mean(0)
    rows = pd.read_csv(whole / "tables" / "attention.csv").query("block == 0 and metric == 'distance'")
    np.testing.assert_allclose(rows.sort_values("head")["mean"], expected, rtol=1e-5)
    assert "numbers" in (whole / "report.html").read_text()
    assert not list((whole / "images").glob("*.png"))


def test_killed_and_started_again_it_ends_with_the_same_bytes(whole, tmp_path):
    assert run(str(tmp_path / "run"), "4") != 0
    assert run(str(tmp_path / "run")) == 0
    names = sorted(file.name for file in (whole / "tables").iterdir())
    assert sorted(file.name for file in (tmp_path / "run" / "tables").iterdir()) == names
    for name in names:
        assert (tmp_path / "run" / "tables" / name).read_bytes() == (whole / "tables" / name).read_bytes(), name


def test_two_processes_count_what_one_counts(whole, tmp_path):
    assert run(str(tmp_path / "run"), processes=2) == 0
    for name in ("accuracy", "attention", "separation", "kpca_spectrum"):
        one, two = (pd.read_csv(folder / "tables" / f"{name}.csv") for folder in (whole, tmp_path / "run"))
        pd.testing.assert_frame_equal(one, two, rtol=1e-6)


def test_another_attention_goes_into_the_blocks_that_the_row_names():
    from vitscope import convert

    sequences = load()
    model, data = sequences.build(), sequences.Sequences()
    with torch.no_grad():
        before = model(data.tokens)
        convert(model, "softmax")
        torch.testing.assert_close(model(data.tokens), before, rtol=1e-4, atol=1e-5)
        convert(model, "rpc", layers="0", iterations=2)
        assert not torch.allclose(model(data.tokens), before)
    assert model.source["attention"][0]["name"] == "rpc"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("sequences") / "trained"
    assert run("train", str(out)) == 0
    return out


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoints" / "last" / "model.safetensors")


def test_the_training_loop_teaches_them(trained, monkeypatch):
    history = pd.read_csv(trained / "tables" / "training.csv")
    assert history["test_accuracy"].iloc[-1] > 0.85 > 0.75 > history["train_accuracy"].iloc[0]
    assert set(pd.read_csv(trained / "tables" / "probe_accuracy.csv")["epoch"]) == {0, 1, 2, 3}
    monkeypatch.syspath_prepend(SCRIPT.parent)
    model = vitscope.open_model(trained, trust=True)
    data = importlib.import_module("sequences").numbers()
    with torch.no_grad():  # the best epoch's weights are opened
        right = (model(data.tokens).argmax(1) == torch.tensor(data.labels)).double().mean()
    assert float(right) == pytest.approx(history["test_accuracy"].max())
    page = vitscope.build_report(trained, trained / "report.html", trust=True).read_text()
    assert "held-out sequences" in page
    shown = re.sub(r"<(style|script|svg|table).*?</\1>", "", page.partition("How this was made")[0], flags=re.DOTALL)
    assert not re.findall(r"\b(images?|pictures?|patch|patches)\b", shown)
    run = vitscope.analyze(model, "sequences:numbers", ["accuracy"], trained / "look", images=60, progress=False)
    again = vitscope.rerun(run, out=trained / "again", trust=True, progress=False)
    one, two = ((folder / "tables" / "accuracy.csv").read_bytes() for folder in (run.path, again.path))
    assert one == two


def test_a_killed_training_ends_with_the_same_weights(trained, tmp_path):
    assert run("train", str(tmp_path / "run"), "23") != 0
    assert run("train", str(tmp_path / "run")) == 0
    straight, resumed = weights_of(trained), weights_of(tmp_path / "run")
    assert all(torch.equal(straight[name], resumed[name]) for name in straight)


def test_two_processes_learn_what_one_learns(trained, tmp_path):
    assert run("train", str(tmp_path / "run"), processes=2) == 0
    straight, shared = weights_of(trained), weights_of(tmp_path / "run")
    for name in straight:
        torch.testing.assert_close(straight[name], shared[name], rtol=1e-3, atol=1e-4)
