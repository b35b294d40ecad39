"""The reference of the command line, from the parser itself: every command with its options, help and examples."""

from __future__ import annotations

import argparse
import re
import textwrap
import warnings
from html import escape
from importlib import import_module
from typing import Any
from unittest.mock import patch

import tyro
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from vitscope.cli import COMMANDS


class Asked(BaseException):
    """What a command handed to the parser."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for command in COMMANDS:
        files.append(File.generated(config, f"commands/{command}.md", content=as_page(command)))
    return files


def question(command: str) -> tuple[Any, dict[str, Any]]:
    """The options of a command and how they are parsed."""

    def ask(options: Any, **how: Any) -> None:
        raise Asked(options, how)

    try:
        with patch("vitscope.cli.parsing.tyro.cli", ask):
            import_module(f"vitscope.cli.{command}").main(["--help"])
    except Asked as asked:
        return asked.args
    raise RuntimeError(f"vitscope {command} has asked no parser.")


def parser(command: str) -> argparse.ArgumentParser:
    options, how = question(command)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of get_parser, in the tyro that constraints.txt pins
        return tyro.extras.get_parser(
            options, prog=how["prog"], description=how["description"], registry=how["registry"]
        )


def as_page(command: str) -> str:
    made = parser(command)
    about, _, examples = (made.description or "").partition("\n\nexamples:\n")
    entries = "\n".join(map(as_entry, made._actions))
    return (
        f"# vitscope {command}\n\n{about}\n\n```sh\n{textwrap.dedent(examples).rstrip()}\n```\n\n"
        f"[What the commands have in common](../command-line.md).\n\n## Options\n\n<dl>\n{entries}\n</dl>\n"
    )


def as_entry(action: argparse.Action) -> str:
    """One option: how it is typed, then what it does."""
    value = "" if action.nargs == 0 or not action.metavar else f" {action.metavar}"
    typed = ", ".join(action.option_strings) + value if action.option_strings else str(action.metavar or action.dest)
    anchor = action.option_strings[-1].lstrip("-") if action.option_strings else action.dest
    if action.option_strings[1:] and action.option_strings[0].startswith("--"):  # --x, --no-x
        anchor = action.option_strings[0].lstrip("-")
    text = str(action.help or "").replace(" (default: )", "")
    says = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
    return f'<dt id="{anchor}"><code>{escape(typed)}</code></dt>\n<dd>{says}</dd>'
