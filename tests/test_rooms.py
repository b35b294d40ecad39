"""The rooms of the package stand in one order: one may use what is below it, never what is above."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parent.parent / "src" / "vitscope"


def room_of(module: str) -> str | None:
    """`vitscope.analyses.kpca.gamma` -> 'analyses'; a module beside the rooms, such as `errors`, is one by itself."""
    package, *rest = module.split(".")
    return rest[0] if package == "vitscope" and rest and not rest[0].startswith("_") else None


def modules_named(tree: ast.AST) -> Iterator[str]:
    """All that a file imports: at its top, inside of functions, or for types only, as lazy names are written."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "vitscope":
            yield from (f"vitscope.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where a name comes from"
            yield node.module or ""


@cache
def graph(sources: Path) -> dict[str, dict[str, str]]:
    """Room -> the rooms that it uses, each with a file that shows it."""
    uses: dict[str, dict[str, str]] = {}
    for file in sorted(sources.rglob("*.py")):
        place = file.relative_to(sources)
        room = place.parts[0].removesuffix(".py")
        if room.startswith("_"):  # the package itself offers names of all rooms
            continue
        mine = uses.setdefault(room, {})
        for module in modules_named(ast.parse(file.read_text(encoding="utf-8"))):
            used = room_of(module)
            if used not in (None, room):
                mine.setdefault(str(used), str(place))
    return uses


def circle(uses: dict[str, dict[str, str]]) -> str | None:
    try:
        TopologicalSorter({room: set(used) for room, used in uses.items()}).prepare()
    except CycleError as error:
        way = error.args[1][::-1]
        return ", ".join(f"{a} uses {b} ({uses[a][b]})" for a, b in pairwise(way))
    return None


def test_rooms_stand_in_one_order():
    assert circle(graph(SOURCES)) is None


@pytest.mark.parametrize(
    "line",
    [
        "from vitscope.beta import b",
        "import vitscope.beta.b",
        "from vitscope import beta",
        "def f():\n    from vitscope.beta.b import c",
        "if TYPE_CHECKING:\n    from vitscope.beta import b",
    ],
)
def test_a_circle_is_found_however_it_is_closed(tmp_path, line):
    for room, text in (("alpha", line), ("beta", "from vitscope.alpha import a")):
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text(text)
    assert "alpha uses beta" in str(circle(graph(tmp_path)))


def test_the_docs_draw_the_order():
    """docs/how-it-works.md lists the rooms from the ground up: none uses one that is listed after it."""
    page = (SOURCES.parent.parent / "docs" / "how-it-works.md").read_text()
    drawn = page.split("## Rooms", 1)[1].split("## ", 1)[0]
    names = [line.split()[0].removesuffix("/") for line in drawn.splitlines() if line.startswith("      ")]
    uses = graph(SOURCES)
    assert sorted(names) == sorted(uses)
    wrong = [(a, b) for a in uses for b in uses[a] if names.index(b) > names.index(a)]
    assert wrong == []
