"""Labels in another order than the head's: every study that counts right answers asks about it."""

import pytest

from vitscope import analyze, attack, build_report, evaluate
from vitscope.data import load_data
from vitscope.report.provenance import QUESTION

LOOK = {
    "analyze": lambda model, data, out: analyze(model, data, ["accuracy"], out, report=False, progress=False),
    "attack": lambda model, data, out: attack(model, data, ["noise"], "1/255", out=out, report=False, progress=False),
    "evaluate": lambda model, data, out: evaluate(
        model, data, out, corrupt="contrast", severities=[1], report=False, progress=False
    ),
}


@pytest.mark.parametrize("study", LOOK)
def test_a_trained_model_on_labels_of_another_order_is_remarked_in_the_run_and_on_the_page(model, tmp_path, study):
    model.source["weights"] = "digits.safetensors"
    data = load_data("mnist5k", "test", images=300, masks=False)
    shifted = data.ordered_as([str((d + 1) % 10) for d in range(10)])
    wrong = LOOK[study](model, shifted, tmp_path / "wrong")
    assert [QUESTION in warning for warning in wrong.warnings] == [True]
    page = build_report(wrong).read_text()
    assert page.index(QUESTION) < page.index('id="key-figures"')  # among the notices at the top
    right = LOOK[study](model, data, tmp_path / "right")
    assert right.warnings == []
    assert QUESTION not in build_report(right).read_text()
