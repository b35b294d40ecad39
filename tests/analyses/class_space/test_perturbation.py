from __future__ import annotations

import numpy as np
import pytest
import torch

from vitscope.analyses import tables_of
from vitscope.analyses.class_space.attention_edits import attention_edit
from vitscope.analyses.class_space.perturbation import Perturbation
from vitscope.analyses.one_pass import measure
from vitscope.data.masks import to_tokens_nearest
from vitscope.errors import UnsuitableDataError, UnsupportedModelError, VitscopeError


def ranks(model, images, labels):
    """(blocks, images, tokens) from the model's own head, and the predictions."""
    with torch.no_grad():
        logits, cache = model.run_with_cache(images, "blocks.*.hook_resid_post")
        points = torch.stack([model.to_class_space(x) for x in cache.values()])  # (L, B, N, K)
    true = points.gather(-1, labels[None, :, None, None].expand(*points.shape[:3], 1))
    return (points > true).sum(-1).numpy(), logits.argmax(1).numpy()


@pytest.fixture(scope="module")
def run(model, tools):
    batches = [tools["make_batch"](model, 5, seed=s) for s in range(3)]
    with torch.no_grad():
        for batch in batches:  # right on some images
            batch.labels[::2] = model(batch.images).argmax(1)[::2]
    analysis = Perturbation()
    measure(model, batches, [analysis])
    images, labels = torch.cat([b.images for b in batches]), torch.cat([b.labels for b in batches])
    masks = torch.cat([to_tokens_nearest(b.masks, model.layout.grid) for b in batches])
    return analysis.tables(), images, labels, masks


@pytest.mark.parametrize(("kind", "renormalise"), [("self_only", True), ("no_cls", True), ("no_cls_bare", False)])
def test_attention_perturbations_equal_a_run_of_the_edited_model(model, run, kind, renormalise):
    tables, images, labels, _ = run
    before, predicted = ranks(model, images, labels)
    with model.edits(attention_edit(model, kind.removesuffix("_bare"), renormalise=renormalise)):
        after, perturbed = ranks(model, images, labels)
    table = tables["perturbation"].set_index(["perturbation", "block", "tokens"])
    for block in range(3):
        for group, tokens in (("class", slice(0, 1)), ("image", slice(1, None))):
            row = table.loc[kind, block, group]
            assert row["identifiability_before"] == pytest.approx((1 - before[block][:, tokens] / 10).mean())
            assert row["identifiability_after"] == pytest.approx((1 - after[block][:, tokens] / 10).mean())
            assert row["rate_before"] == pytest.approx(100 * (before[block][:, tokens] == 0).mean())
            assert row["rate_after"] == pytest.approx(100 * (after[block][:, tokens] == 0).mean())
            assert row["rate_change"] == pytest.approx(row["rate_after"] - row["rate_before"])
    row = tables["perturbation_accuracy"].set_index("perturbation").loc[kind]
    assert row["accuracy_before"] == pytest.approx(100 * (predicted == labels.numpy()).mean())
    assert row["accuracy_after"] == pytest.approx(100 * (perturbed == labels.numpy()).mean())
    lost = ((predicted == labels.numpy()) & (perturbed != labels.numpy())).sum()
    assert row["lost"] == lost


@torch.no_grad()
def last_ranks_without(model, image, keep, label):
    """Ranks after the last block of the kept tokens of one image, the others really dropped."""
    m = model.module
    x = m.norm_pre(m._pos_embed(m.patch_embed(image)))[:, keep]
    for block in m.blocks:
        x = block(x)
    logits = model.to_class_space(x)[0]  # (n, K)
    return (logits > logits[:, label][:, None]).sum(1).numpy()


@pytest.mark.parametrize(
    ("kind", "removed", "group"), [("without_context", 0, "object"), ("without_class", 1, "context")]
)
def test_removals_compare_the_same_tokens_of_the_same_images(model, run, kind, removed, group):
    tables, images, labels, masks = run
    before, _ = ranks(model, images, labels)
    r_before, r_after, hits, right = [], [], [], []
    for i in range(len(images)):
        keep = torch.cat([torch.ones(1, dtype=torch.bool), masks[i] != removed])
        rank = last_ranks_without(model, images[i : i + 1], keep, labels[i])
        r_after += (1 - rank[1:] / 10).tolist()
        r_before += (1 - before[2][i][keep.numpy()][1:] / 10).tolist()
        hits.append(rank[0] == 0)
        right.append(before[2][i][0] == 0)
    row = tables["perturbation"].set_index(["perturbation", "block", "tokens"]).loc[kind, 2, group]
    assert row["n_tokens"] == len(r_after)
    assert row["identifiability_before"] == pytest.approx(np.mean(r_before))
    assert row["identifiability_after"] == pytest.approx(np.mean(r_after))
    accuracy = tables["perturbation_accuracy"].set_index("perturbation").loc[kind]
    assert accuracy["accuracy_after"] == pytest.approx(100 * np.mean(hits))
    assert accuracy["accuracy_before"] == pytest.approx(100 * np.mean(right))


def test_code_variant_adds_the_published_rate_which_counts_the_class_token_after_only(model, tools, run):
    _, images, labels, masks = run
    batches = [tools["make_batch"](model, 5, seed=s) for s in range(3)]
    for batch, known in zip(batches, labels.split(5)):
        batch.labels = known
    analysis = Perturbation(variant="code", kinds=["self_only", "without_context"])
    measure(model, batches, [analysis])
    table = analysis.tables()["perturbation"].set_index(["perturbation", "block", "tokens"])
    with model.edits(attention_edit(model, "self_only")):
        after, _ = ranks(model, images, labels)
    for block in range(3):
        row = table.loc["self_only", block, "image"]
        assert row["rate_after_with_class"] == pytest.approx(100 * (after[block] == 0).mean())
        assert np.isnan(table.loc["self_only", block, "class"]["rate_after_with_class"])
    shares = []  # as published for removals: the mean of the images' own shares
    for image, mask, label in zip(images, masks, labels):
        keep = torch.cat([torch.ones(1, dtype=torch.bool), mask == 1])
        shares.append((last_ranks_without(model, image[None], keep, label) == 0).mean())
    row = table.loc["without_context", 2, "object"]
    assert row["rate_after_with_class"] == pytest.approx(100 * np.mean(shares))
    assert len({int((mask == 1).sum()) for mask in masks}) > 1  # else the mean over tokens would be the same
    assert {"rate_after_with_class", "rate_after_with_class_control"} <= set(analysis.optional)


def test_without_masks_the_removals_are_left_out(model, tools):
    analysis = Perturbation()
    measure(model, [tools["make_batch"](model, masks=False)], [analysis])
    assert set(analysis.tables()["perturbation_accuracy"]["perturbation"]) == {"self_only", "no_cls", "no_cls_bare"}


def test_really_dropped_where_masking_does_not_hold(tools):
    from vitscope.attention import convert

    model = tools["build"]()
    convert(model, "rpc", layers=[1])
    analysis = Perturbation(kinds=["without_context"])
    measure(model, [tools["make_batch"](model)], [analysis])
    table = analysis.tables()["perturbation"]
    assert set(table["tokens"]) == {"class", "object"}
    assert (table["identifiability_after"] > 0).all()


def test_chosen_blocks_and_the_control(model, tools):
    batch = tools["make_batch"](model)
    analysis = Perturbation(kinds=["self_only"], blocks=[2], control="random")
    measure(model, [batch], [analysis])
    table = tables_of(analysis)["perturbation"]
    first = table[table["block"] < 2]
    assert (first["rate_change"] == 0).all()
    assert set(table["edited"]) == {"2"}
    assert "rate_after_control" in table.columns
    assert "accuracy_after_control" in tables_of(analysis)["perturbation_accuracy"].columns


def test_models_without_a_class_token_leave_out_no_cls_and_refuse_it_when_asked(tools):
    model = tools["build"](class_token=False, global_pool="avg")
    analysis = Perturbation()
    measure(model, [tools["make_batch"](model)], [analysis])
    assert set(analysis.tables()["perturbation"]["perturbation"]) == {"self_only", "without_context", "without_class"}
    with pytest.raises(UnsupportedModelError, match="no class token"):
        measure(model, [], [Perturbation(kinds=["no_cls"])])


def test_unknown_perturbation_suggests_the_nearest():
    with pytest.raises(VitscopeError, match="Did you mean self_only"):
        Perturbation(kinds=["selfonly"])


def test_removals_asked_for_by_name_need_masks():
    from types import SimpleNamespace

    bare, masked = (SimpleNamespace(name="digits", has_masks=has) for has in (False, True))
    with pytest.raises(UnsuitableDataError, match=r"without_class removes tokens .* digits has no masks"):
        Perturbation(kinds=["self_only", "without_class"]).check_data(bare)
    Perturbation(kinds=["without_class"]).check_data(masked)
    Perturbation(kinds=["self_only"]).check_data(bare)
    Perturbation().check_data(bare)  # they are left out


def test_nothing_that_changes_has_an_interval_and_one_image_has_none(model, tools):
    batch = tools["make_batch"](model)
    analysis = Perturbation(kinds=["self_only"], blocks=[2])  # block 0 comes before the edit: no token changes
    measure(model, [batch], [analysis])
    row = analysis.tables()["perturbation"].set_index(["block", "tokens"]).loc[0, "image"]
    half = 100 * 1.959963984540054 / (6 + 2)  # Agresti & Min with 0 gained and 0 lost of 6 images
    assert (row["rate_change_low"], row["rate_change_high"]) == (pytest.approx(-half), pytest.approx(half))
    one = Perturbation(kinds=["self_only"])
    measure(model, [tools["make_batch"](model, 1)], [one])
    table = one.tables()["perturbation"]
    assert set(table.columns[table.isna().any()]) == set(one.optional) & set(table.columns)
