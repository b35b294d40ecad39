"""Attention within the class, against loops over pairs of patches."""

from __future__ import annotations

import pytest
import torch

from segmented_scenes import CLASSES, PATCH, SIZE, scene_batches, tiny
from vitscope.analyses import create_analysis, measure
from vitscope.analyses.patches.attention import attention_within
from vitscope.analyses.patches.truth import patch_truth

PUBLISHED = "symmetric; rpc:layers=0,decoder=0,iterations=6,lambda=4"


@pytest.mark.parametrize("attention", [None, PUBLISHED])
def test_every_share_is_that_of_a_loop_over_pairs(attention):
    model, (batch,) = tiny("mask", attention=attention), scene_batches(4)
    model.module.double()
    batch.inputs = batch.inputs.double()
    analysis = create_analysis("patches.attention")
    measure(model, [batch], [analysis])
    table = analysis.tables()["patches_attention"].set_index(["block", "head", "tokens"])
    truth = patch_truth(batch.targets, (SIZE, SIZE), (PATCH, PATCH), CLASSES)
    with torch.no_grad():
        _, cache = model.run_with_cache(batch.inputs, "blocks.*.attn.hook_pattern")
    for block in range(3):
        pattern = cache[f"blocks.{block}.attn.hook_pattern"][:, :, 1:, 1:]
        for head in range(2):
            shares: dict[str, list[tuple[float, float]]] = {"all": [], "inside": [], "border": []}
            for image, classes in enumerate(truth.classes.tolist()):
                labelled = [j for j, c in enumerate(classes) if c >= 0]
                for i in labelled:
                    row = pattern[image, head, i].tolist()
                    others = [j for j in labelled if j != i]
                    same = [j for j in others if classes[j] == classes[i]]
                    pair = sum(row[j] for j in same) / sum(row[j] for j in others), len(same) / len(others)
                    for group in ("all", "border" if truth.border[image, i] else "inside"):
                        shares[group].append(pair)
            for group, pairs in shares.items():
                within, chance = (100 * sum(values) / len(pairs) for values in zip(*pairs))
                row = table.loc[(block, head, group)]
                assert row["n_patches"] == len(pairs)
                assert row["within"] == pytest.approx(within)
                assert row["chance"] == pytest.approx(chance)
                assert row["excess"] == pytest.approx(within - chance, abs=1e-9)
                assert row["excess_low"] < row["excess"] < row["excess_high"]


def test_a_head_that_looks_at_all_alike_is_at_chance():
    classes = torch.tensor([[0, 0, 1, 2, 2, 2, -1, 0]])
    within, chance = attention_within(torch.full((1, 2, 8, 8), 1 / 8), classes)
    assert torch.allclose(within[0, 0][:6], chance[0][:6])
    assert chance[0, :4].tolist() == pytest.approx([2 / 6, 2 / 6, 0, 2 / 6])
    assert within[0, 0, 6].isnan()


def test_a_head_that_looks_at_its_class_alone_is_at_one():
    classes = torch.tensor([[0, 0, 1, 1, -1]])
    pattern = (classes[:, :, None] == classes[:, None]).double()[:, None]
    within, _ = attention_within(pattern, classes)
    assert within[0, 0, :4].tolist() == [1, 1, 1, 1]
    only_itself, _ = attention_within(torch.eye(5).view(1, 1, 5, 5), classes)
    assert only_itself.isnan().all()  # what it gives to others is nothing, which has no share


def test_all_heads_of_a_block_are_their_mean():
    analysis = create_analysis("patches.attention")
    measure(tiny(), scene_batches(), [analysis])
    tables = analysis.tables()
    heads = tables["patches_attention"].groupby(["block", "tokens"])["within"].mean()
    for row in tables["patches_attention_blocks"].to_dict("records"):
        assert row["within"] == pytest.approx(heads[row["block"], row["tokens"]])
