"""The nulls of the memories against enumeration, and the table of memories against loops."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from vitscope.analyses.class_space.memory_analysis import Memories
from vitscope.analyses.class_space.memory_tests import drawn_classes, outcome_test
from vitscope.analyses.one_pass import measure


@pytest.fixture(scope="module")
def batches(model, tools):
    return [tools["make_batch"](model, 5, seed=s, first=5 * s) for s in range(3)]


@pytest.mark.parametrize("hits", [(3, 5, 1, 4), (0, 2, 3, 3), (5, 5, 0, 4), (2, 4, 2, 4)])
def test_right_against_wrong_is_the_permutation_test_over_all_shuffles(hits):
    right_hits, right, wrong_hits, wrong = hits
    agree = np.array([1] * (right_hits + wrong_hits) + [0] * (right + wrong - right_hits - wrong_hits))
    observed = right_hits / right - wrong_hits / wrong
    differences = []
    for chosen in itertools.combinations(range(right + wrong), right):
        among = np.isin(np.arange(right + wrong), chosen)
        differences.append(agree[among].mean() - agree[~among].mean())
    found = outcome_test(*hits)
    assert found.difference == pytest.approx(observed)
    assert found.p == pytest.approx(np.mean(np.array(differences) >= observed - 1e-9))
    assert found.p_published == pytest.approx(round(300 * np.mean(np.array(differences) > observed + 1e-9)) / 300)
    assert -1 <= found.low <= found.difference <= found.high <= 1


def test_a_drawn_class_belongs_to_the_image_and_is_another_than_its_label():
    labels = torch.arange(10).repeat(200)
    drawn = drawn_classes(range(2000), labels, 10, seed=3)
    assert torch.equal(drawn[7:9], drawn_classes([7, 8], labels[7:9], 10, seed=3))
    assert not (drawn == labels).any()
    assert torch.bincount(drawn, minlength=10).min() > 150  # 200 expected
    any_class = drawn_classes(range(2000), labels, 10, seed=3, other=False)
    assert 100 < int((any_class == labels).sum()) < 300  # one in ten
    assert not torch.equal(drawn, drawn_classes(range(2000), labels, 10, seed=4))
    assert drawn_classes([0], torch.tensor([0]), 1, seed=0).tolist() == [0]


def test_the_null_is_the_agreement_of_the_drawn_classes(model, tools, batches):
    analysis = Memories()
    measure(model, batches, [analysis])
    table = analysis.tables()["class_space_memories"].set_index(["block", "layer", "tokens"])
    swapped = [tools["make_batch"](model, 5, seed=s, first=5 * s) for s in range(3)]
    for batch in swapped:
        batch.labels = drawn_classes(batch.indices.tolist(), batch.labels, 10, seed=0)
    again = Memories()
    measure(model, swapped, [again])
    other = again.tables()["class_space_memories"].set_index(["block", "layer", "tokens"])
    for name in ("", "_low", "_high"):
        assert np.allclose(table[f"agreement_null{name}"], other[f"agreement{name}"])


def test_right_against_wrong_has_a_row_per_layer_and_none_where_all_are_wrong(model, tools, batches):
    analysis = Memories(variant="code")
    measure(model, batches, [analysis])
    tables = analysis.tables()
    outcomes = tables["class_space_memories_by_outcome"].set_index(["block", "layer", "outcome"])
    assert {"right", "wrong"} == set(outcomes.index.get_level_values("outcome"))
    table = tables["class_space_memories_right_wrong"]
    assert len(table) == 6
    for row in table.itertuples():
        right, wrong = (outcomes.loc[row.block, row.layer, o] for o in ("right", "wrong"))
        assert row.difference == pytest.approx(right["agreement"] - wrong["agreement"])
        assert (row.n_right, row.n_wrong) == (right["n_images"], wrong["n_images"])
        assert row.p <= row.p_holm <= 1
    batch = tools["make_batch"](model)
    batch.labels = (model(batch.images).argmax(1) + 1) % 10
    wrong_only = Memories()
    measure(model, [batch], [wrong_only])
    assert "class_space_memories_right_wrong" not in wrong_only.tables()


def test_every_memory_is_listed_with_its_class_on_request(model, batches):
    analysis = Memories(names=True)
    measure(model, batches[:1], [analysis])
    table = analysis.tables()["class_space_memory_classes"].set_index(["block", "layer", "memory"])
    assert len(table) == 3 * (32 + 128)
    module = model.module
    e = (module.head.weight * module.norm.weight).detach()
    e = e - e.mean(1, keepdim=True)
    for block, layer, memory in ((0, "attn", 3), (2, "mlp", 100)):
        owner = module.blocks[block]
        v = (owner.attn.proj if layer == "attn" else owner.mlp.fc2).weight.detach()[:, memory]
        row = table.loc[block, layer, memory]
        assert row["class"] == int((e @ v).argmax())
        assert row["class_name"] == str(row["class"])  # neither model nor data has names
        assert row["logit"] == pytest.approx(float((e @ v).max()), rel=1e-5)
        c = e[int(row["class"])]
        assert row["cosine"] == pytest.approx(float(c @ v / c.norm() / v.norm()), rel=1e-5)
    plain = Memories()
    measure(model, batches[:1], [plain])
    assert "class_space_memory_classes" not in plain.tables()
