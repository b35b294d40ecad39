"""Pages that lie beside docs/, links that leave it, and a star in the nav for every page that fits."""

from __future__ import annotations

import posixpath
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

NEIGHBOURS = ("CONTRIBUTING.md", "CHANGELOG.md")


def root(config: MkDocsConfig) -> Path:
    return Path(config.config_file_path).parent


@event_priority(-100)  # when all other pages are there
def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name in NEIGHBOURS:
        text = (root(config) / name).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=re.sub(r"\]\(docs/", "](", text)))
    config.nav = expand(
        config.nav,
        sorted((file.src_uri for file in files.documentation_pages()), key=lambda uri: uri.removesuffix(".md")),
    )
    return files


def expand(entry: Any, pages: list[str]) -> Any:
    """The nav with the pages that a star stands for. A section without any is left out: there may be no notebooks."""
    if isinstance(entry, dict):
        sections = {title: expand(below, pages) for title, below in entry.items()}
        return {title: below for title, below in sections.items() if below}
    if isinstance(entry, list):
        found = [expand(one, pages) for one in entry]
        flat = [page for one in found for page in (one if isinstance(one, list) else [one])]
        return [one for one in flat if one]
    return [page for page in pages if fnmatch(page, entry)] if "*" in entry else entry


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """`../CHANGELOG.md` is a page of the site; a file of the sources is named only, since the site does not have it."""
    folder = posixpath.dirname(posixpath.join("docs", page.file.src_uri))
    if page.file.src_uri in NEIGHBOURS:  # they lie a floor higher than they seem to
        folder = "docs"

    def place(link: re.Match[str]) -> str:
        text, path, anchor = link.groups()
        target = posixpath.normpath(posixpath.join(folder, path))
        if target in NEIGHBOURS or re.fullmatch(r"notebooks/.*\.ipynb", target):
            there = posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or ".")
            return f"[{text}]({re.sub(r'ipynb$', 'md', there)}{anchor or ''})"
        inside = target.startswith("docs/") and not target.endswith(".py")
        return link[0] if inside and target != "docs/LICENSE" else text

    return re.sub(r"(?<!!)\[([^\]\n]+)\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)", place, markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """A page for wrong addresses is a server's, and its own addresses hold on a server alone."""
    for name in ("404.html", "sitemap.xml", "sitemap.xml.gz"):
        (Path(config.site_dir) / name).unlink(missing_ok=True)
