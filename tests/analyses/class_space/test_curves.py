from __future__ import annotations

import numpy as np
import pytest
import torch

from vitscope.analyses.class_space.curves import area, curve_hits, kept_counts, most_relevant, published_area
from vitscope.errors import VitscopeError


def test_counts_have_both_ends():
    assert kept_counts(16, 4) == [0, 4, 8, 12, 16]
    assert kept_counts(16, None) == list(range(17))
    assert kept_counts(49, 20)[0] == 0
    assert kept_counts(49, 20)[-1] == 49
    with pytest.raises(VitscopeError, match="at least one"):
        kept_counts(16, 0)


def test_area_is_the_trapezoid_and_the_published_one_its_sum():
    counts, accuracy = list(range(17)), np.linspace(0, 0.8, 17).tolist()
    assert area(accuracy, counts) == pytest.approx(np.trapezoid(accuracy, np.array(counts) / 16))
    assert area([0.3] * 5, [0, 1, 5, 9, 16]) == pytest.approx(0.3)
    assert published_area(accuracy, counts) == pytest.approx(sum(accuracy[1:16]) / (16 * accuracy[15]))
    assert published_area([0.5] * 17, counts) == pytest.approx(15 / 16)  # it cannot reach 1
    assert published_area([0.0] * 17, counts) == 0  # nothing right: defined all the same
    with pytest.raises(VitscopeError, match="every number"):
        published_area([0.1, 0.2, 0.3], [0, 8, 16])


@pytest.mark.parametrize("options", [{}, {"class_token": False, "global_pool": "avg"}, {"reg_tokens": 2}])
@pytest.mark.parametrize("direction", ["negative", "positive"])
def test_curve_equals_running_the_model_on_the_kept_tokens_one_by_one(tools, options, direction):
    model = tools["build"](**options)
    batch = tools["make_batch"](model)
    with torch.no_grad():
        batch.labels = model(batch.images).argmax(1)  # right with all tokens
    relevance = torch.rand(6, 16, generator=torch.Generator().manual_seed(0))
    order, counts = most_relevant(relevance, direction), [0, 3, 9, 16]
    hits = curve_hits(model, batch.images, batch.labels, order, counts)
    torch.testing.assert_close(hits, curve_hits(model, batch.images, batch.labels, order, counts, drop=False))
    m, p = model.module, model.layout.prefix_tokens
    for i in range(6):
        ranked = sorted(range(16), key=lambda t: (-1 if direction == "negative" else 1) * float(relevance[i, t]))
        for s, n in enumerate(counts):
            if n == 0 and options.get("global_pool"):
                assert hits[s, i] == 1 / 10
                continue
            keep = [*range(p), *(p + t for t in sorted(ranked[:n]))]
            with torch.no_grad():
                x = m.norm_pre(m._pos_embed(m.patch_embed(batch.images[i : i + 1])))[:, keep]
                for block in m.blocks:
                    x = block(x)
                predicted = int(m.forward_head(m.norm(x)).argmax())
            assert hits[s, i] == float(predicted == int(batch.labels[i]))
    assert (hits[-1] == 1).all()


def test_a_constant_map_keeps_the_same_tokens_in_both_directions():
    order = most_relevant(torch.zeros(1, 16), "negative")
    torch.testing.assert_close(order, most_relevant(torch.zeros(1, 16), "positive"))
