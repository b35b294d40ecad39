"""The page's JavaScript: ES modules, put into one script, since a page from a disk may load no other file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources

SHARED = ("draw.js", "maps.js", "maps.css")  # the explorer's page loads these same files
EXPORT = re.compile(r"^export (?=(?:const|class) (\w+))", re.MULTILINE)
IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./(\w+)\.js";$', re.MULTILINE)


def read(name: str) -> str:
    return (resources.files("vitscope.report") / name).read_text("utf-8")


def in_one_script(modules: Sequence[str]) -> str:
    """Modules by name, each behind those that it imports -> one script: each becomes a function of its own names."""
    parts = []
    for name in modules:
        text = read(f"{name}.js")
        body = IMPORT.sub(r"const \1 = from_\2;", EXPORT.sub("", text))
        exports = ", ".join(EXPORT.findall(text))
        parts.append(f"const from_{name} = (() => {{\n{body}return {{ {exports} }};\n}})();\n")
    return f'"use strict";\n(() => {{\n{"".join(parts)}}})();\n'
