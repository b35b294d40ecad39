"""Options as people write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from vitscope.analyses import Analysis, create_analysis
from vitscope.analyses.options import EngineOptions
from vitscope.analyses.request import AnalyzeOptions
from vitscope.attention import parse_attention
from vitscope.errors import VitscopeError
from vitscope.options import check_fields, read_yaml
from vitscope.robustness.attacks import create_attack
from vitscope.robustness.attacks.pgd import PGD
from vitscope.runs import Run
from vitscope.training import TrainOptions

NAN, INFINITY = float("nan"), float("inf")

NOT_FINITE = {
    "an attack's option": lambda x: create_attack("pgd", momentum=x),
    "an attack made in Python": lambda x: PGD(momentum=x),
    "the step of an attack": lambda x: PGD(step=x),
    "a list in an analysis": lambda x: create_analysis("probes", train="digits", alphas=[1.0, x]),
    "the attacks of a study": lambda x: create_analysis("attack", attacks={"pgd": {"momentum": x}}),
    "a budget": lambda x: create_analysis("attack", eps=[x]),
    "an attention's option": lambda x: parse_attention({"name": "rpc", "lambda": x}),
    "a request's share": lambda x: AnalyzeOptions(share=x),
    "a request's set": lambda x: AnalyzeOptions(set={"pgd.momentum": x}),
    "a request's model options": lambda x: AnalyzeOptions(model_options={"mlp_ratio": x}),
    "the engine": lambda x: EngineOptions(save_every=x),
    "a learning rate": lambda x: TrainOptions(lr=x),
    "a training's optimizer": lambda x: TrainOptions(optimizer_options={"betas": [0.9, x]}),
    "a training's probes": lambda x: TrainOptions(probe_set={"attention.x": x}),
}


@pytest.mark.parametrize("value", [NAN, INFINITY, -INFINITY], ids=str)
@pytest.mark.parametrize("where", NOT_FINITE)
def test_nan_and_infinity_are_no_value_of_any_option(where, value):
    with pytest.raises(VitscopeError, match=r"finite|lambda >= 0"):
        NOT_FINITE[where](value)


def test_what_a_run_is_made_from_is_finite_wherever_it_comes_from(tmp_path):
    with pytest.raises(VitscopeError, match=r"config\.analyses\.mine\.x=nan: expected a finite number"):
        Run.create(tmp_path / "run", {"analyses": {"mine": {"x": NAN}}}, kind="analyze")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("word", ["1e999999999", "1e-999999999", "nan", "inf"])
def test_a_budget_with_an_absurd_exponent_is_refused_at_once(word):
    with pytest.raises(VitscopeError, match="is not a number"):
        create_analysis("attack", eps=[word])


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("probes", {"alphas": 3}, r"alphas must be a list \(each a number\), not 3"),
        ("probes", {"alphas": [1, "x"]}, "alphas must be a list"),
        ("class_space.lens", {"images": {"a": 1}}, r"images must be a list \(each a whole number\) or nothing"),
        ("attack", {"eps": {}}, "eps must be a word or a number or a list"),
    ],
)
def test_lists_are_checked_with_what_they_hold(name, options, expected):
    with pytest.raises(VitscopeError, match=expected):
        create_analysis(name, **options)


@pytest.mark.parametrize("attacks", [None, 3, {"pgd": 3}])
def test_attacks_are_names_or_names_with_options(attacks):
    with pytest.raises(VitscopeError, match="expected names of attacks"):
        create_analysis("attack", attacks=attacks)


@pytest.mark.parametrize("where", [w for w in NOT_FINITE if "in Python" not in w and "budget" not in w])
def test_whole_numbers_that_no_machine_number_holds_are_refused(where):
    with pytest.raises(VitscopeError, match=r"64 bits|at least|above 0"):
        NOT_FINITE[where](-(2**63))


def test_one_word_may_stand_for_a_list_of_one():
    assert create_analysis("save", points="hook_embed").options()["points"] == ["hook_embed"]


YAML = {
    "[" * 1500: "nested deeper than 50",
    "[" * 60 + "]" * 60: "nested deeper than 50",
    "&a [*a]": "nested deeper than 50",
    "[1, {2: 3}]": "the key 2 is no word",
    "{on: 1}": "the key True is no word",
    "2020-99-99": "not valid YAML",
    "!!bool maybe": "not valid YAML",
    "!!timestamp soon": "not valid YAML",
    "!!python/object/apply:os.system ['true']": "not valid YAML",
    "a: [": "not valid YAML",
    "\x00": "not valid YAML",
    "9" * 5000: "not valid YAML",
    '{out: "a\\0b"}': "NUL character",
    f"[&a {['x'] * 50}, &b [{','.join(['*a'] * 50)}], &c [{','.join(['*b'] * 50)}]]": "more than 100,000 values",
}


@pytest.mark.parametrize("text", YAML, ids=lambda text: text[:12].replace("\x00", "NUL"))
def test_yaml_that_holds_no_options_is_refused(text):
    with pytest.raises(VitscopeError, match=YAML[text]) as caught:
        read_yaml(text, "mine.yaml")
    assert str(caught.value).startswith("mine.yaml")


@dataclass(frozen=True)
class Options:
    number: float = 1.0
    count: int | None = None
    words: tuple[str, ...] = ()
    which: Literal["first", "second"] = "first"
    inner: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)


def test_values_that_fit_are_kept_and_lists_become_tuples():
    assert Options(number=2, count=3, words=["a"], which="second") == Options(2, 3, ("a",), "second")


def test_a_choice_that_does_not_exist_suggests_the_nearest():
    with pytest.raises(VitscopeError, match=r"There is no which 'frist'\. Did you mean first\? Known: first, second"):
        Options(which="frist")


@pytest.mark.parametrize("values", [{"number": "1"}, {"count": 1.5}, {"count": True}, {"words": "a"}, {"inner": []}])
def test_a_value_of_another_type_is_refused(values):
    with pytest.raises(VitscopeError, match=f"{next(iter(values))}: expected"):
        Options(**values)


def test_an_analysis_of_ones_own_needs_no_annotations():
    class Mine(Analysis):
        def __init__(self, scale=1.0, size: bytes = b""):
            super().__init__()

    from vitscope.registry import check_types

    check_types({"scale": "anything", "size": 3}, Mine, "analysis", "mine")
    with pytest.raises(VitscopeError, match="scale=nan"):
        check_types({"scale": NAN}, Mine, "analysis", "mine")
