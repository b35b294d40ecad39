"""`vitscope causes`: one folder with ablation and patching, resumed after a kill, shared by two processes."""

from __future__ import annotations

import time

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

import launch
from vitscope.analyses.causes.causes_options import CausesOptions
from vitscope.cli import run
from vitscope.data import load_data
from vitscope.errors import VitscopeError
from vitscope.models import open_model
from vitscope.registry import ANALYSES
from vitscope.repeat import rerun
from vitscope.runs import Run

SHAPE = {"img_size": 28, "patch_size": 14, "in_chans": 1, "embed_dim": 16, "depth": 2, "num_heads": 2}
SHAPE |= {"num_classes": 10}
WORDS = ["vit_tiny_patch16_224", "--model-options", *(f"{k}={v}" for k, v in SHAPE.items()), "--data", "mnist5k"]
WORDS += ["--images", "24", "--batch-size", "6", "--no-progress", "--gallery", "0"]
WORDS += ["--parts", "ablation,patching", "--pairs", "class,mask", "--method", "mean", "--together", "0.1+1.0"]
WORDS += ["--paths", "0.0>1.1"]
TABLES = [
    "causes_ablation",
    "causes_ablation_together",
    "causes_patching",
    "causes_patching_agreement",
    "causes_patching_pairs",
    "causes_patching_paths",
]


def same(first: Run, second: Run) -> None:
    for name in TABLES:
        pd.testing.assert_frame_equal(first.table(name), second.table(name), rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Random blocks and a head that is fitted to digits: different answers, many of them right."""
    file = tmp_path_factory.mktemp("weights") / "fitted.safetensors"
    model = open_model("vit_tiny_patch16_224", "random", **SHAPE)
    module, (batch,) = model.module.eval(), load_data("mnist5k", images=300).batches(model.preprocess, 300)
    with torch.no_grad():
        features = module.forward_head(module.forward_features(batch.images), pre_logits=True)
        found = torch.linalg.lstsq(features, 10 * torch.nn.functional.one_hot(batch.labels, 10).float()).solution
        module.head.weight.copy_(found.T)
    save_file(module.state_dict(), file)
    return ["--weights", str(file)]


@pytest.fixture(scope="module")
def made(weights, tmp_path_factory):
    out = tmp_path_factory.mktemp("causes") / "run"
    assert run(["causes", *WORDS, *weights, "--out", str(out)]) == 0
    return Run.open(out)


def test_the_folder_has_all_tables_and_the_page_asks_the_questions(made):
    assert all(made.table(name) is not None for name in TABLES)
    page = (made.path / "report.html").read_text()
    assert "Which parts does the right answer rest on?" in page
    assert "What restores the decision?" in page
    counts = made.table("causes_patching_pairs").set_index("pairs")
    assert (counts[["agree_already", "used"]].sum(axis=1) == counts["made"]).all()
    assert (counts[["clean_wrong", "made"]].sum(axis=1) == counts["items"]).all()
    assert counts["used"].min() > 0


def test_a_rerun_gives_the_same_tables(made, tmp_path):
    again = rerun(made, tmp_path / "again", report=False, progress=False)
    assert again.config == made.config
    same(made, again)


def test_killed_and_shared_by_two_processes_it_gives_the_tables_of_one(made, weights, tmp_path):
    words = ["causes", *WORDS, *weights, "--no-report", "--save-every", "0"]
    process = launch.Launched("-m", "vitscope", *words, "--out", tmp_path / "killed")
    state, stop = tmp_path / "killed" / "state" / "rank0.safetensors", time.monotonic() + 600
    while not state.exists() and process.running() and time.monotonic() < stop:
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert Run.open(tmp_path / "killed").status != "finished"
    assert run([*words, "--out", str(tmp_path / "killed")]) == 0
    same(made, Run.open(tmp_path / "killed"))
    two = launch.run("-m", "vitscope", *words, "--out", tmp_path / "two", world=2)
    assert two.returncode == 0, two.stderr
    same(made, Run.open(tmp_path / "two"))


def test_parts_and_what_belongs_to_them_are_checked_at_once():
    plain = {"models": ("m",)}
    for options, message in (
        ({"parts": ("ablations",)}, "Did you mean ablation"),
        ({"parts": ("patching",)}, "Patching needs pairs"),
        ({"pairs": ("pgd",)}, "do not say how strong: pgd@1/255, for example"),
        ({"pairs": ("corrupt:frost",)}, "do not say how strong: corrupt:frost@3, for example"),
        ({"parts": ("ablation",), "pairs": ("class",)}, "--pairs is for patching"),
        ({"parts": ("patching",), "pairs": ("class",), "together": ("1.1+1.2",)}, "--together is for ablation"),
    ):
        with pytest.raises(VitscopeError, match=message):
            CausesOptions(**plain, **options).as_request()
    request = CausesOptions(**plain, pairs=("pgd@1/255,class",), set={"causes.patching.null": False}).as_request()
    assert request.set["causes.patching.pairs"] == ["pgd@1/255", "class"]
    assert request.set["causes.patching.null"] is False
    assert ("causes.attribution" in request.only) == ("causes.attribution" in ANALYSES.names())
    assert "causes.patching" not in CausesOptions(**plain).as_request().only
    assert "causes.ablation" in CausesOptions(**plain, parts=()).as_request().only


def test_every_kind_of_pairs_is_made_by_the_command(weights, tmp_path):
    words = [word for word in WORDS[: WORDS.index("--parts")] if word != "24"]
    words.insert(words.index("--images") + 1, "12")
    pairs = ["pgd@8/255", "corrupt:fog@3", "class", "mask"]
    few = ["causes.patching.kinds=mlp", "causes.patching.blocks=[1]", "causes.patching.null=false"]
    asked = ["--parts", "patching", "--pairs", ",".join(pairs), "--set", *few]
    assert run(["causes", *words, *weights, *asked, "--no-report", "--out", str(tmp_path / "run")]) == 0
    counts = Run.open(tmp_path / "run").table("causes_patching_pairs").set_index("pairs")
    assert counts.index.tolist() == pairs
    assert (counts["items"] == 12).all()
    assert (counts["clean_wrong"] + counts["made"] == 12).all()


def test_attribution_is_left_out_where_it_cannot_be_and_was_not_asked_for(tmp_path, capsys):
    words = ["segmenter", "--weights", "random", "--model-options", "backbone=vit_tiny_patch16_224", "decoder=linear"]
    words += ["image_size=32", "patch_size=16", "embed_dim=16", "depth=1", "num_heads=2", "num_classes=11"]
    words += ["--data", "digit-scenes", "--split", "test", "--images", "3", "--no-progress", "--no-report"]
    assert run(["causes", *words, "--pairs", "fgsm@4/255", "--out", str(tmp_path / "run")]) == 0
    made = Run.open(tmp_path / "run")
    assert made.table("causes_patching_pairs")["items"].tolist() == [3]
    assert made.table("causes_ablation") is not None
    assert "'causes.attribution' was left out" in capsys.readouterr().out
    assert run(["causes", *words, "--parts", "attribution,ablation", "--out", str(tmp_path / "asked")]) != 0
    assert "cannot be split" in capsys.readouterr().err
