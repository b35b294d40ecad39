"""Maps and memories for another class than the label."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitscope.analyses.class_space.importance import MemoryImportance
from vitscope.analyses.class_space.relevance import Place, relevance
from vitscope.analyses.class_space.relevance_study import Relevance
from vitscope.analyses.class_space.targets import find_class
from vitscope.analyses.one_pass import measure
from vitscope.errors import VitscopeError


def test_a_class_is_found_by_number_name_and_synonym():
    names = ["tabby, tabby cat", "tiger", "crane", "crane"]
    assert find_class("label", 4, names) is None
    assert find_class(3, 4) == 3
    assert find_class("tabby cat", 4, None, names) == 0
    with pytest.raises(VitscopeError, match=r"2 classes: give one of their numbers, \[2, 3\]"):
        find_class("crane", 4, names)
    with pytest.raises(VitscopeError, match="Did you mean tiger"):
        find_class("tigre", 4, names)
    with pytest.raises(VitscopeError, match="classes 0 to 3"):
        find_class(4, 4, names)


@pytest.mark.parametrize("target", [7, "prediction"])
def test_maps_are_of_the_block_the_head_and_the_class_asked_for(model, tools, target):
    batch = tools["make_batch"](model, 3)
    analysis = Relevance(methods=["class_gradients"], steps=2, block=1, attention_head=2, target=target)
    measure(model, [batch], [analysis])
    maps = analysis.rows["maps_relevance"][0]
    end = "class 7" if target == 7 else "for prediction"
    assert set(maps["map"]) == {f"relevance: class_gradients (block 1, head 2, {end})"}
    assert set(maps["block"]) == {1}
    classes = model(batch.images).argmax(1) if target == "prediction" else torch.full((3,), 7)
    expected = relevance(model, batch.images, classes, "class_gradients", Place(1, 2))
    expected = expected / expected.abs().amax(1, keepdim=True)
    np.testing.assert_allclose(maps["value"].to_numpy().reshape(3, 16), expected, rtol=1e-4, atol=1e-6)


def test_methods_made_of_all_blocks_are_left_out_of_one_block_and_refused_by_name(model, tools):
    analysis = Relevance(block=1, steps=2)
    measure(model, [tools["make_batch"](model, 2)], [analysis])
    chosen = analysis.tables()["relevance"]["method"].tolist()
    assert chosen == ["class_gradients", "class_gradients_code", "attention", "random"]
    with pytest.raises(VitscopeError, match="rollout is made of all blocks"):
        Relevance(methods=["rollout"], block=1)
    with pytest.raises(VitscopeError, match="attention_head"):
        Relevance(head=1)


def explicit_gradients(model, batch, block, layer, objective):
    """Autograd to the inputs of the layer's last linear map, written out; (images, memories) of the class token."""
    m, b = model.module, model.module.blocks[block]
    points = [f"blocks.{block}.attn.hook_z", f"blocks.{block}.mlp.hook_post"]
    with torch.no_grad():
        _, cache = model.run_with_cache(batch.images.double(), points)
    z, post = (cache[p] for p in points)
    leaf = (z.transpose(1, 2).flatten(2) if layer == "attn" else post)[:, 0].clone().requires_grad_()
    out = (b.attn.proj if layer == "attn" else b.mlp.fc2)(leaf)
    logits = m.head(m.norm(out))
    value = {"logit": logits, "probability": logits.softmax(1), "cross_entropy": logits.log_softmax(1)}[objective]
    (gradient,) = torch.autograd.grad(value.gather(1, batch.labels[:, None]).sum(), leaf)
    return gradient, gradient * leaf.detach()


@pytest.mark.parametrize("objective", ["logit", "probability", "cross_entropy"])
def test_importance_is_the_gradient_with_respect_to_the_coefficients(model, tools, objective):
    batch = tools["make_batch"](model, 5)
    analysis = MemoryImportance(objective=objective, top=0)
    measure(model, [batch], [analysis])
    table = analysis.tables()["class_space_memory_importance"].set_index(["block", "layer"]).sort_index()
    for block, layer in ((0, "mlp"), (2, "attn")):
        found = table.loc[(block, layer)].sort_values("memory")
        gradient, contribution = explicit_gradients(tools["doubled"](model), batch, block, layer, objective)
        np.testing.assert_allclose(found["gradient"], gradient.mean(0), rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(found["contribution"], contribution.mean(0), rtol=1e-3, atol=1e-5)
        spread = contribution.std(0, unbiased=True) / 5**0.5
        width = found["contribution_high"] - found["contribution_low"]
        np.testing.assert_allclose(width / 2 / 1.959964, spread, rtol=1e-2, atol=1e-5)


def test_importance_lists_the_memories_with_the_largest_contribution_and_merges(model, tools):
    batches = [tools["make_batch"](model, 4, seed=s, first=4 * s) for s in range(2)]
    whole, parts = MemoryImportance(top=3), [MemoryImportance(top=3) for _ in range(2)]
    measure(model, batches, [whole])
    for part, batch in zip(parts, batches):
        measure(model, [batch], [part])
    parts[0].merge(parts[1])
    tables = [a.tables()["class_space_memory_importance"] for a in (whole, parts[0])]
    assert len(tables[0]) == 3 * 2 * 3
    np.testing.assert_allclose(tables[0]["contribution"], tables[1]["contribution"])
    assert (tables[0].groupby(["block", "layer"])["contribution"].diff().dropna() <= 0).all()
    for wrong in ({"target": "prediction"}, {"objective": "logits"}, {"top": -1}, {"head": "mean"}):
        with pytest.raises(VitscopeError):
            MemoryImportance(**wrong)


def test_pooled_and_distilled_models_have_important_memories(tools):
    for name, options in (
        ("vit_tiny_patch16_224", {"class_token": False, "global_pool": "avg"}),
        ("deit_tiny_distilled_patch16_224", {}),
    ):
        model = tools["build"](name, **options)
        analysis = MemoryImportance(target=3)
        measure(model, [tools["make_batch"](model, 2)], [analysis])
        assert (analysis.tables()["class_space_memory_importance"]["contribution"].abs() > 0).any()
