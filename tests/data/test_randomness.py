from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from vitscope.data.randomness import derive_seed, permutation, preserved_globals, sample_generator, seed_globals


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_seeds_of_neighbours_differ_and_fit_torch() -> None:
    seeds = [derive_seed(s, e, i) for s in range(5) for e in range(5) for i in range(200)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= s < 2**63 for s in seeds)
    assert derive_seed(1, 23) != derive_seed(12, 3)  # parts are kept apart


def test_a_sample_draws_the_same_whatever_was_drawn_before() -> None:
    first = torch.rand(4, generator=sample_generator(3, 2, 17))
    torch.rand(5)
    assert torch.equal(torch.rand(4, generator=sample_generator(3, 2, 17)), first)
    assert not torch.equal(torch.rand(4, generator=sample_generator(3, 2, 18)), first)
    assert not torch.equal(torch.rand(4, generator=sample_generator(3, 3, 17)), first)


def test_an_epoch_visits_every_sample_once_in_its_own_order() -> None:
    orders = [permutation(100, seed=1, epoch=e) for e in range(3)]
    assert all(sorted(o) == list(range(100)) for o in orders)
    assert orders[0] != orders[1] != orders[2]
    assert permutation(100, seed=1, epoch=0) == orders[0]
    assert permutation(100, seed=2, epoch=0) != orders[0]


def test_global_generators_are_a_function_of_the_seed_inside_and_untouched_outside() -> None:
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    with preserved_globals():
        seed_globals(5)
        first = draws()
        seed_globals(6)
        assert all(a != b for a, b in zip(draws(), first))
        seed_globals(5)
        assert draws() == first
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == states
    with pytest.raises(TypeError), preserved_globals():
        sum(draws(), start="not a number")  # type: ignore[call-overload]
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == states
