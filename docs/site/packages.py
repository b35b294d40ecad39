"""The reference of the Python packages: a page for each, with every public name, from its docstring.

The packages load their names on first use, by a table in `__init__.py`. It is read here, not
executed, so that the site needs no PyTorch.
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
    """{package: (what its docstring says, its public names)} of all packages that have a table of names."""
    found = {}
    for file in sorted(source.rglob("__init__.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        names = [name for node in ast.walk(tree) for name in table(node)]
        if names:
            package = ".".join(file.parent.relative_to(source).parts)
            found[package] = (ast.get_docstring(tree) or "", sorted(names, key=str.lower))
    return found


def table(node: ast.AST) -> list[str]:
    """The names of `lazy(__name__, {"analyze": "engine", ...})`, or none."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "lazy":
        homes = node.args[1]
        assert isinstance(homes, ast.Dict)
        return [key.value for key in homes.keys if isinstance(key, ast.Constant)]
    return []
