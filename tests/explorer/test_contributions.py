"""What heads and MLPs add to a class: parts sum to the logit, and each is what its own vector gives."""

from __future__ import annotations

import pytest
import torch

import vitscope
from vitscope.explorer.contributions import contributions, points_needed, why_no_contributions
from vitscope.models import open_model

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 3, "num_classes": 5}


def seen(model: vitscope.Model, edits=None):
    """Points of one picture in float64, without the batch."""
    model.module.double()
    x = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad(), model.edits(edits or {}):
        names = [*points_needed(model), "blocks.*.hook_resid_post"]
        logits, cache = model.run_with_cache(x, names)
    return logits[0], {name: value[0] for name, value in cache.items()}


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit3_small_patch16_224", "vit_little_patch16_reg4_gap_256"])
def test_parts_add_up_to_the_logit_at_every_token(name):
    """Plain, with LayerScale, and with registers and pooling."""
    model = open_model(name, "random", **SMALL)
    if why_no_contributions(model):
        pytest.skip(why_no_contributions(model))
    with torch.no_grad():
        for parameter in model.module.parameters():  # gammas and biases that are not 1 and 0
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    _, points = seen(model)
    last = points["blocks.2.hook_resid_post"]
    for chosen in (0, 4):
        with torch.no_grad():
            found = contributions(model, points, last, chosen)
            logit = model.to_class_space(last)[:, chosen]
        assert torch.allclose(found.total, logit, rtol=1e-9, atol=1e-9)
        assert found.heads is not None
        assert bool(found.heads.isfinite().all())


def test_a_head_adds_what_its_own_vector_gives():
    """Brute force: the head's output vector at a token, through the final norm with the scale held, times the class."""
    model = open_model("vit_tiny_patch16_224", "random", **SMALL)
    _, points = seen(model)
    last, module = points["blocks.2.hook_resid_post"], model.module
    with torch.no_grad():
        found = contributions(model, points, last, 2)
        for block, head, token in ((0, 1, 0), (2, 2, 7)):
            z = points[f"blocks.{block}.attn.hook_z"][head, token]  # (D,)
            alone = torch.zeros(24, dtype=torch.float64)
            alone[8 * head : 8 * head + 8] = z
            vector = module.blocks[block].attn.proj.weight @ alone
            scale = (last[token].var(correction=0) + module.norm.eps).sqrt()
            through = (vector - vector.mean()) / scale * module.norm.weight
            assert torch.isclose(found.heads[block, head, token], through @ module.head.weight[2], rtol=1e-9)


def test_heads_of_a_changed_attention_are_not_shown():
    model = open_model("vit_tiny_patch16_224", "random", **SMALL)
    _, points = seen(model, {"blocks.1.hook_attn_out": lambda x, point: x * 0})
    with torch.no_grad():
        found = contributions(model, points, points["blocks.2.hook_resid_post"], 0)
    assert bool(found.heads[1].isnan().all())
    assert bool(found.heads[[0, 2]].isfinite().all())
    assert float(found.attention[1].abs().max()) == 0


def test_blocks_that_normalise_the_sum_are_refused_in_words():
    reason = why_no_contributions(open_model("small", "random"))
    assert reason is not None
    assert "normalise the sum" in reason
