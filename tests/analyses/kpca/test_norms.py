"""Outlier rules of kpca.norms: every number of a row is one of the values that the rule keeps."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from vitscope.analyses import create_analysis, measure
from vitscope.analyses.kpca import order
from vitscope.analyses.kpca.norms import QUANTILES
from vitscope.analyses.kpca.reconstruction import squared_norms

# 170 values, as many as five images of the small model have tokens and heads: neither rule is in doubt about them
COUNTS = {1e-9: 3, 1.0: 80, 3.0: 78, 1e9: 9}
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
    for name, q in QUANTILES.items():
        np.testing.assert_allclose(table[name], np.quantile(kept, q))
    headline = analysis.summary()["median_phi"]
    assert headline.value == pytest.approx(np.median(kept))
    assert (f"outliers removed ({rule})" in headline.note) == (rule != "none")


def captured(model, images) -> dict[str, np.ndarray]:
    """Both squared norms and their quotient, each (blocks, B, H, N)."""
    with torch.no_grad():
        _, cache = model.run_with_cache(images, "blocks.*.attn.hook_[qkv]")
    blocks = range(model.layout.blocks)
    found = squared_norms(*(torch.stack([cache[f"blocks.{i}.attn.hook_{x}"] for i in blocks]) for x in "qkv"))
    phi, h = found["log_phi"].exp().numpy(), found["h"].numpy()
    return {"phi": phi, "h": h, "ratio": h / phi}


def test_above95_describes_what_the_95th_percentile_leaves_of_a_real_model(small_model, batches):
    model = small_model()
    values = captured(model, batches([5])[0].images)
    for row in measured(model, batches, "above95").tables()["kpca_norms"].itertuples():
        own = values[row.norm][row.block]
        kept = own[own <= np.percentile(own, 95)]
        assert row.kept == len(kept) / own.size
        assert row.mean == pytest.approx(kept.mean(), rel=order.BOUND)
        for name, q in QUANTILES.items():
            assert getattr(row, name) == pytest.approx(np.quantile(kept, q), rel=order.BOUND), name


@pytest.mark.parametrize("rule", ["none", "above95"])
def test_quartiles_of_real_vit_tiny_keys_are_exact_to_the_stated_bound(shared, rule):
    from vitscope.data import load_data
    from vitscope.models import open_model

    weights, folder = shared / "weights" / "vit_tiny_patch16_224.safetensors", shared / "data" / "imagenet"
    if not (weights.exists() and folder.exists()):
        pytest.skip("no ViT-Tiny weights or ImageNet images in the test material")
    model, data = open_model("vit_tiny_patch16_224", str(weights)), load_data(folder, "val", images=4)
    analysis = create_analysis("kpca.norms", outliers=rule)
    measure(model, data.batches(model.preprocess, 3), [analysis])
    (batch,) = data.batches(model.preprocess, 4)
    values = captured(model, batch.images)
    tables = analysis.tables()
    found = pd.concat([tables["kpca_norms"], tables["kpca_norms_ratio"].assign(norm="ratio")])
    off = []
    for row in found.itertuples():
        own = values[row.norm][row.block]
        kept = own if rule == "none" else own[own <= np.percentile(own, 95)]
        off += [abs(getattr(row, name) / np.quantile(kept, q) - 1) for name, q in QUANTILES.items()]
    assert len(off) == 12 * 3 * len(QUANTILES)
    assert max(off) < order.BOUND < 0.0047
    assert max(off) > 1e-9  # some bins hold several values: the bound is put to the test
