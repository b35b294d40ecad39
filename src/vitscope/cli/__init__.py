"""The command line: one file per command, no logic. A command is imported when it is called, so `--help` is quick."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module

from vitscope.errors import FirstProcessError, VitscopeError, suggest
from vitscope.outside import TRUST, only_named

COMMANDS = {
    "demo": "train two small ViTs on 5,000 digits, look inside, attack them, write a report",
    "analyze": "look inside one or more models in one pass over the data and write a report",
    "lens": "where a ViT knows the class: every token read by the model's own head",
    "causes": "which parts of a model make its answer: split it, switch them off, exchange them",
    "attack": "how easily models break: accuracy against the budget of an attacker",
    "evaluate": "how models break: out-of-distribution sets, corruptions, calibration",
    "explore": "open a model in the browser: point at a token, change it, attack it",
    "report": "draw the report of one or more runs again, or a table for a paper, without model or data",
    "cite": "print the BibTeX of the methods that runs used",
    "rerun": "do a run again from the configuration that it saved",
    "train": "train a ViT or a language model, with analyses along the way",
    "generate": "let a language model go on with a text",
    "sweep": "train with varied options and several seeds, here or on SLURM, and compare",
    "models": "list the models that can be opened and what each can do",
    "cost": "what each attention costs in a model: parameters, FLOPs, time, memory",
}
RESUMABLE = ("demo", "analyze", "lens", "causes", "attack", "evaluate", "rerun", "train", "sweep")

EXAMPLES = """\
  vitscope demo
  vitscope analyze vit_tiny_patch16_224 --data path/to/imagenet --split val --out runs/tiny
  vitscope report runs/tiny runs/small
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script `vitscope`: exits with 0, with 2 for bad input, 130 after Ctrl-C, 1 after a crash."""
    warnings.formatwarning = lambda message, *_, **__: f"Warning: {message}\n"  # users need no file and line
    sys.exit(run(sys.argv[1:] if arguments is None else list(arguments)))


def run(arguments: list[str]) -> int:
    """Carry out one command line and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name may hold what cannot be shown
    try:
        with only_named(arguments, trust=TRUST in arguments):
            code = _dispatch(arguments)
        sys.stdout.flush()
        return code
    except FirstProcessError:
        return 2
    except VitscopeError as error:
        _say(str(error))
        return 2
    except KeyboardInterrupt as stop:
        hint = " The same command again goes on from here." if set(arguments[:1]) & set(RESUMABLE) else ""
        _say(f"\n{str(stop) or f'Stopped.{hint}'}")  # the engine's own message knows more
        return 130
    except BrokenPipeError:
        # `vitscope models | head`: the reader has gone. Python flushes stdout once more at exit, so point it nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        from vitscope.cli.crash import DEBUG, explain_crash

        if os.environ.get(DEBUG):
            raise
        if isinstance(error, OSError) and error.filename is not None and error.strerror:
            _say(f"Cannot use {error.filename}: {error.strerror}.")  # a name too long, no permission: not our mistake
            return 2
        _say(explain_crash(error, arguments))
        return 1


def _say(text: str) -> None:
    """A line on stderr. Under torchrun all processes speak at once: those after the first say who they are."""
    rank = os.environ.get("RANK", "0")
    print(text if rank == "0" else f"[process {rank}] {text.lstrip()}", file=sys.stderr)


def _dispatch(arguments: list[str]) -> int:
    command, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if command in ("-h", "--help", "help"):
        print(usage(), end="")
        return 0
    if command in ("-V", "--version"):
        from vitscope import __version__

        print(f"vitscope {__version__}")
        return 0
    if command not in COMMANDS:
        raise VitscopeError(
            f"vitscope has no command {command!r}.{suggest(command, [*COMMANDS, '--help', '--version'])} "
            f"Known: {', '.join(COMMANDS)}. `vitscope --help` explains them."
        )
    import_module(f"vitscope.cli.{command}").main(rest)
    return 0


def usage() -> str:
    width = max(map(len, COMMANDS))
    commands = "".join(f"  {name:<{width}}  {text}\n" for name, text in COMMANDS.items())
    return (
        "usage: vitscope COMMAND [OPTIONS]\n\n"
        "vitscope looks inside transformers.\n\n"
        f"commands:\n{commands}\n"
        f"examples:\n{EXAMPLES}\n"
        "`vitscope COMMAND --help` shows a command's options; `vitscope --version` the version.\n"
    )
