"""Memories against loops in float64."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from vitscope.analyses import tables_of
from vitscope.analyses.class_space.memories import (
    agreement_test,
    class_directions,
    class_value_agreement,
    coefficients,
    published_test,
    value_vectors,
)
from vitscope.analyses.class_space.memory_analysis import Memories
from vitscope.analyses.one_pass import measure
from vitscope.errors import VitscopeError


@pytest.fixture(scope="module")
def batches(model, tools):
    return [tools["make_batch"](model, 5, seed=s) for s in range(3)]


def oracle(model, batches, tools, code: bool):
    """{(block, layer): (agree, composed)}, each (images, tokens), by loops over tokens."""
    twin = tools["doubled"](model)
    module = twin.module
    found = {}
    with torch.no_grad():
        for block in range(3):
            b = module.blocks[block]
            for layer, weight in (("attn", b.attn.proj.weight), ("mlp", b.mlp.fc2.weight)):
                e = module.head.weight
                if not code:  # the final LayerNorm: gain, and no mean
                    e = e * module.norm.weight
                    e = e - e.mean(1, keepdim=True)
                logits = (e @ weight).numpy()  # (classes, memories)
                agree, composed = [], []
                for batch in batches:
                    _, cache = twin.run_with_cache(batch.images.double(), [f"blocks.{block}.*"])
                    if layer == "attn":
                        coefs = cache[f"blocks.{block}.attn.hook_z"].transpose(1, 2).flatten(2)
                    else:
                        coefs = cache[f"blocks.{block}.mlp.hook_{'pre' if code else 'post'}"]
                    top = twin.to_class_space(cache[f"blocks.{block}.hook_{layer}_out"]).argmax(-1)
                    for i, label in enumerate(batch.labels.tolist()):
                        best = set(np.argsort(-logits[label])[:5].tolist())
                        active = [set(np.argsort(-row)[:5].tolist()) for row in coefs[i].numpy()]
                        agree.append([bool(a & best) for a in active])
                        classes = [{int(logits[:, m].argmax()) for m in a} for a in active]
                        composed.append([int(t) in c for t, c in zip(top[i], classes)])
                found[block, layer] = np.array(agree), np.array(composed)
    return found


@pytest.mark.parametrize("variant", ["exact", "code"])
def test_rates_equal_loops_over_tokens(model, tools, batches, variant):
    analysis = Memories(variant=variant)
    measure(model, batches, [analysis])
    table = analysis.tables()["class_space_memories"].set_index(["block", "layer", "tokens"])
    for (block, layer), (agree, composed) in oracle(model, batches, tools, variant == "code").items():
        for kind, tokens in (("class", slice(0, 1)), ("image", slice(1, None))):
            row = table.loc[block, layer, kind]
            assert row["agreement"] == pytest.approx(100 * agree[:, tokens].mean())
            assert row["composed"] == pytest.approx(100 * composed[:, tokens].mean())


def test_agreement_by_outcome_splits_the_class_tokens_rate(model, batches, tools):
    analysis = Memories()
    measure(model, batches, [analysis])
    table = analysis.tables()["class_space_memories_by_outcome"].set_index(["block", "layer", "outcome"])
    right = np.concatenate([(model(b.images).argmax(1) == b.labels).numpy() for b in batches])
    agree = oracle(model, batches, tools, False)[2, "mlp"][0][:, 0]
    assert table.loc[2, "mlp", "wrong"]["agreement"] == pytest.approx(100 * agree[~right].mean())
    assert table.loc[2, "mlp", "wrong"]["n_images"] == (~right).sum()


def test_none_right_leaves_out_the_right_row_and_keeps_the_interval(model, tools):
    batch = tools["make_batch"](model)
    batch.labels = (model(batch.images).argmax(1) + 1) % 10
    analysis = Memories(control="random")
    measure(model, [batch], [analysis])
    assert all(not table.isna().any().any() for table in tables_of(analysis).values())
    table = tables_of(analysis)["class_space_memories_by_outcome"]
    assert set(table["outcome"]) == {"wrong"}
    assert (table["agreement_low"] <= table["agreement"]).all()
    assert (table["agreement_high"] > table["agreement_low"]).all()


def test_class_value_agreement_is_the_cosine_and_leaves_the_weights_alone(model):
    before = copy.deepcopy(model.module.state_dict())
    directions, values = class_directions(model, final_norm=False), value_vectors(model, 1, "mlp")
    cosines = class_value_agreement(directions, values)
    e, w = model.module.head.weight.detach().double(), model.module.blocks[1].mlp.fc2.weight.detach().double()
    for c, m in ((0, 0), (3, 17), (9, 100)):
        expected = float(e[c] @ w[:, m] / (e[c].norm() * w[:, m].norm()))
        assert float(cosines[c, m]) == pytest.approx(expected, abs=1e-7)
    analysis = Memories(variant="code")
    measure(model, [], [analysis])
    table = analysis.tables()["class_space_value_agreement"].set_index(["block", "layer"])
    assert table.loc[1, "mlp"]["mean"] == pytest.approx(float(cosines.amax(1).mean()), abs=1e-7)
    for key, value in model.module.state_dict().items():
        assert torch.equal(value, before[key])


def test_the_class_direction_is_the_gradient_of_the_logit_across_the_final_norm(model, tools):
    """d logit_c / dx at x: the direction, scaled by 1/std and without its part along x (to first order in v)."""
    twin = tools["doubled"](model)
    x = torch.randn(32, dtype=torch.float64, requires_grad=True)
    gradient = torch.autograd.grad(twin.to_class_space(x)[3], x)[0]
    direction = class_directions(model)[3].double()
    centred = (x - x.mean()).detach()
    unit = centred / centred.norm()
    expected = (direction - (direction @ unit) * unit) / (x.var(unbiased=False) + 1e-6).sqrt()
    torch.testing.assert_close(gradient, expected.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit_tiny_patch16_224", {"init_values": 0.3}),  # LayerScale
        ("vit_tiny_patch16_224", {"class_token": False, "global_pool": "avg"}),
        ("beit_base_patch16_224", {}),  # gamma_1
        ("eva02_tiny_patch14_224", {"mlp_ratio": 4}),  # SwiGLU, RoPE
    ],
)
def test_memories_add_up_to_what_the_layer_adds(tools, name, options):
    """Coefficients times value vectors, plus the bias, is the point that the residual receives."""
    model = tools["build"](name, **options)
    batch = tools["make_batch"](model, 2)
    points = ["blocks.1.hook_attn_out", "blocks.1.hook_mlp_out", "blocks.1.attn.hook_z", "blocks.1.mlp.hook_post"]
    with torch.no_grad():
        _, cache = model.run_with_cache(batch.images, points)
        block = model.module.blocks[1]
        for layer, inner in (("attn", "attn.hook_z"), ("mlp", "mlp.hook_post")):
            values = value_vectors(model, 1, layer)
            built = coefficients(model, 1, layer, cache[f"blocks.1.{inner}"]) @ values.T
            difference = cache[f"blocks.1.hook_{layer}_out"] - built  # the bias: the same for every token
            assert block is not None
            torch.testing.assert_close(difference, difference[:1, :1].expand_as(difference), rtol=1e-4, atol=1e-4)


def test_test_of_the_weights_sees_a_difference_and_only_then():
    generator = torch.Generator().manual_seed(0)
    control = torch.rand(100, generator=generator)
    assert agreement_test(control + 0.2, control, 999, 0) == 1 / 1000
    assert agreement_test(torch.rand(100, generator=generator), control, 999, 0) > 0.01


def signed_rank_p(d):
    """One-sided p of Wilcoxon's signed ranks over all 2^n sign patterns."""
    import itertools

    order = np.argsort(np.argsort(np.abs(d))) + 1
    sums = [sum(r for r, s in zip(order, signs) if s) for signs in itertools.product((0, 1), repeat=len(d))]
    return np.mean(np.array(sums) >= order[d > 0].sum())


def test_the_published_test_of_the_weights_is_wilcoxons(model, batches):
    analysis = Memories(variant="code")
    measure(model, batches[:1], [analysis])
    table = analysis.tables()["class_space_value_agreement"]
    for row in table.itertuples():
        difference = (
            (analysis.agreement[row.block, row.layer, row.head])
            - (analysis.agreement_control[row.block, row.layer, row.head])
        )
        assert row.p_wilcoxon == pytest.approx(signed_rank_p(difference.numpy()))
    exact = Memories()
    measure(model, batches[:1], [exact])
    assert "p_wilcoxon" not in exact.tables()["class_space_value_agreement"]
    assert published_test(torch.ones(4), torch.ones(4)) == 1.0


def test_layer_scale_is_part_of_the_memories_except_as_published(tools, batches):
    model = tools["build"](init_values=0.3)
    with torch.no_grad():
        for block in model.module.blocks:
            block.ls1.gamma.uniform_(0.1, 2)
    weight = model.module.blocks[1].attn.proj.weight.detach()
    torch.testing.assert_close(value_vectors(model, 1, "attn"), weight * model.module.blocks[1].ls1.gamma[:, None])
    torch.testing.assert_close(value_vectors(model, 1, "attn", scaled=False), weight)
    analysis = Memories(variant="code")
    measure(model, [], [analysis])
    e, v = model.module.head.weight.detach(), weight
    best = (e / e.norm(dim=1, keepdim=True) @ (v / v.norm(dim=0))).amax(1)
    torch.testing.assert_close(analysis.agreement[1, "attn", "class"].float(), best)


def test_agreement_by_outcome_has_a_control_where_the_control_has_that_outcome(model, batches):
    analysis = Memories(control="random")
    measure(model, batches, [analysis])
    table = tables_of(analysis)["class_space_memories_by_outcome"]
    assert {"agreement_control", "n_images_control"} <= set(table.columns)
    wrong = table[table["outcome"] == "wrong"]
    assert (wrong["n_images_control"] > 0).all()
    assert set(table.columns[table.isna().any()]) <= set(analysis.optional)


def test_gated_mlps_have_no_coefficient_before_the_activation(tools):
    model = tools["build"]("eva02_tiny_patch14_224")
    with pytest.raises(VitscopeError, match="coefficients='post'"):
        measure(model, [], [Memories(variant="code")])


def directions_of(twin, kind):
    """(classes, width) float64 of one head, across the final norm (distilled models have no other)."""
    m = twin.module
    weight = {"class": m.head.weight, "distillation": m.head_dist.weight}
    weight["mean"] = (m.head.weight + m.head_dist.weight) / 2
    e = weight[kind] * m.norm.weight
    return (e - e.mean(1, keepdim=True)).detach()


@pytest.fixture(scope="module")
def distilled(tools):
    model = tools["build"]("deit_tiny_distilled_patch16_224")
    return model, tools["doubled"](model), tools["make_batch"](model, 6)


@pytest.mark.parametrize("head", ["own", "mean", "class", "distillation"])
def test_the_directions_of_a_distilled_model_are_those_of_the_head_that_reads_the_token(distilled, head):
    model, twin, batch = distilled
    analysis = Memories(head=head)
    measure(model, [batch], [analysis])
    tables = analysis.tables()
    table = tables["class_space_memories"].set_index(["block", "layer", "tokens"])
    weights = tables["class_space_value_agreement"].set_index(["block", "layer", "head"])
    own = {"class": "class", "distillation": "distillation", "image": "mean"}
    with torch.no_grad():
        _, cache = twin.run_with_cache(batch.images.double(), ["blocks.1.*"])
        for layer, inner in (("attn", "attn.hook_z"), ("mlp", "mlp.hook_post")):
            block = twin.module.blocks[1]
            values = block.attn.proj.weight if layer == "attn" else block.mlp.fc2.weight
            coefs = cache[f"blocks.1.{inner}"]
            coefs = coefs.transpose(1, 2).flatten(2) if layer == "attn" else coefs
            for group, tokens in (("class", [0]), ("distillation", [1]), ("image", list(range(2, 18)))):
                kind = own[group] if head == "own" else head
                e = directions_of(twin, kind)
                logits = (e @ values).numpy()
                top = twin.to_class_space(cache[f"blocks.1.hook_{layer}_out"], kind).argmax(-1)
                agree, composed = [], []
                for i, label in enumerate(batch.labels.tolist()):
                    best = set(np.argsort(-logits[label])[:5].tolist())
                    for t in tokens:
                        active = np.argsort(-coefs[i, t].numpy())[:5].tolist()
                        agree.append(bool(set(active) & best))
                        composed.append(int(top[i, t]) in {int(logits[:, m].argmax()) for m in active})
                assert table.loc[1, layer, group]["agreement"] == pytest.approx(100 * np.mean(agree))
                assert table.loc[1, layer, group]["composed"] == pytest.approx(100 * np.mean(composed))
                cosines = (e / e.norm(dim=1, keepdim=True)) @ (values / values.norm(dim=0))
                expected = float(cosines.amax(1).mean())
                assert weights.loc[1, layer, kind]["mean"] == pytest.approx(expected, abs=1e-6)


def test_blocks_of_unequal_width_are_refused(tools):
    from timm.layers import Mlp

    from vitscope.errors import UnsupportedModelError

    model = tools["build"]()
    model.module.blocks[1].mlp = Mlp(32, hidden_features=48)
    with pytest.raises(UnsupportedModelError, match=r"128 memories .* of block 0 and 48 in that of block 1"):
        measure(model, [], [Memories()])
