"""From names to analyses."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from vitscope.analyses import Analysis, create_analysis, list_analyses, register_analysis
from vitscope.analyses.results import write_results
from vitscope.analyses.selection import choose_analyses, start_analyses
from vitscope.data.dataset import ImageData
from vitscope.data.source import Source, as_source
from vitscope.errors import VitscopeError
from vitscope.runs import Run
from vitscope.tasks import Classification


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


def test_an_analysis_that_breaks_the_contract_is_told_what_to_write(tmp_path):
    class WithoutSuper(Analysis):
        name = "test_contract"

        def __init__(self):
            self.sums = {}

    class PlainNumber(Analysis):
        name = "test_contract"

        def start(self, model):
            self.sums = {"n": 0}

    class BareTable(Analysis):
        name = "test_contract"

        def tables(self):
            return pd.DataFrame({"n": [1]})

    class BareFigure(Analysis):
        name = "test_contract"

        def summary(self):
            return {"n": 1.0}

    model, data = head(), data_of(["a"], [0])
    with pytest.raises(VitscopeError, match=r"WithoutSuper lacks .*: begin its __init__ with super\(\).__init__\(\)"):
        start_analyses([WithoutSuper()], model, data, explicit=True)
    with pytest.raises(VitscopeError, match=r"PlainNumber.sums\['n'\] is of type int; expected a tensor"):
        start_analyses([PlainNumber()], model, data, explicit=True)
    with Run.create(tmp_path / "run", {}, kind="analyze") as run:
        with pytest.raises(VitscopeError, match=r"BareTable.tables\(\) returns no tables by name; expected"):
            write_results(run, [BareTable()], [])
        with pytest.raises(VitscopeError, match=r"BareFigure.summary\(\)\['n'\] is of type float; expected Headline"):
            write_results(run, [BareFigure()], [])


def data_of(classes, labels, ids=None):
    source = as_source(Source(np.zeros((len(labels), 4, 4), np.uint8), labels, classes, class_ids=ids), "data")
    return ImageData(source, range(len(labels)), name="data", split="test")


def head(classes=None, num_classes=3):
    return SimpleNamespace(classes=classes, num_classes=num_classes)


def test_labels_follow_the_names_of_the_classes_that_the_model_learned():
    data = data_of(["0", "1", "10", "2"], [0, 1, 2, 3, -1, 2])
    matched, remark = Classification().match(head(["0", "1", "2", "10"], 4), data)
    assert matched.classes == ["0", "1", "2", "10"]
    assert matched.labels == [0, 1, 3, 2, -1, 3]
    assert [matched[i].label for i in range(6)] == matched.labels
    assert matched.subset([5, 3]).labels == [3, 2]
    assert matched.fingerprint() == data.fingerprint()  # the very same pictures
    assert "in the order 0, 1, 2, ..., the data has them in the order 0, 1, 10, ...: labels follow" in remark
    assert data.labels == [0, 1, 2, 3, -1, 2]


@pytest.mark.parametrize("learned", [["a", "b", "x"], ["a", "b", "b"], ["c", "b", "b"]])
def test_classes_of_other_names_are_compared_by_number_and_that_is_remarked(learned):
    data = data_of(["a", "b", "c"], [0, 1, 2])
    matched, remark = Classification().match(head(learned), data)
    assert matched is data
    assert "compared by number" in remark


def test_the_same_names_in_the_same_order_need_no_remark():
    data = data_of(["a", "b", "c"], [0, 1, 2])
    assert Classification().match(head(["a", "b", "c"]), data) == (data, None)
    assert Classification().match(head(), data) == (data, None)


def test_a_thousand_classes_without_wordnet_names_are_told_in_which_order_they_are_taken():
    from vitscope.data import synsets

    numbers = data_of([str(i) for i in range(1, 1001)], [0])
    _, remark = Classification().match(head(num_classes=1000), numbers)
    assert "1, 2, 3, ..., 1000 are taken for the classes 0, 1, 2, ..., 999 of the head" in remark
    assert Classification().match(head(num_classes=10), numbers)[1] is None
    imagenet = data_of(synsets.class_names(), [0], synsets.wordnet_ids())
    assert Classification().match(head(num_classes=1000), imagenet)[1] is None
