"""Run folders that something has happened to: one line that names file and field, or a good page. Never a traceback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vitscope.analyses.base import Headline
from vitscope.cli import run
from vitscope.runs import Run

Attempt = Callable[..., tuple[int, str]]

# field -> what it must be; every other kind of value is an error that names it
FIELDS: dict[str, dict[tuple[Any, ...], tuple[type, ...]]] = {
    "run.json": {("kind",): (str,), ("status",): (str,), ("created",): (str,)},
    "environment.json": {
        ("command",): (str,),
        ("versions",): (dict,),
        ("versions", "torch"): (str,),
        ("git",): (dict, type(None)),
        ("resumed",): (list,),
        ("resumed", 0): (dict,),
        ("resumed", 0, "time"): (str,),
        ("seed",): (object,),
    },
    "summary.json": {
        ("accuracy.top1",): (),
        ("accuracy.top1", "value"): (int, float),
        ("accuracy.top1", "unit"): (str,),
        ("accuracy.top1", "n"): (int,),
        ("accuracy.top1", "note"): (str,),
    },
    "timing.json": {("analyze", "seconds"): (object,)},
    "warnings.json": {("warnings",): (list,), ("warnings", 0): (str,)},
}
VALUES: list[Any] = ["text", 3, -1.5, True, None, [], {}]
WHOLE = ["", "{", "[]", "3", "null", '"text"', "\x00", "[" * 100_000, '{"a": 1', b"\xff\xfe{}"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with every JSON file and no table, so that its page is drawn at once."""
    folder = tmp_path_factory.mktemp("whole") / "tiny"
    config = {"model": {"name": "vit"}, "data": {"name": "digits", "split": "test"}, "analyses": {"accuracy": {}}}
    for _ in range(2):  # the second time it is resumed, which is noted
        with Run.create(folder, config, kind="analyze") as made:
            made.write_summary({"accuracy.top1": Headline(93.5, "%", 1000, "all")})
            made.write_timing({"analyze": {"seconds": 1.5}})
            made.log_warning("watch out")
    with Run.create(folder, config, kind="analyze") as made:
        made.finish()
    return folder


@pytest.fixture
def attempt(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Attempt:
    """attempt('report', folder) -> exit code and stderr, which are checked for what no damage may lead to."""
    monkeypatch.chdir(tmp_path)

    def call(*words: object) -> tuple[int, str]:
        code = run([str(word) for word in words])
        shown = capsys.readouterr()
        assert "Traceback" not in shown.out + shown.err
        assert code in (0, 2), shown.err
        assert bool(shown.err.strip()) == (code == 2), f"exit code {code} and stderr {shown.err!r}"
        return code, shown.err

    return call


def copied(folder: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    return Path(shutil.copytree(folder, to))


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_of_another_type_is_named_where_it_matters(
    name: str, whole: Path, tmp_path: Path, attempt: Attempt
) -> None:
    folder = copied(whole, tmp_path / "run")
    file = folder / name
    good = json.loads(file.read_text())
    for path, kinds in FIELDS[name].items():
        for value in VALUES:
            content = json.loads(json.dumps(good))
            inner = content
            for key in path[:-1]:
                inner = inner[key]
            assert path[-1] in inner if isinstance(inner, dict) else path[-1] < len(inner)
            inner[path[-1]] = value
            file.write_text(json.dumps(content))
            (folder / "report.html").unlink(missing_ok=True)
            fits = isinstance(value, kinds) and (value is not True or object in kinds)
            code, told = attempt("report", folder)
            where = f"{name}: {path} = {value!r}"
            assert code == (0 if fits else 2), where
            assert (folder / "report.html").exists() == fits, where
            if not fits:
                field = ".".join(map(str, path))
                assert told.startswith(f"{file} is damaged: {field}"), where
                assert "Delete it" in told or "--overwrite" in told, where


@pytest.mark.parametrize("name", FIELDS)
def test_a_file_that_is_no_json_object_is_named_with_what_to_do(
    name: str, whole: Path, tmp_path: Path, attempt: Attempt
) -> None:
    folder = copied(whole, tmp_path / "run")
    file = folder / name
    for content in WHOLE:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        for command in ("report", "rerun"):
            code, told = attempt(command, folder)
            assert code == 2
            assert str(file) in told
            assert "Delete it" in told or "--overwrite" in told
    file.unlink()
    code, told = attempt("report", folder)
    assert code == (2 if name == "run.json" else 0)  # what the others say is missed by nobody
    file.mkdir()
    code, told = attempt("report", folder)
    assert code == 2
    assert str(file) in told


def test_numbers_that_are_none_are_refused(whole: Path, tmp_path: Path, attempt: Attempt) -> None:
    folder = copied(whole, tmp_path / "run")
    for value in ("NaN", "Infinity", "-Infinity", "1e400", "9" * 400):
        entry = f'{{"value": {value}, "unit": "%", "n": 3}}'
        (folder / "summary.json").write_text(f'{{"accuracy.top1": {entry}}}')
        code, told = attempt("report", folder)
        assert code == 2
        assert "accuracy.top1.value should be a finite number" in told


def test_a_damaged_configuration_is_named(whole: Path, tmp_path: Path, attempt: Attempt) -> None:
    folder = copied(whole, tmp_path / "run")
    file = folder / "config.yaml"
    for content in (b"", b"- a\n- b", b"text", b"a: [", b"\xff\xfe", b"3: 4", b"a: " + b"[" * 2000, b"\x00"):
        file.write_bytes(content)
        for command in ("report", "rerun"):
            code, told = attempt(command, folder)
            assert code == 2
            assert str(file) in told
    file.unlink()
    code, told = attempt("report", folder)
    assert code == 2
    assert "config.yaml" in told


@pytest.mark.parametrize("key", ["label", "model", "data", "analyses", "modules"])
def test_a_configuration_with_odd_values_still_gives_a_page_and_is_not_done_again(
    key: str, whole: Path, tmp_path: Path, attempt: Attempt
) -> None:
    import yaml

    folder = copied(whole, tmp_path / "run")
    for value in [*VALUES, {"name": []}, {"run": 3, "run_path": []}, [{}], {"accuracy": []}]:
        config = yaml.safe_load((whole / "config.yaml").read_text())
        (folder / "config.yaml").write_text(yaml.safe_dump({**config, key: value}))
        code, told = attempt("report", folder)
        assert code == 0, f"{key}: {value!r} -> {told}"
        code, told = attempt("rerun", folder)
        assert code == 2, f"{key}: {value!r}"
        assert str(folder) in told


def test_half_of_a_configuration_is_never_done_again(finished_run: Path, tmp_path: Path, attempt: Attempt) -> None:
    folder = copied(finished_run, tmp_path / "run")
    lines = (folder / "config.yaml").read_text().splitlines(keepends=True)
    for kept in range(len(lines)):
        (folder / "config.yaml").write_text("".join(lines[:kept]))
        code, told = attempt("rerun", folder)
        assert code == 2, kept
        assert str(folder / "config.yaml") in told
    assert not (tmp_path / "run-rerun").exists()


def _empty(table: Path) -> None:
    table.write_bytes(b"")


def _garbage(table: Path) -> None:
    table.write_bytes(bytes(range(256)) * 20)


def _folder(table: Path) -> None:
    table.unlink()
    table.mkdir()


def _other_columns(table: Path) -> None:
    table.write_text(table.read_text().replace('"', '"x', 2))


def _another_table(table: Path) -> None:
    table.write_text('"image"\n3\n')


def _text_for_numbers(table: Path) -> None:
    header, *rows = table.read_text().splitlines()
    table.write_text("\n".join([header, ",".join(['"odd"'] * len(header.split(","))), *rows]) + "\n")


def _cut_short(table: Path) -> None:
    table.write_bytes(table.read_bytes()[:-3])


@pytest.mark.parametrize(
    "damage", [_empty, _garbage, _folder, _other_columns, _another_table, _text_for_numbers, _cut_short]
)
def test_panels_whose_tables_are_damaged_are_named_and_the_exit_code_tells(
    damage: Callable[[Path], None], finished_run: Path, tmp_path: Path, attempt: Attempt
) -> None:
    folder = copied(finished_run, tmp_path / "run")
    for table in (folder / "tables").iterdir():
        damage(table)
    (folder / "report.html").unlink()
    code, told = attempt("report", folder)
    assert code == 2
    page = (folder / "report.html").read_text()
    for panel in ("accuracy", "attention", "separation"):
        assert f"The panel '{panel}' could not be drawn (" in told
        assert f"The panel &#39;{panel}&#39; could not be drawn (" in page
    assert "The page has everything else" in told


def test_a_damaged_table_costs_its_own_panel_and_no_other(finished_run: Path, tmp_path: Path, attempt: Attempt) -> None:
    folder = copied(finished_run, tmp_path / "run")
    for table in (folder / "tables").iterdir():
        if table.stem not in ("accuracy", "accuracy_per_class", "calibration", "predictions"):
            table.unlink()
    _empty(folder / "tables" / "attention.csv")
    code, told = attempt("report", folder)
    assert code == 2
    assert told.count("could not be drawn") == 1
    assert f"The panel 'attention' could not be drawn (Cannot read the table {folder}" in told
    assert "How often is the model right" in (folder / "report.html").read_text()


def test_odd_text_in_the_lock_of_an_unfinished_run_does_not_matter(
    whole: Path, tmp_path: Path, attempt: Attempt
) -> None:
    folder = copied(whole, tmp_path / "run")
    marker = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**marker, "status": "unfinished"}))
    for content in WHOLE:
        (folder / ".lock").write_bytes(content if isinstance(content, bytes) else content.encode())
        assert attempt("report", folder)[0] == 0
        assert "is unfinished" in (folder / "report.html").read_text()
