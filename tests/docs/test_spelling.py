"""One English throughout, the British one: pages, docstrings, comments that are help, and help itself."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from blocks import REPOSITORY, pages

AMERICAN = {
    r"colors?|colored|coloring": "colour",
    r"behaviors?": "behaviour",
    r"neighbor\w*": "neighbour",
    r"favor(?:s|ed|ite)?": "favour",
    r"center(?:s|ed|ing)?": "centre",
    r"gray(?:scale)?": "grey",
    r"label(?:ed|ing)": "labelled",
    r"cancel(?:ed|ing)": "cancelled",
    r"catalogs?": "catalogue",
    r"dialogs?": "dialogue",
    r"analyz(?:e|es|ed|ing)": "analyse",
    r"(?:normal|standard|initial|optim|visual|summar|organ|recogn|minim|maxim|regular|quant|serial|general|real|util|"
    r"random|penal|special|emphas|categor|parallel|symmetr|factor|linear)iz(?:e|es|ed|ing|ation|ations|er|ers)": "-ise",
    r"learned": "learnt",
    r"spelled": "spelt",
    r"mold": "mould",
    r"fulfill": "fulfil",
}
WORDS = re.compile("|".join(rf"(?<![\w./=-])(?:{word})(?![\w=(:/-]|\.\w)" for word in AMERICAN), re.IGNORECASE)
NAMES = re.compile(r"Segmenter: .*|Parallelized|Microsoft.*|\*[A-Z][^*\n]+\*|\"[A-Z][^\"\n]{20,}\"")  # titles of papers


def prose(text: str) -> str:
    """A page without code, addresses and titles."""
    text = re.sub(r"```.*?```|<!--.*?-->", lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL)
    text = re.sub(r"^    .*$|^#+ analyze$", "", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|https?:\S+|--[\w-]+", " ", text)
    return NAMES.sub(" ", text)


def said(source: str) -> list[tuple[int, str]]:
    """(line, text) of the docstrings of a file, those below the fields of a dataclass included: they are the help."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found += [(node.lineno + i, line) for i, line in enumerate(node.value.value.splitlines())]
    return found


def american(lines: list[tuple[int, str]]) -> list[str]:
    return [f"{number}: {m[0]}" for number, line in lines for m in WORDS.finditer(line)]


def test_the_list_knows_both_spellings() -> None:
    assert american([(1, "The labeled colors are normalized and centered.")]) == [
        "1: labeled",
        "1: colors",
        "1: normalized",
        "1: centered",
    ]
    assert american([(1, "The labelled colours are normalised and centred; center(x), color=1, a.optimizer")]) == []


@pytest.mark.parametrize(
    "page", [*pages(), REPOSITORY / "CONTRIBUTING.md", REPOSITORY / "CHANGELOG.md"], ids=lambda page: page.name
)
def test_a_page_is_in_british_english(page: Path) -> None:
    assert american(list(enumerate(prose(page.read_text(encoding="utf-8")).splitlines(), 1))) == []


def test_docstrings_and_help_are_in_british_english() -> None:
    found = {}
    for file in sorted((REPOSITORY / "src").rglob("*.py")):
        lines = [(n, re.sub(r"`[^`]*`|--[\w-]+", " ", line)) for n, line in said(file.read_text(encoding="utf-8"))]
        if words := american([(n, NAMES.sub(" ", line)) for n, line in lines]):
            found[str(file.relative_to(REPOSITORY))] = words
    assert found == {}
