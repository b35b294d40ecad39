"""Panels are written for pictures; the page says them in the words of the task that its runs were about."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vitscope.report.panel import Panel, Runs
from vitscope.tasks.words import PICTURES, Words

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def words_of(runs: Runs) -> Words:
    """Those of all runs; runs about different things are about pictures, as the panels have it."""
    found = {Words.of_config(run.config) for run in runs.values()}
    return found.pop() if len(found) == 1 else PICTURES


def in_words(panel: Panel, words: Words) -> Panel:
    """The panel with its sentences, and the texts in its figures, in other words."""
    if words == PICTURES:
        return panel
    for figure in panel.figures.values():
        _relabel(figure, words)
    return replace(
        panel,
        title=words.say(panel.title),
        alt={stem: words.say(text) for stem, text in panel.alt.items()},
        captions={stem: words.say(text) for stem, text in panel.captions.items()},
        reading=words.say(panel.reading),
        protocol=words.say(panel.protocol),
        findings=[replace(finding, text=words.say(finding.text)) for finding in panel.findings],
        card=panel.card and replace(panel.card, says=words.say(panel.card.says), name=words.say(panel.card.name)),
    )


def _relabel(figure: Figure, words: Words) -> None:
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        if (new := words.say(text.get_text())) != text.get_text():
            text.set_text(new)
