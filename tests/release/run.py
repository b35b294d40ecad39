"""A release, tried as a user gets it: build wheel and sdist, install the wheel into fresh environments, use it.

    python tests/release/run.py python3.11 python3.12 python3.13        # or `make release-test`

Each environment is made by one interpreter in a folder of its own, without the repository on its path, and deleted
before the next: it holds PyTorch, which takes several gigabytes and minutes. Not part of `make test`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = ["--recipe", "quick", "--share", "0.05", "--epochs", "1", "--no-progress"]
SMALL += ["--model-options", "depth=2", "embed_dim=16", "num_heads=2", "patch_size=14"]
DIGITS = ["--data", "mnist5k", "--images", "40", "--no-progress"]
COMMANDS = [
    ["--version"],
    ["models", "dinov3"],
    ["train", *SMALL, "--probe", "attention", "--probe-images", "40", "--out", "runs/trained"],
    ["analyze", "runs/trained", *DIGITS, "--only", "accuracy,attention,kpca.norms", "--out", "runs/looked"],
    ["attack", "runs/trained", *DIGITS, "--attacks", "fgsm", "--eps", "8/255", "--out", "runs/attacked"],
    ["report", "runs/trained", "runs/looked", "runs/attacked", "--out", "page.html"],
    ["report", "runs", "--table", "top1,fgsm@8/255,test_accuracy", "--out", "table.tex"],
    ["cite", "runs", "--out", "works.bib"],
    ["explore", "--help"],
]
# the package must be the installed one, and bring along what is no Python
CHECK = """
import pathlib, sys, vitscope
from importlib.metadata import version
home = pathlib.Path(vitscope.__file__).parent
assert home.is_relative_to(sys.prefix), f"not the installed package: {home}"
assert version("vitscope") == vitscope.__version__ == sys.argv[1], (version("vitscope"), vitscope.__version__)
missing = [name for name in sys.argv[2:] if not (home / name).is_file()]
assert not missing, f"not in the wheel: {missing}"
assert "<polyline" in pathlib.Path("page.html").read_text() or "<svg" in pathlib.Path("page.html").read_text()
assert r"\\toprule" in pathlib.Path("table.tex").read_text()
assert "@software{vitscope" in pathlib.Path("works.bib").read_text()
print(f"Python {sys.version.split()[0]}: vitscope {vitscope.__version__} works; "
      f"torch {version('torch')}, timm {version('timm')}")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("interpreters", nargs="+", metavar="PYTHON", help="python3.11, or a path")
    parser.add_argument("--newest", action="store_true", help="the newest packages, not those of constraints.txt")
    parser.add_argument("--folder", type=Path, help="where to work; none: a temporary folder")
    options = parser.parse_args()
    if missing := [name for name in options.interpreters if shutil.which(name) is None]:
        sys.exit(f"There is no {', '.join(missing)} here: install it, or name another interpreter.")
    folder = Path(tempfile.mkdtemp(prefix="vitscope-release-", dir=options.folder))
    try:
        wheel = build(folder)
        constraints = [] if options.newest else ["--constraint", str(REPOSITORY / "constraints.txt")]
        for interpreter in options.interpreters:
            try_out(interpreter, wheel, constraints, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def build(folder: Path) -> Path:
    """The sdist from the files under version control, and the wheel from the sdist, as `python -m build` does."""
    source, made = folder / "source", REPOSITORY / "dist"
    listing = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout
    for name in listing.splitlines():
        if (REPOSITORY / name).is_file():  # not one that is just being deleted
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, source / name)
    run([sys.executable, "-m", "venv", folder / "builder"])
    run([folder / "builder/bin/python", "-m", "pip", "install", "--quiet", "build"])
    run([folder / "builder/bin/python", "-m", "build", "--outdir", folder / "dist", source], quiet=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    extra = [n for n in zipfile.ZipFile(wheel).namelist() if not n.startswith(("vitscope/", f"{wheel.name[:14]}"))]
    assert not extra, f"the wheel holds what is no part of the package: {extra[:5]}"
    made.mkdir(exist_ok=True)
    for file in (wheel, sdist):
        shutil.copy2(file, made)
        print(f"{made.name}/{file.name}: {file.stat().st_size / 1e3:,.0f} kB", flush=True)
    return wheel


def try_out(interpreter: str, wheel: Path, constraints: list[str], folder: Path) -> None:
    started, home, place = time.monotonic(), folder / "environment", folder / "elsewhere"
    place.mkdir()
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")}
    environment["OMP_NUM_THREADS"] = environment.get("OMP_NUM_THREADS", "1")
    try:
        run([interpreter, "-m", "venv", home], env=environment)
        pip = [home / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run([*pip, *constraints, f"{wheel}[demo]"], env=environment)
        print(f"{interpreter}: installed after {time.monotonic() - started:.0f} s", flush=True)
        started = time.monotonic()
        for words in COMMANDS:
            run([home / "bin/vitscope", *words], env=environment, cwd=place, quiet=True)
        version = wheel.name.split("-")[1]
        code = [home / "bin/python", "-c", CHECK, version, *data_files(folder / "source")]
        run(code, env=environment, cwd=place)
        print(f"{interpreter}: used for {time.monotonic() - started:.0f} s", flush=True)
    finally:
        for used in (home, place):
            shutil.rmtree(used, ignore_errors=True)


def data_files(source: Path) -> list[str]:
    """Files of the package that are no Python, in the sources that the wheel was built from."""
    package = source / "src" / "vitscope"
    files = [p for p in package.rglob("*") if p.is_file() and p.suffix != ".py"]
    return [str(p.relative_to(package)) for p in files]


def run(words: list[object], *, quiet: bool = False, **how: object) -> None:
    """Refuses to go on after a failure, and then shows what was said."""
    done = subprocess.run([str(word) for word in words], capture_output=quiet, text=True, **how)  # type: ignore[call-overload]
    if done.returncode:
        said = f"\n{done.stdout}\n{done.stderr}" if quiet else ""
        sys.exit(f"`{' '.join(map(str, words))}` ended with {done.returncode}.{said}")


if __name__ == "__main__":
    main()
