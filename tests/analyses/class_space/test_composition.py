from __future__ import annotations

import pytest
import torch

from vitscope.analyses.class_space.composition import Composition, exclusive_shares, published_shares
from vitscope.analyses.one_pass import measure


def brute_force(model, batches, tools):
    """Per block and kind of token, a list of (attention matches, MLP matches, previous matches), token by token."""
    twin = tools["doubled"](model)
    found: dict = {}
    with torch.no_grad():
        for batch in batches:
            _, cache = twin.run_with_cache(batch.images.double(), ["blocks.*.hook_*"])
            for block in range(3):
                names = ("resid_post", "attn_out", "mlp_out", "resid_pre")
                tops = [twin.to_class_space(cache[f"blocks.{block}.hook_{n}"]).argmax(-1) for n in names]
                for b in range(len(batch)):
                    for n in range(model.layout.tokens):
                        after, *sources = (int(t[b, n]) for t in tops)
                        kind = "class" if n == 0 else "image"
                        found.setdefault((block, kind), []).append(tuple(s == after for s in sources))
    return found


@pytest.fixture(scope="module")
def batches(model, tools):
    return [tools["make_batch"](model, 5, seed=s) for s in range(3)]


def test_exclusive_shares_equal_brute_force_and_sum_to_one_hundred(model, tools, batches):
    analysis = Composition()
    measure(model, batches, [analysis])
    table = analysis.tables()["class_space_composition"].set_index(["block", "tokens", "source"])["share"]
    for (block, kind), matches in brute_force(model, batches, tools).items():
        n = len(matches)
        expected = {
            "attention": sum(m == (True, False, False) for m in matches) / n,
            "mlp": sum(m == (False, True, False) for m in matches) / n,
            "previous": sum(m == (False, False, True) for m in matches) / n,
            "several": sum(sum(m) > 1 for m in matches) / n,
            "none": sum(sum(m) == 0 for m in matches) / n,
        }
        for source, share in expected.items():
            assert table[block, kind, source] == pytest.approx(100 * share)
    assert table.groupby(["block", "tokens"]).sum().to_numpy() == pytest.approx(100)


def test_code_variant_gives_the_published_figures(model, tools, batches):
    analysis = Composition(variant="code")
    measure(model, batches, [analysis])
    table = analysis.tables()["class_space_composition"].set_index(["block", "tokens", "source"])["share"]
    for (block, kind), matches in brute_force(model, batches, tools).items():
        n = len(matches)
        assert table[block, kind, "attention"] == pytest.approx(100 * sum(m[0] for m in matches) / n)
        assert table[block, kind, "mlp"] == pytest.approx(100 * sum(m[1] for m in matches) / n)
        assert table[block, kind, "previous"] == pytest.approx(100 * sum(m[2] for m in matches) / n)
        neither = sum(not m[0] and not m[2] for m in matches) / n  # the MLP is never asked
        assert table[block, kind, "composition"] == pytest.approx(100 * neither)


def test_the_eight_match_patterns_give_both_sets_of_shares():
    counts = torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8])  # code 0..7
    exact = exclusive_shares(counts)
    assert exact == pytest.approx({k: v / 36 * 100 for k, v in zip(exact, (2, 3, 5, 4 + 6 + 7 + 8, 1))})
    assert sum(published_shares(counts).values()) > 100


def test_analyses_share_one_projection_per_point(model, batches, monkeypatch):
    from vitscope.analyses.class_space.identifiability import Identifiability
    from vitscope.analyses.class_space.memory_analysis import Memories
    from vitscope.analyses.class_space.projection import Projector

    calls = []
    read = Projector.read_all
    monkeypatch.setattr(Projector, "read_all", lambda self, *a, **k: calls.append(k["where"]) or read(self, *a, **k))
    measure(model, batches[:1], [Identifiability(), Composition(), Memories()])
    points = [point for where in calls for point in where]
    assert len(points) == len(set(points)) == 3 * 3 + 1  # three points per block, and the embedding
    assert len(calls) == 3 + 1  # those of a block together
    assert not [key for key in vars(batches[0]) if key.startswith("_")]  # nothing stays on the batch
