from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "timm", "torchvision", "pandas", "numpy", "matplotlib", "accelerate", "PIL")


def loaded_after(program: str) -> set[str]:
    """Top-level packages in a fresh interpreter after `program`."""
    code = f"import json, sys\n{program}\nprint(json.dumps(sorted({{m.partition('.')[0] for m in sys.modules}})))"
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(json.loads(result.stdout.splitlines()[-1]))


def test_import_vitscope_loads_nothing_heavy():
    loaded = loaded_after("import vitscope")
    assert "vitscope" in loaded
    assert not loaded & set(HEAVY)


@pytest.mark.parametrize("words", [["--help"], ["--version"], [], ["no-such-command"]])
def test_the_command_line_answers_without_loading_anything_heavy(words):
    loaded = loaded_after(f"from vitscope.cli import run\nrun({words!r})")
    assert not loaded & set(HEAVY)


@pytest.mark.parametrize("command", ["analyze", "rerun", "report", "models", "demo"])
def test_help_of_a_command_does_not_load_torch(command):
    program = f"from vitscope.cli import run\ntry: run([{command!r}, '--help'])\nexcept SystemExit: pass"
    assert "torch" not in loaded_after(program)


def test_the_module_and_the_console_script_are_the_same_program():
    import vitscope

    result = subprocess.run([sys.executable, "-m", "vitscope", "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"vitscope {vitscope.__version__}\n"
