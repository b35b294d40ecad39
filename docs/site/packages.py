"""The reference of the Python packages: a page for each, with every public name, from its docstring.

The packages load their names on first use, and import them for type checkers only. These lines are read here,
not executed, so that the site needs no PyTorch.
"""

from __future__ import annotations

import ast
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    source = Path(config.config_file_path).parent / "src"
    for package, (about, names) in packages(source).items():
        entries = "".join(f"\n::: {package}.{name}\n" for name in names)
        files.append(File.generated(config, f"api/{package}.md", content=f"# {package}\n\n{about}\n{entries}"))
    return files


def packages(source: Path) -> dict[str, tuple[str, list[str]]]:
    """{package: (what its docstring says, its public names)} of all packages whose names are loaded on first use."""
    found = {}
    for file in sorted(source.rglob("__init__.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        names = [alias.name for line in typed(tree) if isinstance(line, ast.ImportFrom) for alias in line.names]
        if names:
            package = ".".join(file.parent.relative_to(source).parts)
            found[package] = (ast.get_docstring(tree) or "", sorted(names, key=str.lower))
    return found


def typed(tree: ast.Module) -> list[ast.stmt]:
    """What stands under `if TYPE_CHECKING:`."""
    blocks = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    return [line for block in blocks for line in block.body]
