"""A page of each notebook in notebooks/, made of the outputs that are committed: nothing is executed."""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

OUTPUTS: dict[str, list[str]] = {}  # page -> HTML that Markdown must not touch
PLACE = '<div class="output" data-number="{}"></div>'


def on_files(files: Files, config: MkDocsConfig) -> Files:
    OUTPUTS.clear()
    for path in sorted((Path(config.config_file_path).parent / "notebooks").glob("*.ipynb")):
        uri = f"notebooks/{path.stem}.md"
        text, OUTPUTS[uri] = as_page(json.loads(path.read_text(encoding="utf-8")))
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_content(html: str, page: Any, **_: Any) -> str:
    for number, output in enumerate(OUTPUTS.get(page.file.src_uri, [])):
        html = html.replace(PLACE.format(number), f'<div class="output">{output}</div>')
    return html


def as_page(notebook: dict[str, Any]) -> tuple[str, list[str]]:
    """Markdown with a place for each output, and the outputs."""
    parts: list[str] = []
    outputs: list[str] = []
    for cell in notebook["cells"]:
        text = joined(cell["source"])
        if cell["cell_type"] == "markdown":
            text = re.sub(r"\]\(\.\./docs/", "](../", text)
            parts.append(re.sub(r"\]\(([\w.-]+)\.ipynb", r"](\1.md", text))
        elif cell["cell_type"] == "code":
            parts.append(f"````python\n{text}\n````")
            shown = [html for output in cell["outputs"] if (html := as_html(output))]
            parts += [PLACE.format(len(outputs) + i) for i in range(len(shown))]
            outputs += shown
    return "\n\n".join(parts) + "\n", outputs


def as_html(output: dict[str, Any]) -> str:
    """The richest form that an output was saved in."""
    data = output.get("data", {})
    if "text/html" in data:
        return joined(data["text/html"])
    if "image/svg+xml" in data:
        return joined(data["image/svg+xml"])
    for kind in ("image/png", "image/jpeg", "image/gif"):
        if kind in data:
            return f'<img alt="What the cell draws" src="data:{kind};base64,{joined(data[kind]).strip()}">'
    if output.get("name") == "stderr":  # progress bars
        return ""
    text = joined(output.get("text", data.get("text/plain", "")))
    return f"<pre><code>{escape(text)}</code></pre>" if text.strip() else ""


def joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)
