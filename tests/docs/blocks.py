"""The code of a page: blocks marked `python`, and commands in indented or `sh` blocks.

What stands in a comment above a block is for the tests, and no reader sees it:

    <!-- not run: it needs published weights -->     the block is read, not executed
    <!-- first: have("runs/tiny") -->                 Python that is executed before it
    <!-- run -->                                      the commands below are carried out, not only understood
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
COMMENT = r"(?:<!-- (?P<said>[^>]*?) -->\n\n?)?"


@dataclass(frozen=True)
class Block:
    """One block of Python."""

    page: str
    line: int
    code: str
    said: str = ""  # the comment above it

    @property
    def not_run(self) -> bool:
        return self.said.startswith("not run: ")

    @property
    def first(self) -> str:
        return self.said.removeprefix("first: ") if self.said.startswith("first: ") else ""

    @property
    def file(self) -> str:
        """The name in the first line, if the block is a file."""
        found = re.match(r"# ([\w./-]+\.py)\n", self.code)
        return found[1] if found else ""


@dataclass(frozen=True)
class Command:
    """One command line of a page."""

    page: str
    line: int
    text: str
    run: bool = False

    @property
    def words(self) -> list[str]:
        """What follows `vitscope`."""
        words = shlex.split(self.text, comments=True)
        return words[words.index("vitscope") + 1 :]


def pages() -> list[Path]:
    return sorted([REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")])


def python_blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = re.finditer(COMMENT + r"```python\n(?P<code>.*?)```", text, re.DOTALL)
    return [Block(_name(page), text[: b.start("code")].count("\n") + 1, b["code"], b["said"] or "") for b in found]


def commands(page: Path) -> list[Command]:
    """Lines that begin with vitscope or torchrun, continued after a backslash."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"```(?!sh\n|bash\n|\n)\w+\n.*?```", lambda b: "\n" * b[0].count("\n"), text, flags=re.DOTALL)
    found = []
    running = fenced = False
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if line.startswith("```"):
            fenced = not fenced
        if line.startswith("<!-- run -->"):
            running = True
        elif line and not fenced and not line.startswith(("    ", "```")):
            running = False
        if _command(line) and (fenced or line.startswith("    ")):
            whole, at = line.strip(), number
            while whole.endswith("\\"):
                whole, at = whole[:-1] + lines[at].strip(), at + 1
            found.append(Command(_name(page), number, whole, running))
    return found


def _command(line: str) -> bool:
    return bool(re.match(r"(?:    )?(?:vitscope|torchrun [^#]*-m vitscope) ", line))


def _name(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))
