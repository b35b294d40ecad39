from __future__ import annotations

import pytest
import torch

from vitscope.analyses.class_space.removal import (
    check_keep,
    droppable,
    dropped,
    kept_indices,
    maskable,
    masking_edits,
    stream_kept,
)
from vitscope.errors import UnsupportedModelError, VitscopeError


def random_keep(model, images: int, seed: int = 0) -> torch.Tensor:
    keep = torch.rand(images, model.layout.tokens, generator=torch.Generator().manual_seed(seed)) < 0.5
    keep[:, : model.layout.prefix_tokens + 1] = True
    return keep


def by_hand(model, image: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """The model written out: embed, keep some rows, run the blocks, norm, pool, head."""
    m = model.module
    x = m.norm_pre(m._pos_embed(m.patch_embed(image[None])))[:, keep]
    for block in m.blocks:
        x = block(x)
    x = m.norm(x)
    pooled = x[:, 0] if m.global_pool == "token" else x[:, model.layout.prefix_tokens :].mean(1)
    if hasattr(m, "head_dist"):
        return (m.head(x[:, 0]) + m.head_dist(x[:, 1]))[0] / 2
    return m.head(m.fc_norm(pooled))[0]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit_tiny_patch16_224", {}),
        ("vit_tiny_patch16_224", {"reg_tokens": 2}),
        ("vit_tiny_patch16_224", {"class_token": False, "global_pool": "avg"}),
        ("vit_base_patch16_rpn_224", {}),
        ("deit_tiny_distilled_patch16_224", {}),
    ],
)
def test_masking_keys_equals_dropping_tokens(tools, name, options):
    model = tools["build"](name, **options)
    images, keep = tools["make_batch"](model).images, random_keep(model, 6)
    with torch.no_grad():
        expected = torch.stack([by_hand(model, image, row) for image, row in zip(images, keep)])
        torch.testing.assert_close(stream_kept(model, images, keep), expected, rtol=1e-4, atol=1e-5)
        for i in range(6):
            with dropped(model, kept_indices(keep[i : i + 1])):
                torch.testing.assert_close(model(images[i : i + 1])[0], expected[i], rtol=1e-4, atol=1e-5)
        assert not torch.allclose(model(images), expected, atol=1e-3)


def test_attention_that_is_not_one_softmax_is_dropped_for_real(tools):
    from vitscope.attention import convert

    model = tools["build"]()
    convert(model, "rpc", layers=[1])
    assert not maskable(model)
    images, keep = tools["make_batch"](model).images, random_keep(model, 6)
    with torch.no_grad():
        expected = torch.stack([by_hand(model, image, row) for image, row in zip(images, keep)])
        torch.testing.assert_close(stream_kept(model, images, keep), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["eva02_tiny_patch14_224", "beit_base_patch16_224", "vit_relpos_small_patch16_224"])
def test_where_places_matter_only_masking_is_offered(tools, name):
    model = tools["build"](name)
    assert maskable(model)
    assert not droppable(model)
    images, keep = tools["make_batch"](model).images, random_keep(model, 6)
    with torch.no_grad():
        everything = stream_kept(model, images, torch.ones_like(keep))
        torch.testing.assert_close(everything, model(images), rtol=1e-4, atol=1e-5)
        assert not torch.allclose(stream_kept(model, images, keep), everything, atol=1e-4)
        with pytest.raises(UnsupportedModelError, match="places matter"), dropped(model, kept_indices(keep[:1])):
            pass


def test_what_a_removed_token_holds_does_not_matter(model, tools):
    images, keep = tools["make_batch"](model).images, random_keep(model, 6)
    removed = ~keep[:, 1:].view(-1, 4, 4)
    pixels = removed.repeat_interleave(7, 1).repeat_interleave(7, 2)[:, None]
    with torch.no_grad():
        before = stream_kept(model, images, keep)
        after = stream_kept(model, torch.where(pixels, torch.full_like(images, 9.0), images), keep)
    torch.testing.assert_close(before, after, rtol=1e-4, atol=1e-5)


def test_nothing_stays_hooked_after_an_error(model, tools):
    images = tools["make_batch"](model).images
    with torch.no_grad():
        before = model(images)
        with pytest.raises(RuntimeError, match="boom"), dropped(model, torch.arange(5).expand(6, 5)):
            raise RuntimeError("boom")
        torch.testing.assert_close(model(images), before, rtol=0, atol=0)


def test_impossible_removals_are_refused(model, tools):
    keep = torch.ones(2, model.layout.tokens, dtype=torch.bool)
    keep[0, 0] = False
    with pytest.raises(VitscopeError, match="Only image tokens"):
        check_keep(model, keep)
    with pytest.raises(VitscopeError, match="bool tensor"):
        check_keep(model, torch.ones(2, 5, dtype=torch.bool))
    pooled = tools["build"](class_token=False, global_pool="avg")
    with pytest.raises(VitscopeError, match="at least one"):
        masking_edits(pooled, torch.zeros(2, pooled.layout.tokens, dtype=torch.bool))
