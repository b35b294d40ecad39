"""The examples in the README are run, not only read."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[list[str]]:
    """The `vitscope ...` lines of the README, continuation lines joined, comments dropped."""
    text = README.replace("\\\n", " ")
    return [
        shlex.split(line, comments=True)[1:] for line in re.findall(r"^    (vitscope .*)$", text, flags=re.MULTILINE)
    ]


def test_the_python_examples_run(shared, tmp_path, monkeypatch):
    import vitscope

    monkeypatch.chdir(tmp_path)
    weights, pictures = shared / "weights" / "vit_tiny_patch16_224.safetensors", shared / "data" / "imagenet"
    first, second = EXAMPLES
    for name, real in {"weights.safetensors": weights, "path/to/imagenet": pictures, "images=1000": "images=8"}.items():
        assert name in first
        first = first.replace(name, str(real))
    assert len([line for line in first.splitlines() if line.strip()]) == 5
    names: dict = {}
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(first, names)
    assert "block" in out.getvalue()
    assert (tmp_path / "runs" / "tiny" / "report.html").exists()

    model = names["model"]
    names["images"] = next(vitscope.load_data(pictures, images=2).batches(model.preprocess)).images
    exec(second, names)
    assert names["cache"]["blocks.3.attn.hook_pattern"].shape == (2, 3, 197, 197)
    assert not names["changed"].equal(names["logits"])


@pytest.mark.parametrize("words", commands(), ids=lambda words: words[0])
def test_the_commands_are_understood(words, monkeypatch):
    """Every option exists: parsing goes through to the library call, which is where this test ends."""

    class Reached(BaseException):  # no error, which the command line would explain
        pass

    def stop(*_, **__):
        raise Reached

    from vitscope.cli import run

    monkeypatch.setattr("vitscope.analyses.request.Request.run", stop)
    monkeypatch.setattr("vitscope.report.page.draw_report", stop)
    monkeypatch.setattr("vitscope.papers.table.paper_table", stop)
    monkeypatch.setattr("vitscope.models.iter_models", stop)
    with pytest.raises(Reached):
        run(words)
