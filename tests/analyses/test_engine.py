"""The engine in one process: tables, resume, refusal, several models."""

import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import timm
import torch
from PIL import Image

from vitscope.analyses import Analysis, Interrupted, analyze, create_analysis, measure, register_analysis, zeros
from vitscope.analyses.state import State, load_state, save_state
from vitscope.data import load_data
from vitscope.errors import DataError, NumericalError, RunError, UnsupportedModelError, VitscopeError
from vitscope.models import open_model
from vitscope.report import build_report
from vitscope.runs import Run

SMALL = {"img_size": 28, "patch_size": 7, "in_chans": 1, "embed_dim": 32, "depth": 2, "num_heads": 2}


@register_analysis("test_trouble")
class Trouble(Analysis):
    """Counts images and residual norms, emits a row per image, and makes trouble in a chosen batch."""

    default = False
    trouble = ""  # class attribute: not an option, so the configuration stays the same
    at = -1
    seen: list[int] = []  # noqa: RUF012

    def needs(self, model):
        return ["blocks.*.hook_resid_post"]

    def start(self, model):
        self.sums = {"n": zeros(1, dtype=torch.int64), "norm": zeros(model.layout.blocks)}

    def update(self, block, points, batch):
        (value,) = points.values()
        self.sums["norm"][block] += value.double().square().sum()

    def end_batch(self, batch):
        self.seen.append(batch.number)
        self.add("n", torch.tensor([len(batch)]))
        self.emit("test_rows", pd.DataFrame({"image": batch.indices.numpy(), "path": batch.paths}))
        if batch.number == self.at:
            if self.trouble == "error":
                raise VitscopeError("trouble")
            if callable(self.trouble):
                self.trouble()
            elif self.trouble:
                os.kill(os.getpid(), signal.Signals[self.trouble])

    def tables(self):
        return {"test_sums": pd.DataFrame({"block": range(len(self.sums["norm"])), "norm": self.sums["norm"].numpy()})}


@pytest.fixture(autouse=True)
def _calm():
    yield
    Trouble.trouble, Trouble.at = "", -1
    Trouble.seen.clear()


@pytest.fixture(scope="module")
def model():
    return open_model("vit_tiny_patch16_224", "random", num_classes=10, **SMALL)


@pytest.fixture(scope="module")
def digits():
    return load_data("mnist5k", "test", images=150)


def tables(run) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(Path(run.path).glob("tables/*.csv"))}


def look(model, data, out, analyses=("accuracy", "attention", "test_trouble"), **options):
    settings = {"batch_size": 32, "progress": False, "report": False} | options
    return analyze(model, data, list(analyses), out, **settings)


def test_tables_hold_what_a_plain_forward_pass_gives(model, digits, tmp_path):
    run = look(model, digits, tmp_path / "run")
    assert run.status == "finished"
    images = torch.cat([b.images for b in digits.batches(model.preprocess, 50)])
    with torch.no_grad():
        logits, cache = model.run_with_cache(images, ["blocks.*.hook_resid_post"])
    predictions = run.table("predictions")
    assert predictions["image"].tolist() == list(range(150))
    assert predictions["prediction"].tolist() == logits.argmax(1).tolist()
    assert predictions["label"].tolist() == digits.labels
    expected = [float(value.double().square().sum()) for value in cache.values()]
    assert run.table("test_sums")["norm"].tolist() == pytest.approx(expected, rel=1e-6)
    assert run.table("test_rows")["path"].tolist() == digits.paths
    assert not run.state_dir.exists()


def test_the_run_folder_tells_everything(model, digits, tmp_path):
    run = look(model, digits, tmp_path / "run")
    config = Run.open(tmp_path / "run").config
    assert config["model"]["name"] == "vit_tiny_patch16_224"
    assert config["data"]["fingerprint"] == digits.fingerprint()
    assert config["analyses"] == {"accuracy": {}, "attention": {}, "test_trouble": {}}
    assert config["preprocess"]["input_size"] == [1, 28, 28]
    assert run.summary["accuracy.top1"]["n"] == 150
    assert run.timing["analyze"]["processes"] == 1
    assert "seconds" not in "".join(b.decode() for b in tables(run).values())


def test_a_finished_run_is_returned_without_computing(model, digits, tmp_path, caplog):
    before = tables(look(model, digits, tmp_path / "run"))
    Trouble.seen.clear()
    with caplog.at_level("INFO", "vitscope"):
        again = look(model, digits, tmp_path / "run")
    assert Trouble.seen == []
    assert "complete" in caplog.text
    assert tables(again) == before


@pytest.mark.parametrize(("name", "workers"), [("SIGINT", 0), ("SIGTERM", 0), ("SIGINT", 2)])
def test_a_signal_stops_after_the_batch_and_the_same_call_goes_on(model, digits, tmp_path, name, workers):
    whole = tables(look(model, digits, tmp_path / "whole"))
    Trouble.seen.clear()
    Trouble.trouble, Trouble.at = name, 2
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match="96 of 150 images"):
        look(model, digits, tmp_path / "run", workers=workers)
    assert signal.getsignal(signal.SIGINT) is handler
    stopped = Run.open(tmp_path / "run")
    assert stopped.status == "unfinished"
    assert int(stopped.table("accuracy")["n"].iloc[0]) == 96  # what is there can be drawn
    assert "is unfinished" in build_report(stopped).read_text()
    Trouble.trouble = ""
    assert tables(look(model, digits, tmp_path / "run")) == whole
    assert Trouble.seen == [0, 1, 2, 3, 4]


def test_a_run_killed_while_its_tables_are_written_only_writes_them_again(model, digits, tmp_path, monkeypatch):
    whole = tables(look(model, digits, tmp_path / "whole", save_every=0))

    def die(self, figures):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "write_summary", die)
        with pytest.raises(KeyboardInterrupt):
            look(model, digits, tmp_path / "run")
    Trouble.seen.clear()
    assert tables(look(model, digits, tmp_path / "run")) == whole
    assert Trouble.seen == []


@pytest.mark.parametrize("save_every", [0.0, 1e9])
def test_an_error_in_a_batch_costs_only_what_was_not_saved(model, digits, tmp_path, save_every):
    whole = tables(look(model, digits, tmp_path / "whole"))
    Trouble.trouble, Trouble.at = "error", 3
    with pytest.raises(VitscopeError, match="trouble"):
        look(model, digits, tmp_path / "run", save_every=save_every)
    Trouble.trouble = ""
    Trouble.seen.clear()
    assert tables(look(model, digits, tmp_path / "run", save_every=save_every)) == whole
    assert Trouble.seen == ([3, 4] if save_every == 0 else [0, 1, 2, 3, 4])


@pytest.mark.parametrize("lost", ["lock", "folder"])
def test_a_process_that_lost_its_folder_stops_and_the_one_that_has_it_loses_nothing(model, digits, tmp_path, lost):
    whole, out = tables(look(model, digits, tmp_path / "whole")), tmp_path / "run"

    def somebody_else():
        """What a second process does meanwhile: with the lock gone nothing keeps it out."""
        Trouble.trouble = ""
        (out / ".lock").unlink() if lost == "lock" else shutil.rmtree(out)
        assert tables(look(model, digits, out)) == whole

    Trouble.trouble, Trouble.at = staticmethod(somebody_else), 2
    with pytest.raises(RunError, match=r"\.lock was deleted or replaced"):
        look(model, digits, out, save_every=0)
    assert Run.open(out).status == "finished"
    assert tables(Run.open(out)) == whole


def test_a_folder_that_is_deleted_under_a_run_is_an_error_and_is_not_made_again(model, digits, tmp_path):
    Trouble.trouble, Trouble.at = staticmethod(lambda: shutil.rmtree(tmp_path / "run")), 1
    with pytest.raises(RunError, match="was deleted while it was being written"):
        look(model, digits, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_rows_that_vanish_are_an_error_and_not_a_short_table(model, digits, tmp_path):
    rows = tmp_path / "run" / "state" / "rows" / "predictions.rank0.csv"
    Trouble.trouble, Trouble.at = staticmethod(rows.unlink), 3
    with pytest.raises(RunError, match="another process or program has changed it"):
        look(model, digits, tmp_path / "run")
    assert Run.open(tmp_path / "run").status == "unfinished"


def test_another_batch_size_or_analysis_is_another_configuration(model, digits, tmp_path):
    look(model, digits, tmp_path / "run")
    with pytest.raises(RunError, match="batch_size: 32 -> 64"):
        look(model, digits, tmp_path / "run", batch_size=64)
    with pytest.raises(RunError, match="--overwrite"):
        look(model, digits, tmp_path / "run", ["accuracy"])
    run = look(model, digits, tmp_path / "run", ["accuracy"], overwrite=True)
    assert "attention" not in run.list_tables()


def test_a_run_does_not_go_on_with_weights_that_were_changed_meanwhile(digits, tmp_path):
    module = timm.create_model("vit_tiny_patch16_224", num_classes=10, **SMALL)
    look(open_model(module), digits, tmp_path / "run", ["accuracy"])
    with torch.no_grad():
        module.head.bias[0] += 1e-6
    with pytest.raises(RunError, match="weights_digest"):
        look(open_model(module), digits, tmp_path / "run", ["accuracy"])


def test_a_run_with_edits_is_another_than_one_without(model, digits, tmp_path):
    def silence(value, point):
        return 0 * value

    with model.edits({"blocks.0.hook_attn_out": silence}):
        edited = look(model, digits, tmp_path / "run", ["accuracy"])
    assert "silence" in edited.config["edits"]["blocks.0.hook_attn_out"][0]
    with pytest.raises(RunError, match="edits"):
        look(model, digits, tmp_path / "run", ["accuracy"])
    assert "edits" not in look(model, digits, tmp_path / "plain", ["accuracy"]).config


def test_a_run_of_two_processes_is_not_continued_by_one(model, digits, tmp_path):
    Trouble.trouble, Trouble.at = "SIGINT", 0
    with pytest.raises(Interrupted):
        look(model, digits, tmp_path / "run")
    save_state(tmp_path / "run" / "state", 1, State(world=2), [])
    Trouble.trouble = ""
    with pytest.raises(RunError, match="nproc_per_node 2"):
        look(model, digits, tmp_path / "run")


def test_the_gallery_has_thumbnails_and_names(model, digits, tmp_path):
    run = look(model, digits, tmp_path / "run")
    shown = run.table("images")
    assert len(shown) == 8
    assert set(run.table("maps_attention")["image"]) == set(shown["image"])
    first = int(shown["image"][1])
    pixels = np.asarray(Image.open(tmp_path / "run" / "images" / f"{first}.png"))
    batch = next(digits.subset([first]).batches(model.preprocess, 1))
    expected = (batch.images[0, 0].double() * model.preprocess.std[0] + model.preprocess.mean[0]) * 255
    assert np.abs(pixels - expected.numpy()).max() <= 0.51
    assert shown["class_name"].tolist() == [digits.classes[digits.labels[i]] for i in shown["image"]]


def make_folder(root: Path, broken=()) -> Path:
    rng = np.random.default_rng(0)
    for label in range(10):
        (root / str(label)).mkdir(parents=True)
        for i in range(3):
            path = root / str(label) / f"{i}.png"
            Image.fromarray(rng.integers(0, 255, (28, 28), dtype=np.uint8)).save(path)
            if (label, i) in broken:
                path.write_bytes(path.read_bytes()[:40])
    return root


def test_unreadable_images_are_listed_and_not_counted(model, tmp_path):
    data = load_data(make_folder(tmp_path / "data", broken=[(0, 0), (0, 1), (0, 2), (7, 1)]))
    run = look(model, data, tmp_path / "run", batch_size=3)  # the whole first batch is unreadable
    assert run.summary["accuracy.top1"]["n"] == 26
    assert len(run.table("predictions")) == 26
    skipped = run.table("skipped")
    assert skipped["image"].tolist() == [0, 1, 2, 22]
    assert skipped["path"].str.endswith(".png").all()
    assert any("4 of 30 images" in w for w in run.warnings)


def test_strict_stops_at_an_unreadable_image_and_keeps_what_came_before(model, tmp_path):
    folder = make_folder(tmp_path / "data", broken=[(7, 1)])
    with pytest.raises(DataError, match=r"1\.png"):
        look(model, str(folder), tmp_path / "run", batch_size=3, strict=True)
    state = load_state(tmp_path / "run" / "state", 0)
    assert (state.next_batch, state.images) == (7, 21)
    rng = np.random.default_rng(1)
    Image.fromarray(rng.integers(0, 255, (28, 28), dtype=np.uint8)).save(folder / "7" / "1.png")
    with pytest.raises(RunError, match="fingerprint"):  # other data is another run
        look(model, str(folder), tmp_path / "run", batch_size=3, strict=True)


def test_data_in_which_nothing_can_be_read_is_an_error(model, tmp_path):
    data = load_data(make_folder(tmp_path / "data", broken=[(c, i) for c in range(10) for i in range(3)]))
    with pytest.raises(DataError, match="None of the 30 images"):
        look(model, data, tmp_path / "run")


def test_nan_logits_name_the_batch_and_the_images(digits, tmp_path):
    model = open_model("vit_tiny_patch16_224", "random", num_classes=10, **SMALL)
    with torch.no_grad():
        model.module.head.bias[3] = float("nan")
    with pytest.raises(NumericalError, match=r"32 of 32 images in batch 0 .*mnist5k\["):
        look(model, digits, tmp_path / "run")


def test_class_folders_that_do_not_match_the_head_are_refused(digits, tmp_path):
    model = open_model("vit_tiny_patch16_224", "random", num_classes=7, **SMALL)
    with pytest.raises(DataError, match="7 classes"):
        look(model, digits, tmp_path / "run")
    assert look(model, digits, tmp_path / "run", ["attention"]).status == "finished"


def test_what_cannot_run_is_an_error_if_named_and_a_remark_if_not(digits, tmp_path):
    model = open_model("vit_tiny_patch16_224", "random", num_classes=0, **SMALL)
    with pytest.raises(UnsupportedModelError, match="no classes"):
        look(model, digits, tmp_path / "run", ["accuracy"])
    run = analyze(model, digits, None, tmp_path / "run", progress=False, report=False)
    assert "attention" in run.list_tables()
    assert any("'accuracy' was left out" in w for w in run.warnings)


def test_several_models_get_a_folder_each_and_different_labels(digits, tmp_path):
    models = [open_model("vit_tiny_patch16_224", "random", seed=s, num_classes=10, **SMALL) for s in (0, 1)]
    runs = look(models, digits, tmp_path / "out", ["accuracy"])
    assert [r.label for r in runs] == ["vit_tiny_patch16_224", "vit_tiny_patch16_224 (2)"]
    assert [r.path.parent for r in runs] == [tmp_path / "out"] * 2
    assert len({r.summary["accuracy.loss"]["value"] for r in runs}) == 2


def test_the_choice_of_analyses_does_not_change_their_tables(model, digits, tmp_path):
    together = tables(look(model, digits, tmp_path / "a"))
    alone = tables(look(model, digits, tmp_path / "b", ["attention"]))
    assert alone["attention.csv"] == together["attention.csv"]


def test_unknown_names_and_options_are_refused_with_a_hint(model, digits, tmp_path):
    with pytest.raises(VitscopeError, match="Did you mean attention"):
        look(model, digits, tmp_path, ["atention"])
    with pytest.raises(VitscopeError, match="asked for twice"):
        look(model, digits, tmp_path, ["accuracy", "accuracy"])
    with pytest.raises(VitscopeError, match=r"no option .point.\. Did you mean points"):
        analyze(model, digits, {"save": {"point": ["*"]}}, tmp_path, report=False)
    with pytest.raises(VitscopeError, match="at least 1"):
        look(model, digits, tmp_path, batch_size=0)


def test_measure_puts_every_submodule_back_into_its_mode(digits):
    module = timm.create_model("vit_tiny_patch16_224", num_classes=10, drop_rate=0.5, **SMALL)
    model = open_model(module)
    module.train()
    module.blocks[0].eval()  # frozen by its owner
    analysis = create_analysis("accuracy")
    losses = []
    for _ in range(2):  # with dropout on, two passes would differ
        measure(model, digits.batches(model.preprocess, 50), [analysis])
        losses.append(float(analysis.sums["loss"].sum()))
    assert losses[0] == losses[1]
    assert module.training
    assert not module.blocks[0].training
    assert module.blocks[1].mlp.training


def test_the_global_random_state_is_left_alone(model, digits, tmp_path):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    look(model, digits, tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), before)
