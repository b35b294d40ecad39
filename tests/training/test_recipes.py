from __future__ import annotations

import pytest

from vitscope.errors import VitscopeError
from vitscope.training import RECIPES, list_recipes, recipe_options


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_makes_options_and_says_what_it_costs_and_reaches(name: str) -> None:
    recipe_options(name)
    assert RECIPES[name].cost
    assert RECIPES[name].reaches


def test_a_recipe_can_be_changed_in_one_detail_of_its_model() -> None:
    plain, changed = recipe_options("quick"), recipe_options("quick", model_options={"depth": 2}, epochs=1)
    assert changed.model_options == {**plain.model_options, "depth": 2}
    assert changed.epochs == 1
    assert changed.lr == plain.lr


def test_an_unknown_recipe_suggests_the_nearest() -> None:
    with pytest.raises(VitscopeError, match="Did you mean quick"):
        recipe_options("quik")
