from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import subprocess
import sys
import textwrap
from pathlib import Path

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


@pytest.mark.parametrize(
    "command", ["analyze", "evaluate", "rerun", "report", "models", "demo", "train", "sweep", "cost"]
)
def test_help_of_a_command_does_not_load_torch(command):
    program = f"from vitscope.cli import run\ntry: run([{command!r}, '--help'])\nexcept SystemExit: pass"
    assert "torch" not in loaded_after(program)


def needed_by_panels() -> set[str]:
    """What the modules of all panels import, at their top or inside of functions."""
    from vitscope.registry import PANELS

    found = set()
    for module in set(PANELS.homes().values()):
        tree = ast.parse(Path(importlib.util.find_spec(module).origin).read_text("utf-8"))
        for_types = {id(n) for b in ast.walk(tree) if isinstance(b, ast.If) and "TYPE_CHECKING" in ast.dump(b.test)
                     for n in ast.walk(b)}  # fmt: skip
        for node in (n for n in ast.walk(tree) if id(n) not in for_types):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(node.module)
    return found


def test_panels_are_drawn_without_torch():
    """What any of them may import along the way. The demo's own test draws a page in a process of its own."""
    needed = sorted(needed_by_panels())
    assert "vitscope.report.panel" in needed
    loaded = loaded_after(f"import importlib\nfor name in {needed!r}: importlib.import_module(name)")
    assert "matplotlib" in loaded
    assert not loaded & {"torch", "timm", "scipy", "torchvision", "accelerate"}


MODEL = ["vit_tiny_patch16_224", "--data", "mnist5k"]
QUICK = ["--recipe", "quick", "--out", "never-made"]
MISTAKES = {
    "--imges": ["analyze", *MODEL, "--imges", "4"],
    "'attnetion'. Did you mean attention": ["analyze", *MODEL, "--only", "attnetion"],
    "no analysis 'kpac'. Known": ["analyze", *MODEL, "--set", "kpac.variant=code"],
    "for one of the analyses that run (accuracy)": ["analyze", *MODEL, "--only", "accuracy", "--set", "save.dtype=x"],
    "'rcp'. Did you mean rpc?": ["analyze", *MODEL, "--attention", "rcp:layers=0"],
    "no folder 'not/there'": ["analyze", MODEL[0], "--data", "not/there"],
    "'nonzer'. Did you mean nonzero": ["analyze", *MODEL, "--mask-decoding", "nonzer"],
    "No weights at not/there.pth": ["analyze", *MODEL, "--weights", "not/there.pth"],
    "Cannot read not/there.yaml": ["analyze", "--config", "not/there.yaml"],
    "No data is given": ["analyze", MODEL[0]],
    "No model is given": ["analyze", "--data", "mnist5k"],
    "no part 'lenz'": ["lens", *MODEL, "--parts", "lenz"],
    "no folder 'nor/there'": ["lens", *MODEL, "--train", "nor/there"],
    "'pdg'. Did you mean pgd": ["attack", *MODEL, "--attacks", "pdg"],
    "--eps 8/255": ["attack", *MODEL, "--eps", "8"],
    "'frog'. Did you mean fog": ["evaluate", *MODEL, "--corrupt", "frog"],
    "no set 'Q'": ["evaluate", *MODEL, "--ood", "Q=x"],
    "takes the folder of ImageNet-A": ["evaluate", *MODEL, "--ood", "A=not/there"],
    "no recipe 'qiuck'": ["train", "--recipe", "qiuck"],
    "--eopchs": ["train", *QUICK, "--eopchs", "3"],
    "'seperation'. Did you mean separation": ["train", *QUICK, "--probe", "seperation"],
    "no folder 'not/here'": ["train", *QUICK, "--data", "not/here"],
    "no attention 'rcp'": ["train", *QUICK, "--attention", "rcp"],
    "No weights at not/here": ["train", *QUICK, "--weights", "not/here"],
    "attention=rcp: There is no": ["sweep", *QUICK, "--vary", "attention=softmax|rcp"],
    "no analysis 'seperation'": ["sweep", *QUICK, "--probe", "seperation"],
    "'scald'. Did you mean scaled": ["cost", MODEL[0], "--attention", "scald"],
    "There is no run folder": ["report", "not/there"],
}  # what the answer holds -> the words that deserve it


def test_a_mistake_is_answered_before_torch_is_imported():
    program = f"""
        import contextlib, io, json, sys
        from vitscope.cli import run
        found = {{}}
        for expected, words in {MISTAKES!r}.items():
            said = io.StringIO()
            with contextlib.redirect_stderr(said):
                try:
                    code = run(words)
                except SystemExit as stop:
                    code = stop.code
            heavy = [name for name in ("torch", "timm", "scipy", "torchvision", "accelerate") if name in sys.modules]
            if code != 2 or heavy or expected not in " ".join(said.getvalue().split()):
                found[expected] = [code, heavy, said.getvalue()]
        print(json.dumps(found))
    """
    code = textwrap.dedent(program)
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert json.loads(result.stdout.splitlines()[-1]) == {}


def test_a_model_that_the_table_does_not_have_is_refused_only_after_asking_timm(monkeypatch):
    import timm

    from vitscope.errors import VitscopeError
    from vitscope.models.naming import check_model_name

    with pytest.raises(VitscopeError, match=r"vit_tiny_patch61_224.*Did you mean vit_tiny_patch16"):
        check_model_name("vit_tiny_patch61_224")
    monkeypatch.setattr(timm, "list_models", lambda: ["vit_of_tomorrow"])
    check_model_name("vit_of_tomorrow")
    monkeypatch.setattr(timm, "list_models", lambda: pytest.fail("asked for a name that the table has"))
    check_model_name("vit_tiny_patch16_224")


def test_the_module_and_the_console_script_are_the_same_program():
    import vitscope

    result = subprocess.run([sys.executable, "-m", "vitscope", "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"vitscope {vitscope.__version__}\n"


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("vitscope.analyses", "Figure", "Headline"),
        ("vitscope.analyses.base", "Figure", "Headline"),
        ("vitscope.robustness", "Task", "Victims"),
        ("vitscope.robustness.attacks", "Task", "Victims"),
        ("vitscope.robustness.attacks.registry", "Task", "Victims"),
    ],
)
def test_an_old_name_works_and_says_what_replaces_it(module, old, new):
    room = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=f"{old} is called {new} since 0.2") as warned:
        found = getattr(room, old)
    assert found is getattr(room, new)
    assert warned[0].filename == __file__, "the warning points at who uses the old name"
    assert old not in dir(room)
