"""Every block of Python on a page is run, in a folder where the names it uses are there, or says why it is not."""

from __future__ import annotations

import ast
import contextlib
import io
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import pytest
from blocks import Block, pages, python_blocks
from desk import spread

WITH_BLOCKS = [page for page in pages() if python_blocks(page)]


def test_there_are_examples_to_run() -> None:
    assert len(WITH_BLOCKS) > 20


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=lambda page: page.stem if page.parent.name == "docs" else page.name)
def test_the_blocks_of_a_page_run(
    page: Path, desk_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(desk_folder)
    names = spread(desk_folder, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for block in python_blocks(page):
        carry_out(block, names, tmp_path)


def inside(code: str) -> str:
    """A piece of a function may `return`."""
    return "def piece():\n" + textwrap.indent(code, "    ")


def carry_out(block: Block, names: dict[str, Any], folder: Path) -> None:
    if block.not_run:
        ast.parse(inside(block.code))
        return
    code = compile("\n" * (block.line - 1) + block.code, block.page, "exec")
    with contextlib.redirect_stdout(io.StringIO()):
        if block.first:
            exec(block.first, names)
        if block.file and "/" not in block.file:
            (folder / block.file).write_text(block.code)  # to be named, package.module:Name
            return
        if block.file:  # a module, which a dataclass looks for
            stem = Path(block.file).stem
            module = sys.modules[stem] = types.ModuleType(stem)
            names = module.__dict__
        exec(code, names)
        if block.file.startswith("tests/"):
            tests = [value for name, value in names.items() if name.startswith("test_")]
            assert tests
            for test in tests:
                test()
