from __future__ import annotations

import pytest
import torch

from vitscope.models import open_model
from vitscope.training.diagnosis import first_bad_tensor

OPTIONS = {"img_size": 16, "patch_size": 4, "in_chans": 1, "embed_dim": 16, "depth": 2, "num_heads": 2}
IMAGES = torch.zeros(3, 1, 16, 16)


@pytest.fixture
def module() -> torch.nn.Module:
    return open_model("vit_tiny_patch16_224", "random", num_classes=4, **OPTIONS).module


def test_a_sound_step_has_none(module: torch.nn.Module) -> None:
    assert first_bad_tensor(module, IMAGES) is None
    assert not module._forward_hooks


def test_bad_images_are_counted_out(module: torch.nn.Module) -> None:
    images = IMAGES.clone()
    images[1, 0, 3, 3] = float("inf")
    assert first_bad_tensor(module, images) == "the images of the batch (number 1 in it)"


def test_bad_weights_are_named(module: torch.nn.Module) -> None:
    with torch.no_grad():
        module.blocks[1].mlp.fc1.weight[0, 0] = float("nan")
    assert "blocks.1.mlp.fc1.weight" in str(first_bad_tensor(module, IMAGES))


def test_an_overflow_is_found_where_it_happens(module: torch.nn.Module) -> None:
    with torch.no_grad():
        module.blocks[0].mlp.fc2.weight.fill_(3e38)
        module.blocks[0].mlp.fc1.bias.fill_(30.0)
    assert first_bad_tensor(module, IMAGES) == "the output of blocks.0.mlp.fc2"
