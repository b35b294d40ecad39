"""An option is a field: keyword in Python, key in YAML and flag on the command line, with one default."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, get_type_hints

import pytest
import yaml

import vitscope
from vitscope.analyses.causes.causes_options import CausesOptions
from vitscope.analyses.class_space.lens_options import LensOptions
from vitscope.analyses.request import AnalyzeOptions
from vitscope.cli import run
from vitscope.cli.configuration import parse_with_config, with_file
from vitscope.cli.parsing import marks_of
from vitscope.data import load_data
from vitscope.errors import VitscopeError
from vitscope.options import fits
from vitscope.robustness.attack_options import AttackOptions
from vitscope.robustness.evaluation.evaluate_options import EvaluateOptions
from vitscope.runs import Run

REQUESTS = {
    "analyze": AnalyzeOptions,
    "lens": LensOptions,
    "causes": CausesOptions,
    "attack": AttackOptions,
    "evaluate": EvaluateOptions,
}
OPTIONS = [(command, f.name) for command, cls in REQUESTS.items() for f in dataclasses.fields(cls)]
# what is refused at once if it does not exist
CHECKED = {"set": {"pgd.steps": 3}, "swap_unknown": "swap", "elastic": "skip"}
SMALL = ["img_size=28", "patch_size=14", "in_chans=1", "embed_dim=16", "depth=2", "num_heads=2", "num_classes=10"]
TINY = ["vit_tiny_patch16_224", "--weights", "random", "--model-options", *SMALL, "--data", "mnist5k"]
QUICK = ["--images", "8", "--no-progress", "--no-report"]


def another(cls: type, name: str) -> Any:
    """A value of the option's type that is not the default."""
    mark, kind = marks_of(cls).get(name), get_type_hints(cls)[name]
    kind = mark.kind if mark is not None and mark.kind else kind
    samples = (True, 7, 0.5, "x", ("x",), {"x": 7})
    return CHECKED.get(name) or next(v for v in (False, *samples) if fits(v, kind) and v != getattr(cls(), name))


def typed(cls: type, name: str, value: Any) -> list[str]:
    flag = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return [flag if value else flag.replace("--", "--no-", 1)]
    words = [f"{k}={v}" for k, v in value.items()] if isinstance(value, Mapping) else value
    words = [*words] if not isinstance(value, str | int | float) else [str(value)]
    mark = marks_of(cls).get(name)
    return words if mark is not None and mark.positional else [flag, *words]


def called(command: str, monkeypatch: Any, **keywords: Any) -> dict[str, Any]:
    """All options as they arrive where the work of the Python function begins."""
    if command in ("lens", "causes"):  # requests that are made and run in Python
        return vars(REQUESTS[command](**keywords))
    found: dict[str, Any] = {}

    def stop(request: Any, model: Any, data: Any, *_: Any, **__: Any) -> None:
        found.update({**vars(request), **found}, **({} if data is None else {"data": data}))

    for place in ("analyses.engine", "robustness.attacking", "robustness.evaluating"):
        monkeypatch.setattr(f"vitscope.{place}.call", stop)
    chosen = {name: keywords[name] for name in ("attacks", "eps") if name in keywords}
    monkeypatch.setattr("vitscope.robustness.attacking.AttackStudy", lambda **given: found.update(chosen and given))
    getattr(vitscope, command)(**keywords)
    return {
        name: value for name, value in found.items() if name in [f.name for f in dataclasses.fields(REQUESTS[command])]
    }


@pytest.mark.parametrize(("command", "name"), OPTIONS)
def test_an_option_is_keyword_key_and_flag(command, name, monkeypatch, tmp_path):
    cls = REQUESTS[command]
    value = another(cls, name)
    assert value != getattr(cls(), name)
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({name: [*value] if isinstance(value, tuple) else value}))
    words = with_file(cls)
    ways = {
        "keyword": called(command, monkeypatch, **{name: value})[name],
        "key": getattr(parse_with_config(words, command, ["--config", str(file)], ""), name),
        "flag": getattr(parse_with_config(words, command, typed(cls, name, value), ""), name),
    }
    assert ways == dict.fromkeys(ways, value)


@pytest.mark.parametrize("command", REQUESTS)
def test_what_is_not_given_is_the_same_everywhere(command, monkeypatch, tmp_path):
    cls = REQUESTS[command]
    file = tmp_path / "mine.yaml"
    file.write_text("{}")
    default = vars(cls())
    assert called(command, monkeypatch) == default
    for words in ([], ["--config", str(file)]):
        parsed = vars(parse_with_config(with_file(cls), command, words, ""))
        assert {name: parsed[name] for name in default} == default


@pytest.mark.parametrize("command", REQUESTS)
def test_every_option_has_words_of_help(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit):
        run([command, "--help"])
    shown = "\n".join(line.strip("│ ") for line in capsys.readouterr().out.splitlines())
    for option in dataclasses.fields(REQUESTS[command]):
        flag = "MODEL [MODEL ...]" if option.name == "models" else "--" + option.name.replace("_", "-")
        text = shown.partition(f"\n{flag}")[2].partition("(default")[0]
        assert len(text.split()) > 2, f"{flag}: {text}"


@pytest.mark.parametrize(("command", "name"), [("analyze", "batchsize"), ("attack", "step"), ("evaluate", "corupt")])
def test_a_keyword_that_is_no_option_is_answered_with_the_nearest(command, name):
    with pytest.raises(VitscopeError, match=f"There is no option '{name}'. Did you mean (batch_size|steps|corrupt)"):
        getattr(vitscope, command)("test_vit", "mnist5k", **{name: 3})


@pytest.mark.parametrize("command", ["analyze", "attack", "evaluate"])
@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"batch_size": 2.5}, "batch_size: expected a whole number"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"share": float("nan")}, "share=nan: expected a finite number"),
        ({"options": {"seed": 1}}, r"options: expected (Analyze|Attack|Evaluate)Options\(...\), not"),
        ({"models": ("b",)}, "The model is given twice"),
        ({"weights": ("a", "b")}, "2 weights for 1 models"),
    ],
)
def test_values_are_checked_as_in_a_request(command, keywords, message):
    extra = {"corrupt": "contrast"} if command == "evaluate" else {}
    with pytest.raises(VitscopeError, match=message):
        getattr(vitscope, command)("test_vit", load_data("mnist5k", images=4), **{**extra, **keywords})


def test_what_is_open_already_takes_no_options_of_opening():
    model, data = vitscope.open_model(TINY[0], "random", img_size=32, depth=1), load_data("mnist5k", images=4)
    for keywords, message in (
        ({"split": "test", "every": 2}, "already loaded: give `split`, `every` to load_data"),
        ({"strict": True}, "already loaded: give `strict` to load_data"),
        ({"weights": "random", "use_ema": False}, "already open: give `weights`, `use_ema` to open_model"),
    ):
        with pytest.raises(VitscopeError, match=message):
            vitscope.analyze(model, data, ["accuracy"], **keywords)
    for keywords in ({"only": ("attention",)}, {"set": {"accuracy.bins": 3}}):
        with pytest.raises(VitscopeError, match="choose one way"):
            vitscope.analyze(model, data, ["accuracy"], **keywords)
    with pytest.raises(VitscopeError, match=r"write \{name: options\}"):
        vitscope.attack(model, data, ["pgd"], set={"pgd.steps": 3})


def test_an_options_object_is_the_same_as_its_keywords(tmp_path):
    keywords: dict[str, Any] = {"model_options": {k: int(v) for k, v in (word.split("=") for word in SMALL)}}
    keywords |= {"weights": "random", "images": 8, "seed": 1, "batch_size": 3, "progress": False, "report": False}
    called = vitscope.analyze(TINY[0], "mnist5k", ["accuracy"], tmp_path / "called", **keywords)
    options = AnalyzeOptions(**keywords, out=tmp_path / "options")
    given = vitscope.analyze(TINY[0], "mnist5k", ["accuracy"], options=options)
    other = vitscope.analyze(TINY[0], "mnist5k", ["accuracy"], tmp_path / "other", options=options, batch_size=4)
    assert given.path == tmp_path / "options"
    assert given.config == called.config
    assert given.table("accuracy").equals(called.table("accuracy"))
    assert other.config == {**called.config, "batch_size": 4}  # keywords win
    assert called.config["model"]["weights"] == "random, seed 0"  # what is named opens as open_model opens it


def test_a_whole_request_runs_by_the_function_as_by_itself(tmp_path):
    shape = {k: int(v) for k, v in (word.split("=") for word in SMALL)}
    options = AnalyzeOptions((TINY[0],), ("random",), model_options=shape, data="mnist5k", images=8, only=("accuracy",))
    options = dataclasses.replace(options, seed=1, progress=False, report=False, out=str(tmp_path / "itself"))
    (itself,) = options.run()
    function = vitscope.analyze(options=options, out=tmp_path / "function")
    assert function.config == itself.config


@pytest.mark.parametrize("command", ["attack", "evaluate"])
def test_the_configuration_of_a_run_goes_in_again(command, tmp_path):
    own = {"attack": ["--attacks", "noise,fgsm", "--eps", "8/255", "--set", "noise.draws=2", "--lens"]}
    words = own.get(command, ["--corrupt", "contrast", "--severities", "1,3"])
    assert run([command, *TINY, *QUICK, *words, "--out", str(tmp_path / "first")]) == 0
    first = Run.open(tmp_path / "first")
    again = ["--config", str(first.path / "config.yaml"), "--no-progress", "--no-report", "--out"]
    assert run([command, *again, str(tmp_path / "again")]) == 0
    assert Run.open(tmp_path / "again").config == first.config
    assert run([command, *again, str(tmp_path / "other"), "--seed", "1"]) == 0
    assert Run.open(tmp_path / "other").config["seed"] == 1


def test_a_file_of_another_command_is_refused_with_the_file(tmp_path, capsys):
    assert run(["analyze", *TINY, *QUICK, "--only", "accuracy", "--out", str(tmp_path / "run")]) == 0
    file = tmp_path / "run" / "config.yaml"
    for command, message in (
        ("attack", "has no 'analyses.accuracy'"),
        ("evaluate", "A saved configuration has no 'data."),
        ("lens", "it goes to `vitscope analyze --config`"),
    ):
        assert run([command, "--config", str(file)]) == 2
        err = capsys.readouterr().err
        assert str(file) in err
        assert message in err


@pytest.mark.parametrize(("command", "line"), [("attack", "attacks: [M:Mine]"), ("evaluate", "corrupt: [M:mine]")])
def test_code_that_only_a_file_names_is_not_imported(command, line, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "foreign_code.py").write_text("raise SystemExit('imported')")
    (tmp_path / "mine.yaml").write_text(line.replace("M", "foreign_code", 1))
    assert run([command, *TINY, *QUICK, "--config", "mine.yaml"]) == 2
    assert "--trust" in capsys.readouterr().err
