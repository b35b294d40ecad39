"""What runs on texts where nothing is named, and why the rest does not."""

from __future__ import annotations

import pytest

from vitscope.analyses.selection import choose_analyses, start_analyses
from vitscope.data import load_data
from vitscope.models import open_model


@pytest.fixture
def default_set():
    """All but attention, which has tests of its own on texts."""
    return [analysis for analysis in choose_analyses(None) if analysis.name != "attention"]


def test_a_language_model_is_foreseen_and_what_looks_for_classes_says_why_not(shared, default_set):
    from vitscope.tasks.language import Language

    model = open_model(str(shared / "weights" / "stories260K"))
    data, _ = Language().match(model, load_data("pydoc", images=2))
    running, remarks = start_analyses(default_set, model, data, explicit=False)
    assert [analysis.name for analysis in running] == ["perplexity", "vocabulary.identifiability"]
    assert len(remarks) == 2
    for name, remark in zip(("accuracy", "separation"), remarks):
        assert remark.startswith(f"Analysis {name!r} was left out: ")
        assert "class of each text, and pydoc has none" in remark


def test_pictures_are_spared_remarks_about_language(default_set):
    model = open_model("small", "random", depth=1)
    running, remarks = start_analyses(default_set, model, load_data("mnist5k", "test", images=40), explicit=False)
    assert {"accuracy"} <= {analysis.name for analysis in running}
    assert not any("language" in remark or "vocabulary" in remark for remark in remarks)
