"""docs/from-the-studies.md: every command that it prints exists and takes the options that it is given."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from vitscope.analyses.request import Request
from vitscope.cli import run

PAGE = Path(__file__).resolve().parent.parent / "docs" / "from-the-studies.md"
SCRIPTS = (
    "Reconstruction/main_train.py", "eigenvalues.py", "norms.py", "gamma.py", "value_vectors.py",
    "nlp_value_vectors.py", "nlp_norms.py", "Robust/main_train.py", "Scaled_Attention/main_train.py",
    "Robust/eval_OOD.py", "Attack/main.py", "extractor.py", "perturbation/attn_perturbation.py",
    "perturbation/tokens_perturbation.py", "memories.py", "linear_probing/prober.py", "main.py",
)  # fmt: skip


def commands() -> list[str]:
    """Lines that begin with vitscope or torchrun in indented blocks, continued after a backslash."""
    text = re.sub(r"\\\n\s+", " ", PAGE.read_text())
    return [line.strip() for line in text.splitlines() if re.match(r"    (vitscope|torchrun) ", line)]


class Reached(BaseException):
    """The command was understood; what follows would need models and data."""


@pytest.mark.parametrize("command", commands())
def test_a_printed_command_is_understood_to_the_last_option(command, monkeypatch):
    words = shlex.split(command)
    words = words[words.index("vitscope") + 1 :]

    def stop(self, *_, **__):
        if isinstance(self, Request):
            self.analyses()  # names and options of analyses
        raise Reached

    monkeypatch.setattr(Request, "run", stop)
    monkeypatch.setattr("vitscope.training.train", stop)
    monkeypatch.setattr("vitscope.sweeps.sweep", stop)
    for check in ("data.registry.check_place", "models.naming.check_weights_file", "models.naming.check_model_name"):
        monkeypatch.setattr(f"vitscope.{check}", lambda *_: None)  # there is nothing at path/to/imagenet
    with pytest.raises(Reached):
        run(words)


def test_every_script_of_the_studies_has_its_place():
    text = PAGE.read_text()
    assert [script for script in SCRIPTS if f"`{script}`" not in text] == []


def test_every_script_has_its_row_and_no_cell_is_empty():
    table = PAGE.read_text().split("## Figure by figure")[1]
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    heading, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    assert heading == ["script", "figure", "there", "here", "how"]
    assert [row for row in rows if len(row) != 5 or not all(row)] == []
    assert [script for script in SCRIPTS if not any(Path(script).name in row[0] for row in rows)] == []
    known = ("equal", "different", "left out", "`--", "the same", "both", "in pixels")
    assert [row[4] for row in rows if not row[4].startswith(known)] == []
