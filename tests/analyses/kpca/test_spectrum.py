from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitscope.analyses import create_analysis, measure
from vitscope.analyses.kpca.keygram import KeyGram
from vitscope.analyses.kpca.spectrum import check_bound, published_statistics, spectrum_shape
from vitscope.errors import NumericalError


@pytest.mark.parametrize(("standardised", "key"), [(False, "eig_topD_raw"), (True, "eig_topD_standardized")])
def test_eigenvalues_are_those_of_the_published_program(golden, standardised, key):
    gram = KeyGram(golden["k"], standardised=standardised, variant="code")
    values = gram.eigenvalues[..., :16] * gram.log_scale.exp()[..., None]
    torch.testing.assert_close(values, golden[key], rtol=1e-8, atol=0)


def test_exact_and_published_eigenvalues_agree_on_short_keys(golden):
    gram = KeyGram(golden["k"])
    values = gram.eigenvalues[..., :16] * gram.log_scale.exp()[..., None]
    torch.testing.assert_close(values, golden["eig_topD_raw"], rtol=1e-8, atol=0)


@pytest.mark.parametrize("scale", [1, 10, 100])
def test_keys_of_any_length_have_a_spectrum_without_nan_within_its_bounds(heads, scale):
    gram = KeyGram(heads(n=50, d=16, scale=scale)[1])
    shape = spectrum_shape(gram.eigenvalues, 16)
    assert all(x.isfinite().all() for x in shape.values())
    trace = check_bound(gram.eigenvalues, gram.trace, gram.log_scale)
    assert ((trace >= 0) & (trace <= 50)).all()


def test_the_published_maximum_breaks_the_bound_of_197_tokens():
    values = torch.full((1, 197), 1.0, dtype=torch.float64)
    with pytest.raises(NumericalError, match="number of tokens, 197"):
        check_bound(values, torch.tensor([648.46]).double(), torch.zeros(1).double())


def test_a_bound_that_is_broken_is_named():
    values = torch.tensor([[2.0, 1.0]], dtype=torch.float64)
    with pytest.raises(NumericalError, match="trace of K~ exceeds"):
        check_bound(values, torch.tensor([2.5]).double(), torch.zeros(1).double() - 5)


def test_equal_eigenvalues_have_full_effective_rank_and_a_flat_share():
    shape = spectrum_shape(torch.ones(8, dtype=torch.float64), 2)
    assert float(shape["effective_rank"]) == pytest.approx(8)
    assert float(shape["participation"]) == pytest.approx(8)
    assert float(shape["top_share"]) == pytest.approx(0.25)


def test_one_eigenvalue_has_effective_rank_one():
    shape = spectrum_shape(torch.tensor([3.0, 0.0, 0.0], dtype=torch.float64), 1)
    assert {k: float(v) for k, v in shape.items()} == pytest.approx(
        {"effective_rank": 1, "participation": 1, "top_share": 1}
    )


@given(st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=30), st.floats(1e-3, 1e3))
@settings(deadline=None, max_examples=50)
def test_the_shape_of_a_spectrum_does_not_see_its_scale(values, factor):
    values = torch.tensor(sorted(values, reverse=True), dtype=torch.float64)
    a, b = spectrum_shape(values, 3), spectrum_shape(factor * values, 3)
    for key in a:
        torch.testing.assert_close(a[key], b[key])
    assert 1 - 1e-9 <= a["participation"] <= a["effective_rank"] * (1 + 1e-9) <= len(values) * (1 + 1e-6)


def test_published_statistics_are_numpys(heads):
    values = heads()[0].abs()
    found = published_statistics(values)
    for name in ("max", "min", "mean", "median"):
        np.testing.assert_allclose(found[name], getattr(np, name)(values.numpy(), axis=-1))


def test_the_tables_do_not_depend_on_how_many_blocks_are_decomposed_together(small_model, batches, monkeypatch):
    """All at once, each block by itself, or with the eigenvectors that another analysis wants."""

    def tables(bytes_that_wait: int, *company: str) -> dict[str, pd.DataFrame]:
        monkeypatch.setattr("vitscope.analyses.kpca.spectrum.WAITING", bytes_that_wait)
        analyses = [create_analysis(name) for name in ("kpca.spectrum", *company)]
        measure(small_model(), batches([3, 2]), analyses)
        found = analyses[0].tables()
        for table in found.values():  # sums of squares are what rounds; their root magnifies it where nothing varies
            spread = [column for column in table if column.endswith("std")]
            table[spread] = table[spread] ** 2
        return found

    together = tables(2**30)
    for other in (tables(0), tables(2**30, "kpca.values")):
        for name, table in together.items():
            pd.testing.assert_frame_equal(table, other[name], rtol=1e-9, atol=1e-12)
