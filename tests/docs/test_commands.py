"""Every command on a page is understood to its last option; those marked `<!-- run -->` are carried out."""

from __future__ import annotations

import re
from typing import Any

import pytest
from blocks import Command, commands, pages, python_blocks
from desk import spread

from vitscope.analyses.request import Request
from vitscope.cli import run

EVERY = [command for page in pages() for command in commands(page)]
PLACEHOLDER = re.compile(r"\.\.\.|\[[A-Z-]|OPTIONS")  # a pattern of commands, no command
STOPS = (
    "vitscope.training.train",
    "vitscope.sweeps.sweep",
    "vitscope.sweeps.command.make_executor",
    "vitscope.report.page.draw_report",
    "vitscope.repeat.rerun",
    "vitscope.papers.table.paper_table",
    "vitscope.papers.citing.bibliography",
    "vitscope.models.iter_models",
    "vitscope.models.open_model",
    "vitscope.explorer.options.ExploreOptions.check",
    "vitscope.demonstration.demo",
    "vitscope.demonstration.demo_text",
    "vitscope.demonstration.demo_segmentation",
)
UNSEEN = (  # there is nothing at path/to/imagenet, and no SLURM
    "vitscope.sweeps.command.choose_cluster",
    "vitscope.analyses.request.check_place",
    "vitscope.data.registry.check_place",
    "vitscope.models.naming.check_weights_file",
    "vitscope.models.naming.check_model_name",
    "vitscope.cli.cost.check_model_name",
    "vitscope.cli.generate.check_model_name",
)


class Reached(BaseException):
    """The command was understood; what follows would need models and data."""


def name(command: Command) -> str:
    return f"{command.page}:{command.line}"


def test_there_are_commands_to_check() -> None:
    assert len(EVERY) > 100
    assert len([command for command in EVERY if command.run]) >= 5


@pytest.mark.parametrize("command", [c for c in EVERY if not PLACEHOLDER.search(c.text)], ids=name)
def test_a_printed_command_is_understood_to_the_last_option(command, monkeypatch, tmp_path):
    def stop(self: Any = None, *_: Any, **__: Any) -> None:
        if isinstance(self, Request) and not any(re.search(r"[a-z]:[A-Za-z]", word) for word in command.words):
            self.analyses()  # names and options of analyses, but for those in files of the reader
        raise Reached

    (tmp_path / "mine.yaml").write_text("models: [vit_tiny_patch16_224]\ndata: path/to/imagenet\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Request, "run", stop)
    for place in STOPS:
        monkeypatch.setattr(place, stop)
    for check in UNSEEN:
        monkeypatch.setattr(check, lambda *_, **__: None)
    if "config.yaml" in command.text or "recipe mine" in command.text:
        pytest.skip("it wants the file of a run")
    with pytest.raises(Reached):
        assert run(command.words) == 0


@pytest.mark.parametrize("page", [page for page in pages() if any(c.run for c in commands(page))], ids=lambda p: p.stem)
def test_the_commands_that_are_marked_run(page, desk_folder, tmp_path, monkeypatch, capsys):
    """With the files that the page prints in the current folder, and a small model of digits."""
    monkeypatch.chdir(desk_folder)
    spread(desk_folder, tmp_path)["have"]("runs/digits")
    for block in python_blocks(page):
        if block.file and "/" not in block.file:
            (tmp_path / block.file).write_text(block.code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for command in commands(page):
        if command.run:
            quiet = [] if command.words[0] == "report" else ["--no-progress"]
            assert run([*command.words, *quiet]) == 0, command.text + capsys.readouterr().err
