from __future__ import annotations

import pytest
import torch

from vitscope.analyses.class_space.attention_edits import attention_edit, no_cls, self_only
from vitscope.errors import UnsupportedModelError, VitscopeError


@pytest.fixture
def pattern(model):
    scores = torch.randn(2, 4, model.layout.tokens, model.layout.tokens, generator=torch.Generator().manual_seed(0))
    return scores.softmax(-1)


def test_self_only_leaves_the_class_row_and_makes_image_rows_the_identity(model, pattern):
    edited = self_only(pattern, model.layout)
    torch.testing.assert_close(edited[..., 0, :], pattern[..., 0, :])
    torch.testing.assert_close(edited[..., 1:, :], torch.eye(17)[1:].expand(2, 4, 16, 17))


def test_no_cls_empties_one_column_and_renormalises_when_asked(model, pattern):
    bare = no_cls(pattern, model.layout, renormalise=False)
    assert (bare[..., 1:, 0] == 0).all()
    torch.testing.assert_close(bare[..., 1:, 1:], pattern[..., 1:, 1:])
    assert (bare[..., 1:, :].sum(-1) < 1).all()
    whole = no_cls(pattern, model.layout)
    torch.testing.assert_close(whole.sum(-1), torch.ones(2, 4, 17))
    torch.testing.assert_close(whole[..., 5, 3] / whole[..., 5, 7], pattern[..., 5, 3] / pattern[..., 5, 7])


@pytest.mark.parametrize("kind", ["self_only", "no_cls"])
@pytest.mark.parametrize("blocks", [None, [1]])
def test_edited_model_equals_one_whose_attention_is_written_out(model, batch, kind, blocks):
    """An independent forward pass with explicit softmax, edited after it."""
    m = model.module
    with torch.no_grad():
        with model.edits(attention_edit(model, kind, renormalise=False, blocks=blocks)):
            got = model(batch.images)
        x = m.norm_pre(m._pos_embed(m.patch_embed(batch.images)))
        for i, block in enumerate(m.blocks):
            n, heads = x.shape[1], 4
            q, k, v = block.attn.qkv(block.norm1(x)).view(len(x), n, 3, heads, 8).permute(2, 0, 3, 1, 4)
            weights = (q @ k.transpose(-2, -1) / 8**0.5).softmax(-1)
            if blocks is None or i in blocks:
                for row in range(1, n):
                    if kind == "self_only":
                        weights[:, :, row] = 0
                        weights[:, :, row, row] = 1
                    else:
                        weights[:, :, row, 0] = 0
            x = x + block.attn.proj((weights @ v).transpose(1, 2).flatten(2))
            x = x + block.mlp(block.norm2(x))
        expected = m.head(m.norm(x)[:, 0])
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_a_row_that_saw_the_class_token_alone_sees_nothing_afterwards(model, pattern):
    pattern = torch.zeros_like(pattern)
    pattern[..., 0] = 1
    edited = no_cls(pattern, model.layout)
    assert edited.isfinite().all()
    assert edited[..., 1:, :].abs().max() == 0


def test_impossible_edits_are_refused(model, tools):
    with pytest.raises(VitscopeError, match="self_only, no_cls"):
        attention_edit(model, "nobody")
    with pytest.raises(VitscopeError, match="blocks 0 to 2"):
        attention_edit(model, "self_only", blocks=[3])
    pooled = tools["build"](class_token=False, global_pool="avg")
    with pytest.raises(UnsupportedModelError, match="no class token"):
        attention_edit(pooled, "no_cls")
