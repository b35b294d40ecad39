from __future__ import annotations

import dataclasses
import io
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import vitscope
from vitscope.cli import run
from vitscope.training import RECIPES, train


def test_the_demo_with_texts_walks_the_whole_way(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="texts need tokenizers: pip install 'vitscope[text]'")
    quick = RECIPES["quick-text"]
    sizes = {**quick.options["model_options"], "depth": 2, "embed_dim": 32}
    options = {**quick.options, "share": 0.1, "vocabulary": "characters", "model_options": sizes, "context": 32}
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as printed:
        patch.setitem(RECIPES, "quick-text", dataclasses.replace(quick, options=options))
        # one after the other: `demo` starts processes in tests/test_demonstration.py
        patch.setattr("vitscope.training.side_by_side.train_side_by_side", lambda several: [*map(train, several)])
        patch.setattr("vitscope.demonstration.WINDOWS", {"unit": "windows", "context": 32, "windows": 24})
        assert run(["demo", "--text", "--epochs", "1", "--no-progress", "--out", str(tmp_path)]) == 0
    learned = vitscope.Run.open(tmp_path / "text-softmax").table("training")["test_perplexity"].iloc[-1]
    assert f"perplexity of {learned:.1f}" in printed.getvalue()  # as the page's first card has it
    page = (tmp_path / "report.html").read_text()
    assert all(name in page for name in ("text-softmax", "text-rpc", "swapped words or typos", "next token known"))
    swapped = vitscope.Run.open(tmp_path / "swapped" / "text-rpc").table("perplexity")
    assert {"clean", "swap", "typos"} <= set(swapped["condition"])
