from __future__ import annotations

import json
import warnings

import pytest
import timm
import torch
from safetensors.torch import save_file

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
        ("vit_base_patch32_clip_224", {"num_classes": 512}),  # of its own: that tag has 1,000, so the head is new
        ("vit_base_patch32_clip_224.openai", {"num_classes": 768}),
        ("vit_tiny_patch16_224", {"num_classes": 512}),
        ("vit_wee_patch16_reg1_gap_256", {}),
    ],
)
def test_models_with_classes_have_a_class_space(name, options):
    assert opened(name, **options).why_no_class_space() is None


CLIP = "vit_base_patch32_clip_224"
SMALL = {"depth": 1, "embed_dim": 64, "num_heads": 1}


@pytest.fixture
def head_of_512(tmp_path):
    """Weights in a file: their 512 outputs may be classes, or OpenAI's embedding."""
    save_file(timm.create_model(CLIP, num_classes=512, **SMALL).state_dict(), tmp_path / "w.safetensors")
    return tmp_path / "w.safetensors"


def test_a_file_of_as_many_outputs_as_an_embedding_has_is_refused_unless_the_name_says_fine_tuned(head_of_512):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bare = open_model(CLIP, head_of_512, **SMALL)
    embedding = open_model(f"{CLIP}.openai", head_of_512, **SMALL)
    assert "image-text embedding" in embedding.why_no_class_space()
    reason = bare.why_no_class_space()
    (advice,) = [word.strip("()") for word in reason.split() if word.startswith(f"{CLIP}.")]
    tuned = open_model(advice, head_of_512, **SMALL)
    assert tuned.why_no_class_space() is None
    assert tuned.to_class_space(torch.zeros(3, 64)).shape == (3, 512)


def test_a_module_with_a_head_of_its_own_has_a_class_space_and_one_with_its_tags_embedding_has_none():
    assert open_model(timm.create_model(CLIP, num_classes=512, **SMALL)).why_no_class_space() is None
    embedding = open_model(timm.create_model(f"{CLIP}.openai", **SMALL))
    assert "image-text embedding" in embedding.why_no_class_space()


def test_a_run_was_trained_on_classes_however_many_and_whatever_its_folder_is_called(tmp_path, head_of_512):
    run = tmp_path / CLIP
    (run / "checkpoints" / "last").mkdir(parents=True)
    head_of_512.rename(run / "checkpoints" / "last" / "model.safetensors")
    description = {
        "name": f"{CLIP}.openai",
        "kwargs": {"num_classes": 512, **SMALL},
        "classes": [*map(str, range(512))],
    }
    preprocess = {"input_size": [3, 224, 224], "mean": [0.5] * 3, "std": [0.5] * 3}
    (run / "model.json").write_text(json.dumps({**description, "preprocess": preprocess}))
    assert open_model(run).why_no_class_space() is None
