"""The last resort: what nobody foresaw becomes one line for the user and a file for whoever mends it."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from vitscope.runs.environment import PACKAGES, package_version

DEBUG = "VITSCOPE_DEBUG"  # set to anything, it lets errors through with their traceback


def explain_crash(error: Exception, arguments: Sequence[str]) -> str:
    """Write the traceback to a file -> the line that says what happened and where the file is."""
    what = " ".join(f"{type(error).__name__}: {error}".split())[:300].rstrip(": ")
    file = _write(_report(error, arguments))
    where = f"the traceback is in {file}" if file else f"{DEBUG}=1 shows the traceback, which could not be written"
    if out_of_memory(error):
        return (
            f"There is not enough memory ({what}). A smaller --batch-size, smaller pictures or a smaller model need "
            f"less; {where}."
        )
    if isinstance(error, RecursionError):
        return f"Something in the input is nested too deep ({what}); {where}."
    if own := _own_line(error):
        return f"vitscope stopped in {own}: {what}; {where}. If nothing is wrong there, please report it."
    return f"vitscope stopped at something unforeseen: {what}; {where}. Please report it."


def _own_line(error: Exception) -> str:
    """The last line of a user's own code, in a file below the current folder, that the error came through; or ''."""
    others = [Path(__file__).parents[1], Path(sys.prefix), Path(sys.base_prefix)]
    try:
        here = Path.cwd()
    except OSError:  # the folder is gone
        return ""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_relative_to(here) and not any(map(file.is_relative_to, others)):
            return f"{file.relative_to(here)}, line {frame.lineno}"
    return ""


def out_of_memory(error: Exception) -> bool:
    """Python and NumPy have an error of their own, PyTorch has one on GPUs and says it in words on CPUs."""
    said = ("can't allocate memory", "not enough memory", "out of memory")
    torch_says = isinstance(error, RuntimeError) and any(words in str(error) for words in said)
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or torch_says


def _report(error: Exception, arguments: Sequence[str]) -> str:
    versions = [f"{name} {version}" for name in PACKAGES if (version := package_version(name))]
    return "\n".join(
        [
            f"time      {time.strftime('%Y-%m-%d %H:%M:%S %z')}",
            f"command   {shlex.join(['vitscope', *arguments])}",
            f"process   {os.environ.get('RANK', '0')} of {os.environ.get('WORLD_SIZE', '1')}",
            f"system    Python {platform.python_version()}, {platform.platform()}",
            f"versions  {', '.join(versions)}",
            "",
            "".join(traceback.format_exception(error)),
        ]
    )


def _write(text: str) -> Path | None:
    """In the current folder, or where that cannot be written in the system's folder for temporary files."""
    process = os.environ.get("RANK", "0")
    name = f"vitscope-crash-{time.strftime('%Y%m%d-%H%M%S')}{f'-process{process}' if process != '0' else ''}.txt"
    for folder in (Path(), Path(tempfile.gettempdir())):
        try:
            file = folder.absolute() / name
            file.write_text(text, encoding="utf-8", errors="backslashreplace")
        except OSError:
            continue
        return file
    return None
