"""Pictures through windows: against every pixel's own average, and at the borders of what is possible."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vitscope.errors import UnsupportedModelError, VitscopeError
from vitscope.models import Model, open_model
from vitscope.models.windows import slide, window_starts


def tiny(**options: object) -> Model:
    sizes = {"image_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 1, "num_heads": 2}
    return open_model("segmenter", "random", num_classes=3, decoder="mask", decoder_heads=2, **sizes, **options)


def pictures(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
@pytest.mark.parametrize(
    ("size", "stride", "at_a_time"),
    [
        ((37, 50), (16, 16), 1),
        ((37, 50), (16, 16), 5),
        ((30, 40), (5, 11), 7),
        ((16, 33), (16, 7), 1000),
        ((32, 32), (16, 16), 3),
    ],
)
def test_each_pixel_is_the_mean_of_the_windows_that_it_lies_in(
    size: tuple[int, int], stride: tuple[int, int], at_a_time: int
) -> None:
    model, images = tiny(), pictures(2, 3, *size)
    model.module.double()
    images = images.double()
    seen = slide(model.module.whole, images, (16, 16), stride, at_a_time)
    starts = [{*range(0, max(side - 16, 0), step), side - 16} for side, step in zip(size, stride)]
    sums, counts = torch.zeros_like(seen), torch.zeros(size, dtype=torch.float64)
    for top in starts[0]:
        for left in starts[1]:
            window = slice(None), slice(None), slice(top, top + 16), slice(left, left + 16)
            sums[window] += model(images[window])
            counts[window[2:]] += 1
    assert counts.min() == 1 or stride != (16, 16)
    assert torch.allclose(seen, sums / counts, rtol=0, atol=1e-12)


def test_windows_begin_every_stride_and_the_last_is_flush_with_the_edge() -> None:
    assert window_starts(1024, 512, 512) == [0, 512]
    assert window_starts(683, 512, 512) == [0, 171]
    assert window_starts(1100, 512, 341) == [0, 341, 588]
    assert window_starts(512, 512, 512) == [0]
    assert window_starts(300, 512, 512) == [0]


@torch.no_grad()
def test_one_window_is_the_plain_forward_pass() -> None:
    whole, through = tiny(), tiny(window=16)
    images = pictures(3, 3, 16, 16)
    assert torch.equal(through(images), whole(images))


@torch.no_grad()
def test_a_picture_smaller_than_the_window_is_padded_to_it() -> None:
    whole, through = tiny(), tiny(window=16)
    images = pictures(2, 3, 10, 13)
    padded = torch.nn.functional.pad(images, (0, 3, 0, 6))
    assert torch.equal(through(images), whole(padded)[..., :10, :13])
    wide = pictures(1, 3, 10, 24)  # too small in one direction only
    padded = torch.nn.functional.pad(wide, (0, 0, 0, 6))
    assert torch.equal(through(wide), through(padded)[..., :10, :])


def test_a_training_looks_at_its_crops_as_a_whole() -> None:
    whole, through = tiny(decoder_dropout=0.0), tiny(decoder_dropout=0.0, window=16)
    images = pictures(1, 3, 24, 24)
    whole.module.train()
    through.module.train()
    assert torch.equal(through(images), whole(images))


def test_gradients_pass_through_windows() -> None:
    """An attack on the pixels of a picture that is looked at in parts."""
    model, images = tiny(window=16, stride=8), pictures(1, 3, 24, 20).requires_grad_()
    model(images).square().sum().backward()
    assert images.grad is not None
    assert bool((images.grad.abs().sum(1) > 0).all())


def test_points_of_a_picture_in_several_windows_are_refused() -> None:
    model = tiny(window=16, stride=8)
    assert model.module.looks(pictures(1, 3, 24, 20)) == 4
    with pytest.raises(UnsupportedModelError, match="through 4 windows each"):
        model.run_with_cache(pictures(1, 3, 24, 20), "blocks.0.hook_resid_post")
    _, cache = model.run_with_cache(pictures(1, 3, 16, 16), "blocks.0.hook_resid_post")
    assert cache["blocks.0.hook_resid_post"].shape == (1, 5, 24)


def test_windows_that_would_leave_pixels_out_are_refused() -> None:
    with pytest.raises(VitscopeError, match="every 17 pixels"):
        slide(lambda x: x, pictures(1, 3, 40, 40), (16, 16), (16, 17), 8)
