"""Whatever is typed, written into a configuration or done to a run folder: the answer is a result or a sentence.

The same cases every time, some thirty seconds. `VITSCOPE_FUZZ=20 pytest tests/cli/test_fuzz.py` tries twenty times as
many, other ones each time.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image

from vitscope.cli import run
from vitscope.errors import VitscopeError

TIMES = int(os.environ.get("VITSCOPE_FUZZ", "1"))
MODEL = {"img_size": 14, "patch_size": 7, "embed_dim": 8, "depth": 2, "num_heads": 2, "mlp_dim": 16, "num_classes": 2}

# what people type by mistake, and what they type to see what happens
ODD = (
    "nan", ".nan", "inf", "-.inf", "1e999", "-1", "0", "1", "2", "1.5", "1e-3", "9" * 40, "1/0", "1/255..2/255:0",
    "", " ", "none", "null", "true", "no", "a", "a,b", "a=b", "a:b", "a.b:C", "x" * 300, "/", "..", "*", "%s", "\udcff",
    "pictures", "trained", "analysed", "odd.bin", "A=pictures", "C=odd.bin", "all", "noise", "accuracy", "é", "\n", "-",
    "[", "[1,", "[1, 2]", "[nan]", "{a: 1}", "{1: 2}", "&a [*a]", "2020-99-99", "!!int x", "- a", "--", "5-1",
)  # fmt: skip
SMALL = ("-1", "0", "1", "1.5", "nan", "many", "")  # where a large number would mean much work, not a mistake
WORK = (
    "epochs", "batch_size", "batch", "repeats", "seeds", "steps", "restarts", "draws", "samples", "searches", "queries",
    "iterations", "depth", "reg_tokens",
)  # fmt: skip
NO_PROCESSES = ("-1", "0", "nan", "many")
PROCESSES = ("workers", "loaders", "threads")
PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.floats(), st.sampled_from(ODD), st.just({}), st.just([]),
    st.just([None]), st.just({"a": {"b": [1]}}), st.just(10**30),
)  # fmt: skip


def fuzzed(cases: int) -> Any:
    return settings(
        max_examples=cases * TIMES,
        derandomize=TIMES == 1,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate) if TIMES == 1 else (Phase.explicit, Phase.generate, Phase.shrink),
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with pictures, a trained model and a finished analysis; the current one while the tests run."""
    folder = tmp_path_factory.mktemp("fuzz")
    for split in ("train", "test"):
        for label in ("cats", "dogs"):
            (folder / "pictures" / split / label).mkdir(parents=True)
            for i in range(3):
                colour = 40 * i + (100 if label == "dogs" else 0)
                Image.new("L", (14, 14), colour).save(folder / "pictures" / split / label / f"{i}.png")
    (folder / "odd.bin").write_bytes(bytes(range(256)))
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.chdir(folder)
        patch.setattr("vitscope.cli.crash._write", crashes.append)
        assert run([*BASE["train"], "--out", "trained"]) == 0
        assert run([*BASE["analyze"], "--out", "analysed"]) == 0
        patch.setattr("vitscope.sweeps.sweeping.carry_out", Mock(side_effect=VitscopeError("No runs here.")))
        yield folder


crashes: list[str] = []  # what the last resort would have written to a file
TINY = ["small", "--weights", "random", "--model-options", *(f"{k}={v}" for k, v in MODEL.items())]
DATA = ["--data", "pictures", "--no-progress"]
BASE = {
    "analyze": ["analyze", *TINY, *DATA, "--only", "accuracy", "--no-report"],
    "lens": ["lens", *TINY, *DATA, "--parts", "identifiability", "--no-report"],
    "attack": ["attack", *TINY, *DATA, "--attacks", "fgsm", "--eps", "8/255", "--no-report"],
    "evaluate": ["evaluate", *TINY, *DATA, "--no-report"],
    "cost": ["cost", *TINY[:1], *TINY[3:], "--repeats", "1", "--batch", "1", "--attention", "softmax"],
    "train": ["train", "--model", "small", *TINY[3:-1], "--data", "pictures", "--epochs", "1", "--batch-size", "2",
              "--device", "cpu", "--no-progress"],
    "models": ["models"],
}  # fmt: skip


def answer(words: list[str], capsys: Any) -> int:
    """The exit code of a command line, which said nothing that only a programmer understands."""
    capsys.readouterr()
    try:
        code = run(words)
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    assert not crashes, f"{words}: {crashes.pop()}"
    assert code in (0, 2), words
    assert "Traceback" not in out + err, words
    assert code == 0 or err.strip(), f"{words} failed without a word"
    return code


@st.composite
def changed_words(draw: Any) -> list[str]:
    """A command that works, with one or two options set to something odd."""
    command = draw(st.sampled_from(list(BASE)))
    module = importlib.import_module(f"vitscope.cli.{command}")
    classes = {"cost": "CostOptions", "models": "ModelsOptions"}
    fields = dataclasses.fields(getattr(module, classes.get(command, "Words")))
    names = [f.name for f in fields if f.name not in ("models", "model", "filter", "out")]
    words = list(BASE[command]) if command != "models" else [*BASE[command], draw(st.sampled_from(ODD))]
    for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True)):
        pool = SMALL if name in WORK else NO_PROCESSES if name in PROCESSES else ODD
        value = draw(st.sampled_from(pool))
        flag = "--" + name.replace("_", "-")
        words += draw(st.sampled_from([[flag, value], [flag, value], [flag, value], [f"{flag}={value}"], [flag]]))
    return words


@fuzzed(40)
@given(words=changed_words())
def test_options_on_the_command_line(place, capsys, words):
    with tempfile.TemporaryDirectory(dir=place) as out:
        answer([*words, "--out", f"{out}/run"] if words[0] not in ("cost", "models") else words, capsys)


def analysis_options() -> list[tuple[str, str]]:
    from vitscope.registry import ANALYSES, option_names

    return [(name, option) for name, cls in ANALYSES.load_all().items() for option in [*option_names(cls), "absent"]]


@st.composite
def named_values(draw: Any) -> list[str]:
    """NAME=VALUE words for options of analyses, attacks, attentions, models, optimizers and probes."""
    from vitscope.registry import ATTACKS

    def value(option: str) -> str:
        return draw(st.sampled_from(SMALL if option in WORK else ODD))

    what = draw(st.sampled_from(["analysis", "attack", "attention", "model", "optimizer", "probe", "sweep"]))
    if what in ("analysis", "probe"):
        name, option = draw(st.sampled_from(analysis_options()))
        if what == "analysis":
            return [*BASE["analyze"][:-3], "--no-report", "--only", name, "--set", f"{name}.{option}={value(option)}"]
        return [*BASE["train"], "--probe", name, "--probe-set", f"{name}.{option}={value(option)}"]
    if what == "attack":
        name, cls = draw(st.sampled_from(sorted(ATTACKS.load_all().items())))
        option = draw(st.sampled_from([*(f.name for f in dataclasses.fields(cls)), "absent"]))
        words = [name if word == "fgsm" else word for word in BASE["attack"]]
        return [*words, "--set", f"{name}.{option}={value(option)}"]
    if what == "attention":
        name = draw(st.sampled_from(["softmax", "rpc", "symmetric", "scaled", "absent", "a.b:C"]))
        option = draw(st.sampled_from(["layers", "lambda", "iterations", "variant", "symmetric", "alpha", "absent"]))
        return [*BASE["analyze"], "--attention", f"{name}:{option}={value(option)}"]
    if what == "model":
        options = [*MODEL, "dropout", "drop_path_rate", "global_pool", "class_token", "reg_tokens", "norm_layer"]
        option = draw(st.sampled_from([*options, "checkpoint_path", "pretrained", "features_only", "absent"]))
        return [*BASE["analyze"], "--model-options", f"{option}={value(option)}"]
    if what == "sweep":
        name = draw(st.sampled_from(["lr", "depth", "model_options.depth", "optimizer_options.eps", "attention", "x"]))
        return ["sweep", *BASE["train"][1:], "--seeds", "1", "--vary", f"{name}={value(name)}"]
    name = draw(st.sampled_from(["momentum", "betas", "eps", "layer_decay", "foreach", "lr", "absent"]))
    return [*BASE["train"], "--optimizer-options", f"{name}={value(name)}"]


@fuzzed(35)
@given(words=named_values())
def test_options_by_name(place, capsys, words):
    with tempfile.TemporaryDirectory(dir=place) as out:
        answer([*words, "--out", f"{out}/run"], capsys)


def paths(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value inside nested mappings and lists."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*here, key)
        yield from paths(inner, (*here, key))


@st.composite
def damaged(draw: Any, content: Any) -> Any:
    """The same with one to three values replaced, taken out or added; now and then something else altogether."""
    content = json.loads(json.dumps(content))
    if draw(st.integers(0, 9)) == 0:
        return draw(PLAIN)
    for _ in range(draw(st.integers(1, 3))):
        ways = list(paths(content))
        if not ways:
            break
        *parents, key = draw(st.sampled_from(ways))
        inner = content
        for parent in parents:
            inner = inner[parent]
        change = draw(st.sampled_from(["replace", "replace", "replace", "remove", "add"]))
        if change == "remove":
            del inner[key]
        elif change == "add" and isinstance(inner, dict):
            inner[draw(st.sampled_from(["surplus", "", 3, None]))] = copy.deepcopy(draw(PLAIN))
        else:
            inner[key] = copy.deepcopy(draw(PLAIN))
    return content


@st.composite
def damaged_text(draw: Any, text: str) -> bytes:
    """A file cut short, with bytes changed, or replaced by something that is none."""
    data = bytearray(text.encode())
    change = draw(st.sampled_from(["cut", "bytes", "double", "other"]))
    if change == "cut":
        return bytes(data[: draw(st.integers(0, len(data)))])
    if change == "double":
        return bytes(data + data)
    if change == "other":
        return draw(
            st.sampled_from([b"", b"\x00", b"\xff\xfe", b"[" * 5000, b"a: &a [*a]", b"{}", b"\n\n", b"- 1", b"3"])
        )
    for _ in range(draw(st.integers(1, 4))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.sampled_from(b"\x00\xff{}[]:,\"'\n-0 9a&*"))
    return bytes(data)


ANALYZE = {
    "models": ["small"], "weights": ["random"], "model_options": MODEL, "data": "pictures", "only": ["accuracy"],
    "set": {}, "images": 4, "every": 1, "share": 1.0, "seed": 0, "strict": False, "batch_size": 2, "report": False,
    "progress": False, "attention": None, "split": "test", "root": None, "save": [], "gallery": 1, "device": "cpu",
}  # fmt: skip
TRAIN = {
    "model": "small", "model_options": {k: v for k, v in MODEL.items() if k != "num_classes"}, "data": "pictures",
    "epochs": 1, "batch_size": 2, "device": "cpu", "progress": False, "probe": [], "probe_set": {}, "lr": 0.001,
    "optimizer": "adamw", "optimizer_options": {}, "augment": "none", "schedule": "cosine", "track": [],
    "weights": None, "warmup_epochs": 0.0, "clip_grad": 1.0, "mixup": 0.0, "ema": 0.0, "attention": "",
}  # fmt: skip


@fuzzed(30)
@given(data=st.data(), command=st.sampled_from(["analyze", "train"]), ours=st.booleans(), raw=st.integers(0, 3))
def test_configurations(place, capsys, data, command, ours, raw):
    """Files of the user's own and those that runs have saved."""
    saved = place / ("analysed" if command == "analyze" else "trained") / "config.yaml"
    content = yaml.safe_load(saved.read_text()) if ours else ANALYZE if command == "analyze" else TRAIN
    with tempfile.TemporaryDirectory(dir=place) as folder:
        file = Path(folder) / "mine.yaml"
        if raw == 0:
            file.write_bytes(data.draw(damaged_text(yaml.safe_dump(content))))
        else:
            file.write_text(yaml.safe_dump(data.draw(damaged(content))))
        words = [command, "--config", str(file), "--no-progress", *(["--no-report"] if command == "analyze" else [])]
        if b"pictures" not in file.read_bytes():
            words += ["--data", "pictures"]  # not what is trained on where nothing is said
        answer([*words, "--out", f"{folder}/run"], capsys)


@st.composite
def damaged_table(draw: Any, text: str) -> bytes:
    """A table with cells replaced, columns or rows taken out; or a damaged text."""
    rows = [line.split(",") for line in text.splitlines()]
    change = draw(st.sampled_from(["cells", "column", "rows", "header", "text"]))
    if change == "text":
        return draw(damaged_text(text))
    if change == "column":
        at = draw(st.integers(0, len(rows[0]) - 1))
        rows = [row[:at] + row[at + 1 :] for row in rows]
    elif change == "rows":
        rows = rows[: draw(st.integers(1, len(rows)))]
    for _ in range(draw(st.integers(1, 3))):
        row = rows[0] if change == "header" else draw(st.sampled_from(rows))
        if row:
            row[draw(st.integers(0, len(row) - 1))] = draw(st.sampled_from([v for v in ODD if v != "\udcff"]))
    return "\n".join(map(",".join, rows)).encode()


@fuzzed(15)
@given(data=st.data())
def test_damaged_run_folders(place, capsys, data):
    """JSON, YAML and tables of a run folder that something has happened to."""
    kind = data.draw(st.sampled_from(["analysed", "trained"]))
    files = [f.relative_to(place / kind) for f in (place / kind).rglob("*") if f.suffix in (".json", ".yaml", ".csv")]
    name = data.draw(st.sampled_from(sorted(files, key=str)))
    with tempfile.TemporaryDirectory(dir=place) as folder:
        run_folder = Path(folder) / kind
        shutil.copytree(place / kind, run_folder)
        file, text = run_folder / name, (place / kind / name).read_text()
        raw = data.draw(st.integers(0, 3)) == 0
        if name.suffix == ".csv":
            file.write_bytes(data.draw(damaged_table(text)))
        elif raw or not text.strip():
            file.write_bytes(data.draw(damaged_text(text or "{}")))
        elif name.suffix == ".json":
            file.write_text(json.dumps(data.draw(damaged(json.loads(text)))))
        else:
            file.write_text(yaml.safe_dump(data.draw(damaged(yaml.safe_load(text)))))
        commands = [["report", str(run_folder)], ["rerun", str(run_folder), "--out", f"{folder}/again"]]
        if kind == "trained":
            commands.append(
                ["analyze", str(run_folder), *DATA, "--only", "accuracy", "--no-report", "--out", f"{folder}/a"]
            )
            commands.append([*BASE["train"], "--out", str(run_folder)])
        else:
            commands.append([*BASE["analyze"], "--out", str(run_folder)])
        answer(data.draw(st.sampled_from(commands)), capsys)


@fuzzed(20)
@given(data=st.data())
def test_odd_words_in_the_place_of_a_model_or_a_run(place, capsys, data):
    command = data.draw(st.sampled_from(["analyze", "lens", "attack", "evaluate", "cost", "report", "rerun"]))
    words = [data.draw(st.sampled_from(ODD)) for _ in range(data.draw(st.integers(1, 2)))]
    if command in BASE:
        rest = BASE[command][2:]
        if data.draw(st.booleans()):
            rest = [word for word in rest if word not in ("--weights", "random")]
        words += rest
    with tempfile.TemporaryDirectory(dir=place) as out:
        answer([command, *words, *(["--out", f"{out}/run"] if command != "cost" else [])], capsys)
