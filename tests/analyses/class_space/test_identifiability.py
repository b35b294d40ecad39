"""Every figure of the tables against a brute-force float64 computation on a 3-block ViT."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitscope.analyses import tables_of
from vitscope.analyses.class_space.identifiability import Identifiability
from vitscope.analyses.class_space.levels import rank_quantile
from vitscope.analyses.one_pass import measure
from vitscope.data.masks import to_tokens_nearest
from vitscope.errors import DataError, UnsupportedModelError, VitscopeError

HOOKS = {"resid_post": "hook_resid_post", "attn_out": "hook_attn_out", "mlp_out": "hook_mlp_out"}


def oracle(model, batches, tools):
    """{(point, block): (images, tokens, classes)} logits in float64, token by token through the model's own head."""
    twin = tools["doubled"](model)
    parts: dict = {}
    with torch.no_grad():
        for batch in batches:
            _, cache = twin.run_with_cache(batch.images.double(), ["blocks.*.hook_*"])
            for block in range(model.layout.blocks):
                for point in ("resid_post", "attn_out", "mlp_out", "resid_pre"):
                    x = cache[f"blocks.{block}.hook_{point}"]
                    parts.setdefault((point, block), []).append(twin.to_class_space(x))
    return {key: torch.cat(value).numpy() for key, value in parts.items()}


def ranks(logits, labels):
    true = np.take_along_axis(logits, labels[:, None, None], 2)
    return (logits > true).sum(2), true[..., 0]


@pytest.fixture(scope="module")
def measured(model, tools):
    batches = [tools["make_batch"](model, 5, seed=s, first=5 * s) for s in range(4)]
    analysis = Identifiability(permutations=199)
    measure(model, batches, [analysis])
    labels = torch.cat([b.labels for b in batches]).numpy()
    masks = torch.cat([to_tokens_nearest(b.masks, model.layout.grid) for b in batches]).numpy()
    return analysis, oracle(model, batches, tools), labels, masks


def member(group, masks, shape):
    inside = np.zeros(shape, bool)
    if group == "class":
        inside[:, 0] = True
    elif group == "image":
        inside[:, 1:] = True
    else:
        inside[:, 1:] = masks == (1 if group == "object" else 0)
    return inside


@pytest.mark.parametrize("group", ["class", "image", "object", "context"])
def test_level_table_equals_brute_force(measured, group):
    analysis, logits, labels, masks = measured
    table = analysis.tables()["class_space_identifiability"].set_index(["block", "point", "tokens"])
    for (point, block), values in logits.items():
        if point == "resid_pre" and block > 0:
            continue
        rank, _ = ranks(values, labels)
        inside = member(group, masks, rank.shape)
        r = 1 - rank / 10
        row = table.loc[block, point, group]
        assert row["mean"] == pytest.approx(r[inside].mean(), abs=1e-9)
        assert row["rate"] == pytest.approx(100 * (rank[inside] == 0).mean(), abs=1e-9)
        assert row["images_with"] == pytest.approx(100 * ((rank == 0) & inside).any(1).mean(), abs=1e-9)
        assert row["q50"] == pytest.approx(np.quantile(r[inside], 0.5, method="inverted_cdf"))
        assert row["n_tokens"] == inside.sum()
        per_image = [(rank[i][inside[i]] == 0).mean() for i in range(len(labels)) if inside[i].any()]
        assert row["rate_per_image"] == pytest.approx(100 * np.mean(per_image), abs=1e-9)
        assert row["rate_low"] <= row["rate"] <= row["rate_high"]


@pytest.mark.parametrize("point", list(HOOKS))
def test_change_is_from_the_previous_block_output(measured, point):
    analysis, logits, labels, masks = measured
    table = analysis.tables()["class_space_change"].set_index(["block", "point", "tokens"])
    for block in range(3):
        _, now = ranks(logits[point, block], labels)
        _, before = ranks(logits["resid_pre", block], labels)  # the previous block's output, or the embedding
        for group in ("class", "image"):
            inside = member(group, masks, now.shape)
            row = table.loc[block, point, group]
            assert row["rate"] == pytest.approx(100 * (now > before)[inside].mean(), abs=1e-9)
            assert row["logit_change"] == pytest.approx((now - before)[inside].mean(), abs=1e-4)


def test_class_against_context_equals_brute_force_and_is_corrected_over_blocks(measured):
    analysis, logits, labels, masks = measured
    table = analysis.tables()["class_space_class_vs_context"]
    for row in table.itertuples():
        rank, now = ranks(logits[row.point, row.block], labels)
        _, before = ranks(logits["resid_pre", row.block], labels)
        value = 1 - rank / 10 if row.measure == "identifiability" else now - before
        d = np.array([v[1:][m == 1].mean() - v[1:][m == 0].mean() for v, m in zip(value, masks)])
        assert row.difference == pytest.approx(d.mean(), abs=1e-4)
        assert (row.high - row.low) / 2 == pytest.approx(1.96 * d.std(ddof=1) / len(d) ** 0.5, rel=1e-3)
        assert 1 / 200 <= row.p_greater <= 1
        assert row.p_holm >= row.p_two_sided
        # a normal approximation of the sign-flip distribution: sum of d_i * (+-1) has variance sum d_i^2
        from scipy.stats import norm

        assert row.p_greater == pytest.approx(norm.sf(d.sum() / (d**2).sum() ** 0.5), abs=0.12)


def test_code_variant_adds_the_published_test_on_pooled_tokens(model, tools, measured):
    _, logits, labels, masks = measured
    batches = [tools["make_batch"](model, 5, seed=s, first=5 * s) for s in range(4)]
    halves = [Identifiability(variant="code", permutations=9) for _ in range(2)]
    for half, part in zip(halves, (batches[:3], batches[3:])):
        measure(model, part, [half])
    halves[0].merge(halves[1])
    table = halves[0].tables()["class_space_class_vs_context"]
    assert len(table) == 2 * 3 * 3
    generator = np.random.default_rng(0)
    shuffled = np.stack([generator.permutation(masks.flatten()) for _ in range(3000)])  # (3000, B * N)
    inside, outside = ((shuffled == kind) / (masks == kind).sum() for kind in (1, 0))
    for row in table.itertuples():
        rank, now = ranks(logits[row.point, row.block], labels)
        _, before = ranks(logits["resid_pre", row.block], labels)
        value = (1 - rank / 10 if row.measure == "identifiability" else now - before)[:, 1:]
        observed = value[masks == 1].mean() - value[masks == 0].mean()
        assert row.difference_pooled == pytest.approx(observed, abs=1e-4)
        permuted = (inside - outside) @ value.flatten()
        assert row.p_pooled == pytest.approx((permuted >= observed - 1e-12).mean(), abs=0.04)
    assert "p_pooled" not in measured[0].tables()["class_space_class_vs_context"]


def test_layers_of_residual_post_norm_models_are_read_behind_their_norm(tools):
    """The published GAP model: attention and MLP outputs go through norm1 and norm2, final norm and head."""
    model = tools["build"]("vit_base_patch16_rpn_224")
    batch = tools["make_batch"](model)
    analysis = Identifiability(variant="code", permutations=9)
    measure(model, [batch], [analysis])
    table = analysis.tables()["class_space_identifiability"].set_index(["block", "point", "tokens"])
    module = tools["doubled"](model).module
    outputs = {}
    for b, block in enumerate(module.blocks):
        for layer, inner, norm in (("attn", block.attn.proj, block.norm1), ("mlp", block.mlp.fc2, block.norm2)):
            inner.register_forward_hook(
                lambda _m, _i, out, key=(b, f"{layer}_out"), norm=norm: outputs.update({key: norm(out)})
            )
    with torch.no_grad():
        module(batch.images.double())
        for (b, point), x in outputs.items():
            rank, _ = ranks(module.head(module.fc_norm(x)).numpy(), batch.labels.numpy())
            assert rank.shape == (6, 16)  # no patch is lost
            row = table.loc[b, point, "image"]
            assert row["mean"] == pytest.approx((1 - rank / 10).mean(), abs=1e-9)
            assert row["rate"] == pytest.approx(100 * (rank == 0).mean(), abs=1e-9)
    assert len(outputs) == 6


def test_distribution_sums_to_one_hundred_and_follows_the_ranks(measured):
    analysis, logits, labels, _ = measured
    table = analysis.tables()["class_space_distribution"]
    part = table[(table["block"] == 2) & (table["point"] == "resid_post") & (table["tokens"] == "image")]
    assert part["share"].sum() == pytest.approx(100)
    rank, _ = ranks(logits["resid_post", 2], labels)
    assert part[part["to"] == 1]["share"].item() == pytest.approx(100 * (rank[:, 1:] == 0).mean())


def test_halves_merge_and_batches_of_another_size_give_the_same(model, tools, measured):
    whole = measured[0]
    batches = [tools["make_batch"](model, 5, seed=s, first=5 * s) for s in range(4)]
    first, second = Identifiability(permutations=199), Identifiability(permutations=199)
    measure(model, batches[:1], [first])
    measure(model, batches[1:], [second])
    first.merge(second)
    for name, table in whole.tables().items():
        other = first.tables()[name]
        for column in table.columns:
            if table[column].dtype.kind == "f":
                np.testing.assert_allclose(other[column], table[column], rtol=1e-9, atol=1e-9)


def test_class_token_only_gives_the_same_class_token_rows(model, tools, measured):
    batches = [tools["make_batch"](model, 5, seed=s, first=5 * s) for s in range(4)]
    analysis = Identifiability(tokens="class")
    measure(model, batches, [analysis])
    mine = analysis.tables()["class_space_identifiability"]
    assert set(mine["tokens"]) == {"class"}
    full = measured[0].tables()["class_space_identifiability"]
    full = full[full["tokens"] == "class"].reset_index(drop=True)
    np.testing.assert_allclose(mine["mean"], full["mean"])
    assert "class_space_class_vs_context" not in analysis.tables()


def test_without_masks_the_masked_parts_are_left_out(model, tools):
    analysis = Identifiability()
    measure(model, [tools["make_batch"](model, masks=False)], [analysis])
    tables = analysis.tables()
    assert "class_space_class_vs_context" not in tables
    assert set(tables["class_space_identifiability"]["tokens"]) == {"class", "image"}


def test_unlabelled_images_are_not_counted(model, tools):
    batch = tools["make_batch"](model)
    batch.labels[2] = -1
    analysis = Identifiability()
    measure(model, [batch], [analysis])
    assert set(analysis.tables()["class_space_identifiability"].query("tokens == 'class'")["n_images"]) == {5}


def test_labels_outside_the_head_are_an_error(model, tools):
    batch = tools["make_batch"](model)
    batch.labels[2] = 10
    with pytest.raises(DataError, match="class number 10"):
        measure(model, [batch], [Identifiability()])


def test_no_patch_is_lost_in_models_without_a_class_token(tools):
    model = tools["build"](class_token=False, global_pool="avg")
    analysis = Identifiability()
    measure(model, [tools["make_batch"](model)], [analysis])
    table = analysis.tables()["class_space_identifiability"].query("tokens == 'image'")
    assert set(table["n_tokens"]) == {6 * 16}
    with pytest.raises(UnsupportedModelError, match="no class token"):
        measure(model, [tools["make_batch"](model)], [Identifiability(tokens="class")])


def test_registers_are_never_image_tokens_and_distilled_models_have_both_tokens(tools):
    registers = tools["build"](reg_tokens=3)
    analysis = Identifiability()
    measure(registers, [tools["make_batch"](registers)], [analysis])
    counts = analysis.tables()["class_space_identifiability"].query("block == 1 and point == 'attn_out'")
    counts = counts.set_index("tokens")["n_tokens"].to_dict()
    assert (counts["class"], counts["register"], counts["image"]) == (6, 18, 96)
    distilled = tools["build"]("deit_tiny_distilled_patch16_224")
    analysis = Identifiability()
    measure(distilled, [tools["make_batch"](distilled)], [analysis])
    counts = analysis.tables()["class_space_identifiability"].query("block == 1 and point == 'attn_out'")
    counts = counts.set_index("tokens")["n_tokens"].to_dict()
    assert (counts["class"], counts["distillation"], counts["image"]) == (6, 6, 96)


def test_the_control_stands_in_its_own_columns_and_the_model_is_untouched(model, tools, measured):
    before = [p.clone() for p in model.module.parameters()]
    state = torch.get_rng_state()
    batches = [tools["make_batch"](model, 5, seed=s, first=5 * s) for s in range(4)]
    analysis = Identifiability(control="random", permutations=199)
    measure(model, batches, [analysis])
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(before, model.module.parameters()))
    table = tables_of(analysis)["class_space_identifiability"]
    plain = measured[0].tables()["class_space_identifiability"]
    np.testing.assert_allclose(table["mean"], plain["mean"])
    assert not np.allclose(table["mean_control"], table["mean"])
    from vitscope.analyses.control import random_twin

    alone = Identifiability(permutations=199)
    measure(random_twin(model, 0), batches, [alone])
    np.testing.assert_allclose(table["mean_control"], alone.tables()["class_space_identifiability"]["mean"])


def test_quantile_is_the_inverted_distribution():
    ranks_seen = [0, 0, 1, 3, 3.5]
    counts = torch.zeros(2 * 5 - 1, dtype=torch.int64)
    for rank in ranks_seen:
        counts[int(2 * rank)] += 1
    r = [1 - rank / 5 for rank in ranks_seen]
    for q in (0.05, 0.2, 0.5, 0.95):
        assert rank_quantile(counts, q) == pytest.approx(np.quantile(r, q, method="inverted_cdf"))


def test_unknown_options_are_refused():
    with pytest.raises(VitscopeError, match="variant='paper'"):
        Identifiability(variant="paper")
    with pytest.raises(VitscopeError, match="control='zeros'"):
        Identifiability(control="zeros")


def test_the_distribution_of_the_control_stands_beside(model, tools):
    from vitscope.analyses.control import random_twin

    batch = tools["make_batch"](model)
    analysis, alone = Identifiability(control="random", permutations=9), Identifiability(permutations=9)
    measure(model, [batch], [analysis])
    measure(random_twin(model, 0), [batch], [alone])
    tables, expected = tables_of(analysis), tables_of(alone)
    np.testing.assert_allclose(
        tables["class_space_distribution"]["share_control"], expected["class_space_distribution"]["share"]
    )
    assert set(tables["class_space_identifiability"]["n_classes"]) == {10}


def test_one_image_has_no_interval_where_it_says_nothing_and_the_columns_may_be_empty(model, tools):
    analysis = Identifiability(permutations=9)
    measure(model, [tools["make_batch"](model, 1)], [analysis])
    for table in tables_of(analysis).values():
        empty = set(table.columns[table.isna().any()])
        assert empty <= set(analysis.optional)
        if "difference" in table or "mean" in table:
            assert {"low", "high"} <= empty


def test_without_a_label_there_is_nothing_to_tell(model, tools):
    from vitscope.analyses.class_space.composition import Composition
    from vitscope.analyses.class_space.lens import Lens
    from vitscope.analyses.class_space.memory_analysis import Memories
    from vitscope.analyses.class_space.perturbation import Perturbation
    from vitscope.analyses.class_space.relevance_study import Relevance

    batch = tools["make_batch"](model, 2)
    batch.labels[:] = -1
    analyses = [Identifiability(permutations=9), Composition(), Memories(), Perturbation(), Relevance(), Lens()]
    measure(model, [batch], analyses)
    for analysis in analyses:
        assert set(analysis.tables()) <= {"class_space_value_agreement"}  # of the weights alone
        assert analysis.summary() == {}


@pytest.mark.parametrize("culprit", ["hook_resid_post", "hook_attn_out", "hook_mlp_out"])
def test_a_nan_is_found_at_its_own_point(model, tools, culprit):
    from vitscope.analyses.class_space.projection import Projector
    from vitscope.analyses.class_space.sharing import Readings
    from vitscope.analyses.class_space.tokens import Selection
    from vitscope.errors import NumericalError

    readings = Readings(Projector(model), Selection(model.layout), "half", tools["make_batch"](model, 2))
    names = ("hook_resid_post", "hook_attn_out", "hook_mlp_out")
    points = {f"blocks.1.{name}": torch.zeros(2, 17, 32) for name in names}
    points[f"blocks.1.{culprit}"][1, 3, 0] = float("nan")
    with pytest.raises(NumericalError, match=rf"at blocks\.1\.{culprit}: it has no rank"), torch.no_grad():
        readings.get(1, points, *names)
