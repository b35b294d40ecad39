"""Outlier rules of kpca.norms: every number of a row is one of the values that the rule keeps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitscope.analyses import create_analysis, measure
from vitscope.analyses.kpca.reconstruction import squared_norms

# 170 values, as many as five images of the small model have tokens and heads: neither rule is in doubt about them
COUNTS = {1e-9: 3, 1.0: 80, 3.0: 82, 1e9: 5}
KEPT = {"none": list(COUNTS), "above95": [1e-9, 1.0, 3.0], "iqr": [1.0, 3.0]}


def measured(model, batches, rule: str):
    analysis = create_analysis("kpca.norms", outliers=rule)
    measure(model, batches([3, 2]), [analysis])
    return analysis


@pytest.mark.parametrize("rule", KEPT)
def test_mean_quantiles_and_headline_are_those_of_what_the_rule_keeps(small_model, batches, monkeypatch, rule):
    values = torch.tensor([value for value, count in COUNTS.items() for _ in range(count)], dtype=torch.float64)
    shuffled = values[torch.randperm(len(values), generator=torch.Generator().manual_seed(0))].reshape(5, 2, 17)
    parts = iter([part for part in shuffled.split([3, 2]) for _ in range(2)])  # of each batch, the same for both blocks

    def prescribed(*_):
        part = next(parts)
        return {"log_phi": part.log(), "h": part}

    monkeypatch.setattr("vitscope.analyses.kpca.norms.shared_norms", prescribed)
    analysis = measured(small_model(), batches, rule)
    kept = np.array([value for value in KEPT[rule] for _ in range(COUNTS[value])])
    table = analysis.tables()["kpca_norms"]
    np.testing.assert_allclose(table["mean"], kept.mean(), rtol=1e-12)
    np.testing.assert_allclose(table["kept"], len(kept) / 170)
    for name, q in (("q05", 0.05), ("median", 0.5), ("q95", 0.95)):
        np.testing.assert_allclose(table[name], np.quantile(kept, q, method="inverted_cdf"), rtol=0.05)
    headline = analysis.summary()["median_phi"]
    assert headline.value == pytest.approx(np.quantile(kept, 0.5, method="inverted_cdf"), rel=0.05)
    assert (f"outliers removed ({rule})" in headline.note) == (rule != "none")


def test_above95_averages_the_smallest_values_of_a_real_model(small_model, batches):
    model = small_model()
    with torch.no_grad():
        _, cache = model.run_with_cache(batches([5])[0].images, "blocks.*.attn.hook_[qkv]")
    found = squared_norms(*(torch.stack([cache[f"blocks.{i}.attn.hook_{x}"] for i in range(2)]) for x in "qkv"))
    values = {"phi": found["log_phi"].exp(), "h": found["h"]}  # each (blocks, B, H, N)
    for row in measured(model, batches, "above95").tables()["kpca_norms"].itertuples():
        own = np.sort(values[row.norm][row.block].flatten().numpy())
        smallest = own[: round(row.kept * row.tokens)]
        assert len(smallest) < len(own)
        assert row.mean == pytest.approx(smallest.mean(), rel=1e-6)
