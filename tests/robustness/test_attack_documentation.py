"""The example in docs/attacks.md works as it is printed, and the page knows every attack."""

import re

from vitscope.robustness import list_attacks


def test_the_printed_attack_passes_its_printed_test(repository):
    page = (repository / "docs" / "attacks.md").read_text()
    blocks = re.findall(r"```python\n(# (?:src|tests)/.*?)```", page, re.S)
    assert [b.splitlines()[0].split("/")[-1] for b in blocks] == ["brightness.py", "test_brightness.py"]
    exec(compile(blocks[0], "docs/attacks.md", "exec"), {"__name__": "brightness"})
    exec(compile(blocks[1], "docs/attacks.md", "exec"), test := {})
    test["test_every_pixel_moves_the_same_way"]()


def test_every_attack_has_its_row(repository):
    page = (repository / "docs" / "attacks.md").read_text()
    missing = [name for name in list_attacks() if f"\n| `{name}` |" not in page]
    assert not missing, (
        f"docs/attacks.md, section 'The attacks', has no row for {', '.join(missing)}. "
        f"Add: | `{missing[0]}` | norms | what it does | passes per image and epsilon | options |"
    )


def test_the_printed_row_of_the_printed_attack_fits_the_table(repository):
    page = (repository / "docs" / "attacks.md").read_text()
    (row,) = re.findall(r"^    (\| `brightness` \|.*)$", page.partition("## Adding an attack")[2], re.M)
    (head,) = re.findall(r"^\| name \|.*$", page, re.M)
    assert row.count("|") == head.count("|")
