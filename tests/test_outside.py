"""Code of one's own: one rule to find it, one identity, and nothing is imported because a file says so."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

import vitscope
from vitscope.cli import run
from vitscope.errors import VitscopeError
from vitscope.outside import find_object, modules_in, only_named
from vitscope.registry import ALL, ANALYSES, CORRUPTIONS, Registry, outside_modules

SMALL = ["--model-options", "depth=2", "embed_dim=16", "num_heads=2", "mlp_dim=16"]
COMMON = ["small", "--weights", "random", *SMALL, "--no-progress", "--batch-size", "8"]

MINE = """
from pathlib import Path

import numpy as np
import pandas as pd

from vitscope import Analysis, register_analysis
from vitscope.analyses import zeros
from vitscope.attention import AttentionModule, softmax_attention
from vitscope.report import Finding, Panel, register_panel
from vitscope.robustness import register_corruption, register_set

Path("imported").touch()


@register_analysis("brightness")
class Brightness(Analysis):
    def start(self, model):
        self.sums = {"sum": zeros(1), "n": zeros(1)}

    def end_batch(self, batch):
        self.add("sum", batch.images.double().mean((1, 2, 3)).sum()[None])
        self.add("n", self.sums["n"].new_tensor([len(batch)]))

    def tables(self):
        return {"brightness": pd.DataFrame({"mean": [float(self.sums["sum"] / self.sums["n"])]})}


@register_panel("brightness")
def panel(runs):
    tables = {label: run.table("brightness") for label, run in runs.items()}
    if any(t is None for t in tables.values()):
        return None
    return Panel("brightness", "How bright is it?", tables={"brightness": next(iter(tables.values()))})


class Plain(Analysis):
    def tables(self):
        return {"plain": pd.DataFrame({"one": [1]})}


class Cool(AttentionModule):
    def attend(self, q, k, v, **look):
        return softmax_attention(q / 2, k, v, **look)


def squares(split="test"):
    generator = np.random.default_rng(0)
    return generator.integers(0, 255, (20, 28, 28), dtype=np.uint8), [i % 10 for i in range(20)]


@register_corruption("dim")
def dim(pixels, severity, seeds):
    return pixels // (severity + 1)


def dark(pixels, severity, seeds):
    return pixels * 0
"""


LOUDNESS = """

@register_analysis("loudness")
class Loudness(Analysis):
    def __init__(self, power: int = 1):
        super().__init__()
        self.power = power

    def tables(self):
        return {"loudness": pd.DataFrame({"power": [self.power]})}
"""
STAY = """

from dataclasses import dataclass

from vitscope.robustness import Attack, register_attack


@register_attack("stay")
@dataclass(frozen=True)
class Stay(Attack):
    norms = ("linf",)
    times: int = 1

    def perturb(self, target, victims, eps):
        return victims.images
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current folder that leaves a trace when it is imported -> its name, new in every test."""
    name = f"mine_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    return name


def forget(name: str) -> None:
    """As in a new process: the module is not loaded, and what it registered is not known."""
    sys.modules.pop(name, None)
    for registry in ALL:
        registry._things = {n: t for n, t in registry._things.items() if getattr(t, "__module__", "") != name}
    Path("imported").unlink(missing_ok=True)


def was_imported() -> bool:
    return Path("imported").exists()


def test_one_rule_finds_data_analysis_and_attention_in_the_current_folder_and_the_run_is_done_again(here, capsys):
    words = ["--data", f"{here}:squares", "--only", f"{here}:Brightness,{here}:Plain", "--attention", f"{here}:Cool"]
    assert run(["analyze", *COMMON, *words, "--out", "run"]) == 0, capsys.readouterr().err
    config = yaml.safe_load(Path("run/config.yaml").read_text())
    assert list(config["analyses"]) == ["brightness", f"{here}:Plain"]  # a name that was given stays
    assert config["modules"] == [here]
    forget(here)
    assert run(["rerun", "run"]) == 2
    told = capsys.readouterr().err
    assert here in told
    assert "--trust" in told
    assert not was_imported()
    assert run(["rerun", "run", "--trust"]) == 0, capsys.readouterr().err
    for table in ("brightness", "plain"):
        assert Path(f"run-rerun/tables/{table}.csv").read_bytes() == Path(f"run/tables/{table}.csv").read_bytes()


def test_a_run_made_from_an_object_is_done_again(here, monkeypatch):
    cls = find_object(f"{here}:Brightness", "analysis")
    model = vitscope.open_model("small", "random", depth=2, embed_dim=16, num_heads=2, mlp_dim=16)
    made = vitscope.analyze(model, f"{here}:squares", [cls()], "object", report=False, progress=False)
    before = made.table("brightness")
    assert cls.name == "brightness"
    forget(here)
    with pytest.raises(VitscopeError, match="trust=True"):
        vitscope.rerun("object", report=False, progress=False)
    assert not was_imported()
    again = vitscope.rerun("object", report=False, progress=False, trust=True)
    assert again.table("brightness").equals(before)


def test_the_address_of_a_decorated_class_does_not_rename_it(here):
    first = ANALYSES.get(f"{here}:Brightness")
    name, second = ANALYSES.resolve("brightness")
    assert (name, first.name, first is second) == ("brightness", "brightness", True)
    assert ANALYSES.resolve(f"{here}:Brightness") == ("brightness", first)
    assert ANALYSES.get(f"{here}:Plain").name == f"{here}:Plain"


@pytest.mark.parametrize("called", ["loudness", "{here}:Loudness"])
def test_options_go_to_an_analysis_of_ones_own_by_its_name_or_by_its_address(called, here, capsys):
    with open(f"{here}.py", "a") as file:
        file.write(LOUDNESS)
    option = called.format(here=here) + ".power=2"
    only = ["--data", f"{here}:squares", "--only", f"{here}:Loudness", "--set", option, "--no-report"]
    assert run(["analyze", *COMMON, *only, "--out", "run"]) == 0, capsys.readouterr().err
    assert vitscope.Run.open("run").config["analyses"] == {"loudness": {"power": 2}}


@pytest.mark.parametrize("called", ["stay", "{here}:Stay"])
def test_options_go_to_an_attack_of_ones_own_by_its_name_or_by_its_address(called, here, capsys):
    with open(f"{here}.py", "a") as file:
        file.write(STAY)
    option = called.format(here=here) + ".times=2"
    which = ["--data", f"{here}:squares", "--attacks", f"{here}:Stay", "--set", option, "--eps", "1/255", "--no-report"]
    assert run(["attack", *COMMON, *which, "--out", "run"]) == 0, capsys.readouterr().err
    assert vitscope.Run.open("run").config["analyses"]["attack"]["attacks"] == {"stay": {"times": 2}}


def test_a_redrawn_page_keeps_the_tables_of_a_panel_whose_code_is_not_trusted(here, capsys, caplog):
    only = ["--data", f"{here}:squares", "--only", f"{here}:Brightness"]
    assert run(["analyze", *COMMON, *only, "--out", "run"]) == 0, capsys.readouterr().err
    page = Path("run/report.html")
    assert "How bright is it?" in page.read_text()
    forget(here)
    run(["report", "run"])
    assert not was_imported()
    assert "Panels may be missing" in caplog.text
    assert "How bright is it?" not in page.read_text()
    assert "tables/brightness.csv" in page.read_text()
    assert f"module &#39;{here}&#39;" in page.read_text()
    assert "--trust" in page.read_text()
    assert run(["report", "run", "--trust"]) == 0
    assert "How bright is it?" in page.read_text()
    assert "--trust" not in page.read_text()


def test_a_corruption_and_a_set_of_ones_own_are_named_on_the_command_line_and_done_again(here, capsys):
    with Path(f"{here}.py").open("a") as file:
        file.write(f'''

@register_set("MINE", "my set")
def my_set(folder, options):
    from vitscope.data import load_data
    from vitscope.robustness.condition import Condition
    return [Condition("MINE", load_data("{here}:squares"))]
''')
    Path("folder").mkdir()
    words = ["--data", f"{here}:squares", "--corrupt", f"{here}:dim,{here}:dark", "--severities", "1"]
    words += ["--ood", f"{here}:my_set=folder", "--out", "run"]
    assert run(["evaluate", *COMMON, *words]) == 0, capsys.readouterr().err
    table = Path("run/tables/evaluation.csv").read_bytes()
    assert b'"dim"' in table
    assert f'"{here}:dark"'.encode() in table
    assert b'"MINE"' in table
    forget(here)
    assert run(["rerun", "run"]) == 2
    assert not was_imported()
    assert run(["rerun", "run", "--trust"]) == 0, capsys.readouterr().err
    assert Path("run-rerun/tables/evaluation.csv").read_bytes() == table


@pytest.mark.parametrize(
    "settings",
    [
        {"data": "{here}:squares", "models": ["small"], "weights": ["random"]},
        {"data": "mnist5k", "only": ["{here}:Brightness"], "models": ["small"], "weights": ["random"]},
        {"data": "mnist5k", "attention": "{here}:Cool", "models": ["small"], "weights": ["random"]},
        {"modules": ["{here}"], "data": "mnist5k", "models": ["small"], "weights": ["random"]},
    ],
    ids=lambda s: next(str(v) for v in s.values() if "here" in str(v)),
)
def test_a_configuration_from_elsewhere_imports_nothing(here, settings, capsys):
    Path("config.yaml").write_text(yaml.safe_dump(settings).replace("{here}", here))
    assert run(["analyze", "--config", "config.yaml", "--images", "10", "--out", "run"]) == 2
    told = capsys.readouterr().err
    assert "--trust" in told
    assert here in told
    assert not was_imported()
    assert not Path("run").exists()


def test_what_the_command_line_names_too_is_imported(here, capsys):
    Path("config.yaml").write_text(f"data: '{here}:squares'\nmodels: [small]\nweights: [random]\n")
    words = ["--config", "config.yaml", "--data", f"{here}:squares", "--only", "accuracy", *SMALL, "--no-progress"]
    assert run(["analyze", *words, "--out", "run"]) == 0, capsys.readouterr().err
    assert was_imported()


def test_a_training_configuration_from_elsewhere_imports_nothing(here, capsys):
    for number, line in enumerate(
        [f"probe: ['{here}:Brightness']", f"data: '{here}:squares'", f"attention: '{here}:Cool'"]
    ):
        Path("config.yaml").write_text(f"{line}\nmodel: small\nepochs: 1\n")
        assert run(["train", "--config", "config.yaml", "--out", f"run{number}"]) == 2
        assert "--trust" in capsys.readouterr().err
        assert not was_imported()
        assert not Path(f"run{number}").exists()


def test_a_file_cannot_ask_to_be_trusted(here, capsys):
    Path("config.yaml").write_text(f"trust: true\ndata: '{here}:squares'\n")
    assert run(["analyze", "--config", "config.yaml"]) == 2
    assert "cannot ask to be trusted" in capsys.readouterr().err


def test_a_trained_model_with_an_attention_of_ones_own_opens_only_with_trust(here, tmp_path, capsys):
    words = ["--data", f"{here}:squares", "--model", "small", *SMALL, "--epochs", "1", "--batch-size", "10"]
    assert run(["train", *words, "--attention", f"{here}:Cool", "--no-progress", "--out", "run"]) == 0, (
        capsys.readouterr().err
    )
    assert json.loads(Path("run/model.json").read_text())["modules"] == [here]
    forget(here)
    with pytest.raises(VitscopeError, match="trust=True"):
        vitscope.open_model("run")
    assert not was_imported()
    assert type(vitscope.open_model("run", trust=True).module.blocks[0].attn).__name__ == "Cool"
    forget(here)
    assert run(["analyze", "run", "--data", "mnist5k", "--images", "10", "--only", "accuracy", "--out", "look"]) == 2
    assert not was_imported()


def test_words_of_a_command_line_name_modules():
    assert modules_in(["--only", "a.b:C,accuracy", "--attention", "mine:X:layers=0"]) == {"a.b", "mine"}
    with only_named(["json:loads"]), only_named():  # the outer block wins
        assert find_object("json:loads", "dataset") is json.loads
        with pytest.raises(VitscopeError, match="--trust"):
            find_object("os:getcwd", "dataset")


def test_a_name_of_the_package_cannot_be_taken():
    with pytest.raises(VitscopeError, match="belongs to an analysis of vitscope"):
        vitscope.register_analysis("accuracy")(type("Mine", (vitscope.Analysis,), {"__module__": "elsewhere"}))
    assert ANALYSES.get("accuracy").__module__.startswith("vitscope.")


@pytest.mark.parametrize("registry", ALL, ids=lambda r: r.kind)
def test_names_read_off_the_sources_are_those_that_the_modules_register(registry: Registry):
    loaded = {name for name, thing in registry.load_all().items() if ":" not in name}
    assert set(registry.homes()) <= loaded
    own = {n for n, t in registry.load_all().items() if getattr(t, "__module__", "").startswith("vitscope.")}
    if registry is not CORRUPTIONS:  # those of the extra are registered in a loop
        assert own == set(registry.homes())


def test_a_configuration_that_names_nothing_foreign_remembers_nothing(here):
    ANALYSES.get(f"{here}:Brightness")
    assert outside_modules({"analyses": {"accuracy": {}}, "data": {"source": "mnist5k"}}) == [here]  # its panel
    from vitscope.registry import PANELS

    del PANELS._things["brightness"]
    assert outside_modules({"analyses": {"accuracy": {}}}) == []
    assert outside_modules({"analyses": {"brightness": {}}}) == [here]
    assert outside_modules({"attention": "rpc:layers=0; brightness"}) == [here]


FETCHING = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What timm is asked to fetch: there is no net here, and none is needed to refuse."""
    asked: list[str] = []

    def create_model(name: str, pretrained: bool = False, **options: object) -> object:
        asked.extend([name] * pretrained)
        raise OSError("no net")

    monkeypatch.setattr("timm.create_model", create_model)
    monkeypatch.setattr("vitscope.models.creation.at_hand", lambda name: False)
    return asked


CONFIGURATIONS = {
    "analyze": {"models": [FETCHING], "data": "mnist5k", "images": 10},
    "train": {"model": FETCHING, "weights": "pretrained", "data": "mnist5k", "preprocess": "model"},
    "sweep": {"model": FETCHING, "weights": "pretrained", "data": "mnist5k", "preprocess": "model"},
}


@pytest.mark.parametrize("command", CONFIGURATIONS)
def test_weights_that_only_a_file_asks_for_are_not_fetched(command, fetched, here, capsys):
    Path("config.yaml").write_text(yaml.safe_dump(CONFIGURATIONS[command]))
    assert run([command, "--config", "config.yaml", "--out", "run"]) == 2
    assert "--trust" in capsys.readouterr().err
    assert fetched == []


def test_weights_that_a_person_asks_for_are_fetched(fetched, here, capsys):
    settings = CONFIGURATIONS["analyze"]
    Path("config.yaml").write_text(yaml.safe_dump(settings))
    plain = ["analyze", FETCHING, "--data", "mnist5k", "--images", "10"]
    for words in (plain, [*plain, "--config", "config.yaml"], ["analyze", "--config", "config.yaml", "--trust"]):
        assert run([*words, "--out", "run"]) == 2
        assert "could not be fetched" in capsys.readouterr().err
    assert fetched == [FETCHING] * 3


def test_a_run_with_timms_weights_is_not_done_again_by_fetching_them(fetched, here, capsys):
    words = ["analyze", *COMMON, "--data", "mnist5k", "--images", "8", "--only", "accuracy"]
    assert run([*words, "--out", "run"]) == 0, capsys.readouterr().err
    config = yaml.safe_load(Path("run/config.yaml").read_text())
    config["model"] = {"name": FETCHING, "options": {}, "weights": "timm pretrained"}
    Path("run/config.yaml").write_text(yaml.safe_dump(config))
    for trust, said in (([], "--trust"), (["--trust"], "could not be fetched")):
        assert run(["rerun", "run", "--out", "again", *trust]) == 2
        assert said in capsys.readouterr().err
    with pytest.raises(VitscopeError, match="trust=True"):
        vitscope.rerun("run", "again")
    assert fetched == [FETCHING]


def test_weights_on_this_machine_are_taken_whoever_asks(monkeypatch, tmp_path):
    from vitscope.models.creation import at_hand

    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda repo, file: None)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    assert not at_hand("deit_tiny_patch16_224.fb_in1k")
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    (tmp_path / "hub" / "checkpoints" / "deit_tiny_patch16_224-a1311bcf.pth").touch()
    assert at_hand("deit_tiny_patch16_224.fb_in1k")
    found = {("timm/deit_small_patch16_224.fb_in1k", "model.safetensors")}
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *key: "there" if key in found else None)
    assert at_hand("deit_small_patch16_224.fb_in1k")


def test_data_that_only_a_file_asks_for_are_not_fetched(here, monkeypatch, capsys):
    monkeypatch.setenv("VITSCOPE_DATA", str(Path("data").absolute()))
    asked = []
    monkeypatch.setattr("torchvision.datasets.CIFAR10", lambda *a, **k: asked.append(k))
    Path("config.yaml").write_text("models: [small]\nweights: [random]\ndata: cifar10\ndownload: true\n")
    assert run(["analyze", "--config", "config.yaml", "--out", "run"]) == 2
    assert "--trust" in capsys.readouterr().err
    assert not asked
    assert run(["analyze", "--config", "config.yaml", "--download", "--out", "run"]) == 2  # fetched, and not there
    assert asked


def test_what_goes_to_a_cluster_is_typed_by_a_person(here, monkeypatch, capsys):
    sent = []
    monkeypatch.setattr("vitscope.sweeps.sweep", lambda options, vary, **how: sent.append(how["slurm"]) or 1 / 0)
    Path("config.yaml").write_text("data: mnist5k\nmodel: small\nslurm: {setup: ['touch imported']}\n")
    words = ["sweep", "--config", "config.yaml", "--out", "run"]
    assert run(words) == 2
    assert "shell commands" in capsys.readouterr().err
    assert sent == []
    assert run([*words, "--trust"]) == 1  # it arrives where it would be sent
    assert sent == [{"setup": ["touch imported"]}]
