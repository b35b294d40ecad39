"""Do two checkouts make the same tables? The same runs with the sources of both, compared to the last digit.

python tests/same_tables.py OLD NEW [--only demo sweep] [--weights FILE --data FOLDER]

OLD and NEW are clones. The runs: the demo, an attack on its model, a sweep, and with --weights (a ViT-Tiny of timm) and
--data (ImageNet's layout) an analysis with all lenses. Both use this environment; it takes about five minutes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

QUIET = ["--no-progress"]


def runs(weights: str | None, data: str | None) -> dict[str, list[str]]:
    """Name -> command line; each writes into the folder of its name."""
    commands = {
        "demo": ["demo"],
        "attack": ["attack", "demo/digits-rpc", "--data", "mnist5k", "--images", "50", "--attacks", "fgsm,pgd,noise",
                   "--eps", "0.1,0.2", *QUIET],
        "sweep": ["sweep", "--recipe", "quick", "--epochs", "1", "--share", "0.2", "--vary", "lr=0.001,0.0005",
                  "--seeds", "2", "--probe", "separation", "--probe-images", "50", *QUIET],
    }  # fmt: skip
    if weights and data:
        names = "accuracy,attention,kpca,class_space"
        commands["tiny"] = ["analyze", "vit_tiny_patch16_224", "--weights", weights, "--data", data, "--split", "val",
                            "--images", "24", "--only", names, "--set", "kpca.control=random", *QUIET]  # fmt: skip
    return commands


def carry_out(checkout: Path, commands: dict[str, list[str]], folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve() / "src"), "OMP_NUM_THREADS": "1"}
    for name, words in commands.items():
        print(f"{checkout}: {name} ...", flush=True)
        command = [sys.executable, "-m", "vitscope", *words, "--out", name]
        subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)


def differences(old: Path, new: Path) -> list[str]:
    """One line per table that differs or is missing, with the largest relative difference of its numbers."""
    found = {folder: {str(f.relative_to(folder)) for f in folder.rglob("tables/*.csv")} for folder in (old, new)}
    lines = [f"{name}: only in {folder.name}" for folder in found for name in sorted(found[folder])
             if not all(name in names for names in found.values())]  # fmt: skip
    for name in sorted(found[old] & found[new]):
        if (old / name).read_bytes() != (new / name).read_bytes():
            lines.append(f"{name}: {_difference(pd.read_csv(old / name), pd.read_csv(new / name))}")
    return lines


def _difference(a: pd.DataFrame, b: pd.DataFrame) -> str:
    if list(a.columns) != list(b.columns):
        return f"columns {sorted(set(a.columns) ^ set(b.columns)) or 'in another order'}"
    if len(a) != len(b):
        return f"{len(a)} and {len(b)} rows"
    worst = {}
    for column in a.columns:
        x, y = a[column], b[column]
        if x.dtype.kind in "fi" and y.dtype.kind in "fi":
            scale = np.maximum(np.abs(x), np.abs(y)).replace(0, 1)
            worst[column] = float((np.abs(x - y) / scale).max())
        elif not x.equals(y):
            worst[column] = np.inf
    return ", ".join(f"{column} {value:.1e}" for column, value in worst.items() if value) or "written differently"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--weights")
    parser.add_argument("--data")
    words = parser.parse_args()
    commands = runs(*(os.path.abspath(p) if p else None for p in (words.weights, words.data)))
    commands = {name: line for name, line in commands.items() if not words.only or name in words.only}
    with tempfile.TemporaryDirectory() as place:
        folders = [Path(place) / "old", Path(place) / "new"]
        for checkout, folder in zip((words.old, words.new), folders):
            folder.mkdir()
            carry_out(checkout, commands, folder)
        tables = len(list(folders[0].rglob("tables/*.csv")))
        lines = differences(*folders)
    print("\n".join(lines))
    print(f"{tables} tables, {len(lines)} differ")
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
