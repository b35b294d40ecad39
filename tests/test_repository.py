"""What must hold for the repository as a whole, whatever is added to it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def tracked_files() -> list[Path]:
    """Every file that is, or is about to be, under version control."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        listing = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git clone: there is no list of the project's files")
    return [path for path in (REPOSITORY / line for line in listing.splitlines()) if path.is_file()]


def text_lines() -> list[tuple[str, int, str]]:
    """(file, line number, line) of all text files but this one, which has to name what it forbids."""
    lines = []
    for path in tracked_files():
        if path == Path(__file__).resolve():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        name = str(path.relative_to(REPOSITORY))
        lines += [(name, number, line) for number, line in enumerate(text.splitlines(), 1)]
    return lines


FORBIDDEN = {
    "a path of somebody's machine": r"(?<![\w.~-])/(?:work|home|root|Users|mnt|scratch)/\w",
    "a package index": r"index-url|find-links|/simple\b|trusted-host|files\.pythonhosted",
    "a host on a private network": r"https?://(?:10\.|192\.168\.|172\.(?:1[6-9]|2\d|3[01])\.|[\w.-]+\.(?:internal|local|lan|corp)\b)",
    "credentials in an address": r"https?://[^/\s:@]+:[^/\s:@]+@",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_names(what):
    pattern = re.compile(FORBIDDEN[what])
    found = [f"{name}:{number}: {line.strip()[:120]}" for name, number, line in text_lines() if pattern.search(line)]
    assert found == []


def test_constraints_pin_every_package_to_one_version_and_name_no_place():
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    assert lines
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)] == []


def test_constraints_cover_every_requirement_of_the_project():
    import tomllib

    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    wanted = [want for group in groups for want in group]
    names = {re.match(r"[A-Za-z0-9._-]+", want)[0].lower().replace("_", "-") for want in wanted} - {"vitscope"}
    pinned = {line.partition("==")[0].lower() for line in (REPOSITORY / "constraints.txt").read_text().splitlines()}
    assert names - {name.replace("_", "-") for name in pinned} == set()


def test_every_core_dependency_is_justified():
    import tomllib

    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    page = (REPOSITORY / "docs" / "dependencies.md").read_text()
    names = [re.match(r"[A-Za-z0-9._-]+", want)[0] for want in project["dependencies"]]
    assert [name for name in names if f"`{name}`" not in page] == []


def heading_anchors(page: Path) -> set[str]:
    """Anchors as code hosts make them: lower case, punctuation dropped, spaces to dashes."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+\s+(.*?)\s*$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def pages() -> list[Path]:
    return sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])


def links(page: Path) -> list[str]:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'<img[^>]+src="([^"]+)"', text)


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page):
    dead = []
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        exists = target.exists() and REPOSITORY in target.parents
        if not exists or (anchor and target.suffix == ".md" and anchor not in heading_anchors(target)):
            dead.append(link)
    assert dead == []


def test_every_docs_page_is_linked_from_the_index():
    docs = REPOSITORY / "docs"
    linked = {(docs / link.partition("#")[0]).resolve() for link in links(docs / "index.md")}
    assert [page.name for page in docs.rglob("*.md") if page.name != "index.md" and page not in linked] == []


def test_public_names_exist():
    import vitscope

    missing = []
    for name in vitscope.__all__:
        try:
            getattr(vitscope, name)
        except (AttributeError, ImportError) as error:
            missing.append(f"{name}: {error}")
    assert missing == []
    assert dir(vitscope) == sorted(vitscope.__all__)


def test_a_public_name_stays_what_it_was_when_its_module_is_imported():
    """`vitscope.x` must not turn from a function into a module of the same name."""
    import vitscope

    modules = {path.stem for path in (REPOSITORY / "src" / "vitscope").iterdir()}
    assert modules & set(vitscope.__all__) == set()


def test_every_command_is_documented():
    from vitscope.cli import COMMANDS

    page = REPOSITORY / "docs" / "command-line.md"
    assert [command for command in COMMANDS if command not in heading_anchors(page)] == []


def test_every_file_of_the_package_is_installed():
    import tomllib

    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    source = REPOSITORY / "src" / "vitscope"
    installed = {path for pattern in settings["vitscope"] for path in source.glob(pattern)}
    wanted = {path for path in tracked_files() if source in path.parents and path.suffix != ".py"}
    assert wanted
    assert wanted - installed == set()


def test_no_module_is_a_drawer_for_odds_and_ends():
    drawers = {"utils", "util", "helpers", "helper", "misc", "common"}
    assert [str(path) for path in tracked_files() if path.suffix == ".py" and path.stem in drawers] == []


def test_every_package_has_an_init():
    source = REPOSITORY / "src" / "vitscope"
    folders = {path.parent for path in source.rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []
