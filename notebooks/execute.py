"""Run the notebooks and hold what they print against what is stored: `make notebooks`, and `make notebooks WRITE=1`.

Every notebook runs in an empty folder of its own. It fails on an error, on anything written to stderr but
progress bars, and where a cell no longer shows the kinds of output that it showed. Trained weights differ in their last
digits from machine to machine, and what follows from them by more, so that a cell says what is to be the same:

    tag `same`   its text is the stored text, to the letter
    tag `near`   the same words, and each number within a quarter of the stored one (or 0.05)
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LARGEST = 600_000  # bytes
MINUTES = 10  # a cell that takes longer hangs
NUMBER = re.compile(r"(?<![\w.])[-−+]?\d[\d,]*(?:\.\d+)?(?:e[-+−]?\d+)?")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="beginnings of names, such as 1 or 5-rpc; all without any")
    parser.add_argument("--write", action="store_true", help="store the new outputs")
    asked = parser.parse_args()
    import matplotlib.font_manager  # noqa: F401  (it makes its list of fonts once, and would say so in a notebook)

    files = [f for f in sorted(HERE.glob("*.ipynb")) if not asked.names or f.name.startswith(tuple(asked.names))]
    wrong, started = 0, time.monotonic()
    for file in files:
        began = time.monotonic()
        problems = check(file, asked.write)
        wrong += bool(problems)
        print(f"{'FAILED' if problems else 'ok':6} {time.monotonic() - began:5.0f} s  {file.name}", flush=True)
        for problem in problems:
            print(f"       {problem}")
    print(f"{len(files)} notebooks, {wrong} failed, {time.monotonic() - started:.0f} s")
    return 1 if wrong or not files else 0


def check(file: Path, write: bool) -> list[str]:
    """Run one notebook -> what is wrong with it."""
    import nbformat
    from nbclient.exceptions import CellExecutionError, CellTimeoutError

    stored = nbformat.read(file, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        try:
            fresh = executed(stored, folder)
        except (CellExecutionError, CellTimeoutError) as error:
            return [re.sub(r"\x1b\[[\d;]*m", "", str(error))]
        problems = [p for place, cell in code_cells(fresh) for p in unwanted(cell, place, folder)]
    if write and not problems:
        nbformat.write(fresh, file)
    elif not write:
        both = zip(code_cells(stored), code_cells(fresh))
        problems += [p for (place, old), (_, new) in both for p in differences(old, new, place)]
    if file.stat().st_size > LARGEST:
        problems.append(f"it has {file.stat().st_size:,} bytes: more than {LARGEST:,}")
    return problems


def executed(notebook: Any, folder: str) -> Any:
    """A copy with new outputs, and nothing in it that differs between two runs for no reason."""
    import nbformat
    from nbclient import NotebookClient

    fresh = nbformat.from_dict(notebook)
    fresh.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    # tensors are small here: they gain nothing from more threads, and lose much where others want the cores
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    client = NotebookClient(
        fresh,
        timeout=60 * MINUTES,
        kernel_name="python3",
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": folder}},
    )
    client.execute()
    fresh.metadata = {"kernelspec": fresh.metadata["kernelspec"], "language_info": {"name": "python"}}
    for _, cell in code_cells(fresh):
        cell.metadata.pop("execution", None)
        cell.outputs = [output for output in cell.outputs if not is_progress(output)]
    return fresh


def is_progress(output: Any) -> bool:
    """Bars that were of interest while the cell ran."""
    lines = re.split(r"[\r\n]", output.text) if output.get("name") == "stderr" else ["no bar"]
    return all("%|" in line for line in lines if line.strip())


def code_cells(notebook: Any) -> Iterator[tuple[str, Any]]:
    """(what messages call it, cell)"""
    for number, cell in enumerate((c for c in notebook.cells if c.cell_type == "code"), 1):
        yield f"code cell {number} ({cell.source.splitlines()[-1][:60]})", cell


def unwanted(cell: Any, place: str, folder: str) -> Iterator[str]:
    """Warnings, and places of the machine that it ran on."""
    here = [folder, str(HERE.parent), str(Path.home()) + "/", sys.prefix]
    for output in cell.outputs:
        if output.get("name") == "stderr":
            yield f"{place} wrote to stderr: {output.text.strip()[:300]}"
        found = [path for path in here if path in str(output)]
        if found:
            yield f"{place} shows a place on this machine, {found[0]}"


def differences(old: Any, new: Any, place: str) -> Iterator[str]:
    """What differs that must not."""
    tags = old.metadata.get("tags", [])
    if kinds(old) != kinds(new):
        yield f"{place} showed {kinds(old) or 'nothing'}, and now {kinds(new) or 'nothing'}"
    elif "same" in tags and text_of(old) != text_of(new):
        yield f"{place} printed\n{text_of(old)}\n  and now\n{text_of(new)}"
    elif "near" in tags and not near(text_of(old), text_of(new)):
        yield f"{place} printed\n{text_of(old)}\n  and now, too far away,\n{text_of(new)}"


def kinds(cell: Any) -> list[str]:
    """['stdout', 'text/html']"""
    found = {k for o in cell.outputs for k in ([o.name] if o.output_type == "stream" else o.get("data", {}))}
    return sorted(found)


def text_of(cell: Any) -> str:
    texts = (o.text if o.output_type == "stream" else o.get("data", {}).get("text/plain", "") for o in cell.outputs)
    return "\n".join(texts)


def near(old: str, new: str, relative: float = 0.25, absolute: float = 0.05) -> bool:
    """The same words, and numbers that differ by no more than trained weights do."""
    if NUMBER.sub("#", old).split() != NUMBER.sub("#", new).split():
        return False
    before, now = ([float(n.replace(",", "").replace("−", "-")) for n in NUMBER.findall(text)] for text in (old, new))
    return all(abs(a - b) <= max(absolute, relative * abs(a)) for a, b in zip(before, now))


if __name__ == "__main__":
    sys.exit(main())
