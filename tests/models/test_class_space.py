from __future__ import annotations

import warnings

import pytest
import torch

from vitscope.errors import UnsupportedModelError
from vitscope.models import open_model


def opened(name, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # bare names whose tags disagree say so
        return open_model(name, "random", depth=2, **options)


@pytest.mark.parametrize(
    "name", ["vit_tiny_patch16_224", "vit_small_patch16_rope_224", "beit3_base_patch16_224", "vit_base_patch16_rpn_224"]
)
@torch.no_grad()
def test_the_class_token_of_the_last_block_projects_to_the_logits(name):
    model = opened(name)
    images = torch.randn(2, *model.preprocess.input_size, generator=torch.Generator().manual_seed(0))
    logits, cache = model.run_with_cache(images, "blocks.1.hook_resid_post")
    tokens = cache["blocks.1.hook_resid_post"]
    pooled = model.to_class_space(tokens[:, 0])
    if model.module.global_pool == "avg" and isinstance(model.module.norm, torch.nn.Identity):
        pooled = model.to_class_space(tokens[:, model.layout.prefix_tokens :].mean(1))
    assert torch.allclose(pooled, logits, atol=1e-5)


@torch.no_grad()
def test_a_distilled_model_averages_its_two_heads():
    model = opened("deit_tiny_distilled_patch16_224")
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    logits, cache = model.run_with_cache(images, "blocks.1.hook_resid_post")
    tokens = cache["blocks.1.hook_resid_post"]
    by_head = model.to_class_space(tokens[:, 0], "class") + model.to_class_space(tokens[:, 1], "distillation")
    assert torch.allclose(by_head / 2, logits, atol=1e-5)
    both = model.to_class_space(tokens, "class") + model.to_class_space(tokens, "distillation")
    assert torch.allclose(model.to_class_space(tokens), both / 2, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("vit_base_patch16_siglip_224", "pools its tokens by attention"),
        ("vit_small_patch14_dinov2", "no classes"),
        ("vit_base_patch16_clip_quickgelu_224", "image-text embedding"),
        ("vit_base_patch16_clip_224.openai", "image-text embedding"),
        ("vitamin_small_224", "image-text embedding"),
        ("eva02_base_patch16_clip_224", "image-text embedding"),
    ],
)
def test_models_without_classes_are_refused_with_the_reason(name, reason):
    model = opened(name)
    assert reason in model.why_no_class_space()
    with pytest.raises(UnsupportedModelError, match=reason):
        model.to_class_space(torch.zeros(1, model.layout.width))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit_base_patch16_clip_224", {}),  # its default tag is fine-tuned on ImageNet
        ("vit_base_patch16_clip_224", {"num_classes": 10}),
        ("vit_tiny_patch16_224", {"num_classes": 512}),
        ("vit_wee_patch16_reg1_gap_256", {}),
    ],
)
def test_models_with_classes_have_a_class_space(name, options):
    assert opened(name, **options).why_no_class_space() is None
