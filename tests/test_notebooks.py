"""The notebooks as they are stored. `make notebooks` runs them."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
FILES = sorted(NOTEBOOKS.glob("*.ipynb"))


class Stream(dict):  # as nbformat has it
    text = property(lambda self: self["text"])


def read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def execute() -> ModuleType:
    spec = importlib.util.spec_from_file_location("execute", NOTEBOOKS / "execute.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_notebook_is_stored_with_clean_outputs(file, execute):
    cells = read(file)["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert "".join(cells[0]["source"]).startswith("# ")
    assert "Try next" in "".join(cells[-1]["source"])
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert outputs
    assert not [o for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"]
    assert not re.search(r"/(tmp|root|work|home)/|site-packages", json.dumps(outputs))
    assert any({"same", "near"} & set(cell["metadata"].get("tags", [])) for cell in code)
    assert file.stat().st_size <= execute.LARGEST


def test_progress_bars_are_not_kept_and_warnings_are(execute):
    bar = "digits:  62%|██████▎   | 25/40 [00:03<00:02,  6.64 images/s]"
    kept = {text: not execute.is_progress(Stream(name="stderr", text=text)) for text in (bar, f"{bar}\r{bar}\n", "\n")}
    assert kept == dict.fromkeys(kept, False)
    assert not execute.is_progress(Stream(name="stderr", text=f"{bar}\nUserWarning: no"))
    assert not execute.is_progress(Stream(name="stdout", text=bar))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("accuracy 95.1 %", "accuracy 94.2 %", True),
        ("accuracy 95.1 %", "accuracy 45.1 %", False),
        ("accuracy 95.1 %", "error 95.1 %", False),
        ("block  1   0.20", "block 1 0.22", True),
        ("1,234 of 5", "1,300 of 5", True),
        ("1,234 of 5", "1,300 of 9", False),
        ("from −0.5 to 1e-3", "from −0.48 to 2e-3", True),
        ("0.5 1.0", "0.5", False),
    ],
)
def test_numbers_may_move_and_words_may_not(execute, old, new, expected):
    assert execute.near(old, new) is expected
