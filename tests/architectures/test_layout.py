from __future__ import annotations

import warnings

import pytest

from vitscope.models import describe, list_models, open_model
from vitscope.models.catalog import candidate_names


@pytest.mark.parametrize(
    ("name", "class_tokens", "registers", "grid", "patch", "heads", "head_dim"),
    [
        ("vit_tiny_patch16_224", 1, 0, (14, 14), (16, 16), 3, 64),
        ("deit_tiny_distilled_patch16_224", 2, 0, (14, 14), (16, 16), 3, 64),
        ("vit_wee_patch16_reg1_gap_256", 0, 1, (16, 16), (16, 16), 4, 64),
        ("vit_medium_patch16_gap_256", 0, 0, (16, 16), (16, 16), 8, 64),
        ("vit_small_patch14_reg4_dinov2", 1, 4, (37, 37), (14, 14), 6, 64),
        ("vit_small_patch16_dinov3", 1, 4, (16, 16), (16, 16), 6, 64),
        ("vit_small_r26_s32_224", 1, 0, (7, 7), (32, 32), 6, 64),
        ("vit_huge_patch14_224", 1, 0, (16, 16), (14, 14), 16, 80),
        ("beit_base_patch16_224", 1, 0, (14, 14), (16, 16), 12, 64),
        ("test_vit", 1, 0, (10, 10), (16, 16), 2, 32),
    ],
)
def test_the_token_layout_is_derived(name, class_tokens, registers, grid, patch, heads, head_dim):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"embed_dim": 320, "num_heads": 4} if "huge" in name else {}
        layout = open_model(name, "random", depth=1, **options).layout
    assert (layout.class_tokens, layout.register_tokens) == (class_tokens, registers)
    assert (layout.grid, layout.patch) == (grid, patch)
    assert (layout.heads, layout.head_dim) == (4 if options else heads, head_dim)


def test_non_square_inputs_have_a_non_square_grid():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layout = open_model("vit_tiny_patch16_224", "random", img_size=(64, 96), depth=1).layout
    assert layout.grid == (4, 6)
    assert layout.tokens == 25


def test_the_catalog_says_what_each_model_can_do():
    row = describe("vit_tiny_patch16_224")
    assert (row.supported, row.class_space, row.blocks, row.tokens) == (True, True, 12, "1+0+196")
    refused = describe("swin_tiny_patch4_window7_224")
    assert not refused.supported
    assert "windows" in refused.remark
    assert "attention" in describe("vit_base_patch16_siglip_224").remark


def test_the_filter_takes_parts_of_names_and_globs():
    rows = list_models("deit_tiny")
    assert [r.name for r in rows] == ["deit_tiny_distilled_patch16_224", "deit_tiny_patch16_224"]
    assert candidate_names("test_vit?") == ["test_vit2", "test_vit3", "test_vit4"]
    assert {r.name for r in list_models("xcit_nano*224", supported=False)} == {
        "xcit_nano_12_p16_224",
        "xcit_nano_12_p8_224",
    }
    assert list_models("xcit_nano*224") == []
