from __future__ import annotations

import pytest
import torch

from vitscope.analyses.class_space.ranks import check_labels, identifiability, true_rank
from vitscope.errors import DataError, NumericalError


def sorted_rank(logits: list[float], label: int) -> float:
    """By sorting: the mean of the places that the true class' logit occupies, 0-based."""
    ordered = sorted(logits, reverse=True)
    places = [i for i, value in enumerate(ordered) if value == logits[label]]
    return sum(places) / len(places)


def test_rank_equals_the_mean_place_in_the_sorted_logits_with_and_without_ties():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randint(0, 6, (200, 9), generator=generator).float()  # many ties
    labels = torch.randint(0, 9, (200,), generator=generator)
    expected = [sorted_rank(row.tolist(), int(label)) for row, label in zip(logits, labels)]
    assert true_rank(logits, labels).tolist() == expected


def test_code_variant_counts_only_larger_logits():
    logits = torch.tensor([[1.0, 1.0, 2.0, 1.0]])
    assert true_rank(logits, torch.tensor([0]), ties="none").item() == 1
    assert true_rank(logits, torch.tensor([0]), ties="half").item() == 2


def test_one_hot_is_one_worst_is_one_over_classes_and_nothing_is_chance():
    logits = torch.tensor([[0.0, 9.0, 1.0, 2.0], [3.0, -1.0, 4.0, 5.0], [0.0, 0.0, 0.0, 0.0]])
    r = identifiability(true_rank(logits, torch.tensor([1, 1, 1])), 4)
    assert r.tolist() == [1.0, 0.25, 1 - 1.5 / 4]


def test_random_order_has_mean_one_half_plus_one_over_two_classes():
    generator = torch.Generator().manual_seed(0)
    logits = torch.rand(20_000, 20, generator=generator)
    r = identifiability(true_rank(logits, torch.zeros(20_000, dtype=torch.int64)), 20)
    assert r.mean().item() == pytest.approx(0.5 + 1 / 40, abs=0.01)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_non_finite_logit_is_an_error_and_not_rank_zero(bad: float):
    logits = torch.zeros(2, 5)
    logits[1, 3] = bad
    with pytest.raises(NumericalError, match="NaN or infinite at here"):
        true_rank(logits, torch.tensor([3, 3]), where="here")


def test_labels_outside_the_head_are_refused_and_unknown_ones_pass():
    check_labels(torch.tensor([-1, 9]), 10)
    with pytest.raises(DataError, match=r"class number 10.*0 to 9"):
        check_labels(torch.tensor([3, 10]), 10)


@pytest.mark.parametrize("classes", [2, 5])
def test_chance_is_the_mean_over_all_orders_of_the_classes(classes):
    from itertools import permutations

    from vitscope.analyses.class_space.ranks import chance

    logits = torch.tensor(list(permutations(range(classes)))).double()
    r = identifiability(true_rank(logits, torch.zeros(len(logits), dtype=torch.int64)), classes)
    assert float(r.mean()) == pytest.approx(chance(classes))
