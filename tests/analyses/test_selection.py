"""From names to analyses."""

import pytest

from vitscope.analyses import Analysis, create_analysis, list_analyses, register_analysis
from vitscope.analyses.selection import choose_analyses
from vitscope.errors import VitscopeError


def test_the_default_set_leaves_out_what_must_be_asked_for():
    names = {a.name for a in choose_analyses(None)}
    assert {"accuracy", "attention"} <= names
    assert "save" not in names
    assert "save" in list_analyses()


def test_points_to_save_add_the_save_analysis():
    chosen = choose_analyses(["accuracy"], save=["hook_embed"])
    assert [a.name for a in chosen] == ["accuracy", "save"]
    assert chosen[1].options()["points"] == ["hook_embed"]


def test_names_options_and_objects_lead_to_fresh_analyses():
    mine = create_analysis("save", points=["hook_embed"], dtype="float16")
    mine.sums = {"used": None}
    by_object, by_options = choose_analyses([mine])[0], choose_analyses({"save": mine.options()})[0]
    assert by_object.options() == by_options.options() == mine.options()
    assert by_object is not mine
    assert by_object.sums == {}


def test_an_analysis_from_elsewhere_is_named_by_its_module(tmp_path, monkeypatch):
    (tmp_path / "my_lens.py").write_text("from vitscope import Analysis\nclass Mine(Analysis):\n    pass\nother = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert choose_analyses(["my_lens:Mine"])[0].name == "my_lens:Mine"
    with pytest.raises(VitscopeError, match="not an analysis"):
        choose_analyses(["my_lens:other"])
    with pytest.raises(VitscopeError, match="cannot be imported"):
        choose_analyses(["my_lens:Absent"])
    with pytest.raises(VitscopeError, match="cannot be imported"):
        choose_analyses(["no_such_module:Mine"])


def test_what_has_no_name_or_asks_for_nothing_is_refused():
    class Nameless(Analysis):
        pass

    with pytest.raises(VitscopeError, match="@register_analysis"):
        choose_analyses([Nameless()])
    with pytest.raises(VitscopeError, match="No analysis is asked for"):
        choose_analyses([])


def test_options_are_what_init_takes_and_repr_shows_them():
    @register_analysis("test_options")
    class WithOptions(Analysis):
        def __init__(self, depth: int = 3, name_of_it: str = "x") -> None:
            super().__init__()
            self.depth, self.name_of_it = depth, name_of_it

    analysis = create_analysis("test_options", depth=5)
    assert analysis.options() == {"depth": 5, "name_of_it": "x"}
    assert repr(analysis) == "WithOptions(depth=5, name_of_it='x')"
    with pytest.raises(VitscopeError, match="It takes depth, name_of_it"):
        create_analysis("test_options", deep=5)
