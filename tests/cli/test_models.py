from __future__ import annotations

import subprocess
import sys

from vitscope.cli import run
from vitscope.models import list_models


def test_every_supported_name_is_listed_once():
    command = [sys.executable, "-m", "vitscope", "models", "test_vit"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    header, *rows, count = result.stdout.splitlines()
    assert header.split()[:3] == ["name", "family", "input"]
    assert [row.split()[0] for row in rows] == [row.name for row in list_models("test_vit")]
    assert count.startswith(f"{len(rows)} models")


def test_a_model_without_class_space_says_why(capsys):
    assert run(["models", "test_vit3"]) == 0
    assert "no class space: it pools its tokens by attention" in capsys.readouterr().out


def test_refused_models_are_listed_with_the_reason_on_request(capsys):
    assert run(["models", "swin_tiny_patch4_window7_224", "--all"]) == 0
    assert "refused: " in capsys.readouterr().out


def test_a_filter_that_matches_only_refused_models_points_to_all(capsys):
    assert run(["models", "swin_tiny_patch4_window7_224"]) == 2
    assert "--all" in capsys.readouterr().err


def test_a_filter_that_matches_nothing_suggests_names(capsys):
    assert run(["models", "vit_tiny_patch61"]) == 2
    assert "Did you mean vit_tiny_patch16_" in capsys.readouterr().err
