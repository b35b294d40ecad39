from __future__ import annotations

import pytest
import timm
import torch
from PIL import Image

from vitscope.analyses import analyze
from vitscope.analyses.request import AnalyzeOptions
from vitscope.data import load_data
from vitscope.errors import RunError, VitscopeError
from vitscope.models import open_model
from vitscope.repeat import rerun
from vitscope.runs import Run

OPTIONS = {"img_size": 32, "depth": 2, "num_classes": 2}


@pytest.fixture
def pictures(tmp_path):
    """Two classes of three random pictures."""
    generator = torch.Generator().manual_seed(0)
    for name in ("a", "b"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i in range(3):
            pixels = torch.randint(256, (40, 40, 3), generator=generator, dtype=torch.uint8)
            Image.fromarray(pixels.numpy()).save(tmp_path / "pictures" / name / f"{i}.png")
    return tmp_path / "pictures"


@pytest.fixture
def weights(tmp_path):
    module = timm.create_model("test_vit", **OPTIONS)
    torch.save(module.state_dict(), tmp_path / "weights.pth")
    return tmp_path / "weights.pth"


@pytest.fixture
def old(tmp_path, pictures, weights, monkeypatch):
    """A run that was started in another folder, with relative paths."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(tmp_path)
    options = {"img_size": 32, "depth": 2}
    model = open_model("test_vit", "weights.pth", **options)
    run = analyze(model, load_data("pictures", "all"), ["accuracy"], tmp_path / "old", report=False, progress=False)
    monkeypatch.chdir(here)
    return run


def test_a_run_made_in_python_is_repeated_from_another_folder(old):
    new = rerun(old, progress=False, report=False)
    assert new.path == old.path.with_name("old-rerun")
    assert new.list_tables() == old.list_tables()
    for name in old.list_tables():
        assert new.table(name).equals(old.table(name))


def test_plain_weights_beside_averaged_ones_are_taken_again(tmp_path, pictures):
    state = timm.create_model("test_vit", **OPTIONS).state_dict()
    torch.save({"model": state, "model_ema": {k: v * 0 for k, v in state.items()}}, tmp_path / "both.pth")
    settings = {"models": ("test_vit",), "weights": (str(tmp_path / "both.pth"),), "use_ema": False}
    settings |= {"model_options": {"img_size": 32, "depth": 2}, "data": str(pictures), "split": "all"}
    options = AnalyzeOptions(**settings, only=("accuracy",), out=str(tmp_path / "plain"), report=False, progress=False)
    (run,) = options.run()
    assert run.config["model"]["entry"] == "model"
    assert any("plain weights (model) were taken" in text for text in run.warnings)
    again = rerun(run, progress=False, report=False)
    assert again.config["weights_digest"] == run.config["weights_digest"]


def test_the_preprocessing_that_was_typed_is_repeated(tmp_path, pictures, weights):
    settings = {"models": ("test_vit",), "weights": (str(weights),), "preprocess": "squash,mean=0.1/0.2/0.3"}
    settings |= {"model_options": {"img_size": 32, "depth": 2}, "data": str(pictures), "split": "all"}
    options = AnalyzeOptions(**settings, only=("accuracy",), out=str(tmp_path / "typed"), report=False, progress=False)
    (run,) = options.run()
    saved = run.config["preprocess"]
    assert (saved["crop_mode"], saved["mean"]) == ("squash", [0.1, 0.2, 0.3])
    assert rerun(run, progress=False, report=False).config["preprocess"] == saved


def test_the_new_run_says_how_it_was_made(old, tmp_path):
    new = rerun(old.path, tmp_path / "new", progress=False, report=False)
    assert Run.open(new.path).environment["command"] == f"vitscope rerun {old.path} --out {tmp_path / 'new'}"


def test_other_pictures_are_refused(old, pictures):
    Image.new("RGB", (40, 40)).save(pictures / "a" / "0.png")
    with pytest.raises(RunError, match=r"(?s)data of .* not what it was.*fingerprint.*vitscope analyze --config"):
        rerun(old, progress=False)
    assert not old.path.with_name("old-rerun").exists()


def test_other_weights_are_refused(old, weights):
    torch.save(timm.create_model("test_vit", **OPTIONS).state_dict(), weights)
    with pytest.raises(RunError, match=r"(?s)model of .* not what it was.*sha256"):
        rerun(old, progress=False)


def test_a_kind_that_is_not_known_is_refused(tmp_path):
    with Run.create(tmp_path / "odd", {"seed": 0}, kind="sweep") as run:
        run.finish()
    with pytest.raises(VitscopeError, match="kind 'sweep'"):
        rerun(tmp_path / "odd")


@pytest.mark.parametrize("kind", ["analyze", "evaluate", "train"])
def test_unknown_keys_and_half_a_configuration_are_refused_with_the_file(tmp_path, kind):
    file = tmp_path / "odd" / "config.yaml"
    with Run.create(file.parent, {"data": {}}, kind=kind) as run:
        run.finish()
    for text, message in (
        ("colour: blue\nbatchsize: 3", "has no 'colour', 'batchsize'.*Take it out; known are .*model"),
        ("label: a", "is missing"),
        ("options: []\ndata: 3\nmodel: {name: 7}", "should be|is missing|has no 'options'"),
        ("{}", "is missing"),
    ):
        file.write_text(text)
        with pytest.raises(RunError, match=f"{file}: .*({message})"):
            rerun(file.parent)
    assert not (tmp_path / "odd-rerun").exists()
