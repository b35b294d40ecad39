from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from vitscope.data.batch import CONTEXT, IGNORED, OBJECT
from vitscope.data.masks import as_mask, ink, resized, to_tokens_nearest, token_share
from vitscope.errors import DataError


def random_masks(height: int, width: int) -> torch.Tensor:
    values = np.random.default_rng(0).choice([CONTEXT, OBJECT, IGNORED], (3, height, width), p=[0.5, 0.4, 0.1])
    return torch.from_numpy(values.astype(np.uint8))


@pytest.mark.parametrize(
    ("size", "grid"), [((224, 224), (14, 14)), ((28, 28), (4, 4)), ((30, 50), (3, 7)), ((9, 9), (2, 4))]
)
def test_nearest_is_the_pixel_at_the_centre_of_the_patch(size: tuple[int, int], grid: tuple[int, int]) -> None:
    masks = random_masks(*size)
    oracle = torch.nn.functional.interpolate(masks[:, None].float(), grid, mode="nearest-exact")[:, 0].flatten(1)
    assert torch.equal(to_tokens_nearest(masks, grid).float(), oracle)


@pytest.mark.parametrize(("size", "grid"), [((224, 224), (14, 14)), ((30, 50), (3, 7)), ((9, 11), (2, 4))])
def test_corner_is_the_upper_left_pixel_of_the_patch(size: tuple[int, int], grid: tuple[int, int]) -> None:
    masks = random_masks(*size)
    oracle = torch.nn.functional.interpolate(masks[:, None].float(), grid, mode="nearest")[:, 0].flatten(1)
    assert torch.equal(to_tokens_nearest(masks, grid, "corner").float(), oracle)
    with pytest.raises(DataError, match="Did you mean corner"):
        to_tokens_nearest(masks, grid, "korner")


@pytest.mark.parametrize("size", [(375, 500), (100, 90)])
def test_a_mask_that_is_resized_first_has_the_corners_of_the_whole_mask(size: tuple[int, int]) -> None:
    whole = random_masks(*size)[:1]
    small = np.asarray(resized(Image.fromarray(whole[0].numpy()), (224, 224), "corner"))
    seen = to_tokens_nearest(torch.from_numpy(small.copy())[None], (14, 14), "corner")
    assert torch.equal(seen, to_tokens_nearest(whole, (14, 14), "corner"))


def test_tokens_run_row_by_row() -> None:
    masks = torch.zeros(1, 4, 6, dtype=torch.uint8)
    masks[0, :2, 4:] = OBJECT  # the last patch of the first row
    assert to_tokens_nearest(masks, (2, 3)).tolist() == [[0, 0, 1, 0, 0, 0]]
    assert token_share(masks, (2, 3)).tolist() == [[0, 0, 1, 0, 0, 0]]


def test_share_counts_object_pixels_among_those_not_ignored() -> None:
    masks = random_masks(28, 28)
    share = token_share(masks, (4, 4)).reshape(3, 4, 4)
    for b in range(3):
        for row in range(4):
            for column in range(4):
                patch = masks[b, 7 * row : 7 * row + 7, 7 * column : 7 * column + 7]
                expected = (patch == OBJECT).sum() / (patch != IGNORED).sum()
                assert share[b, row, column] == pytest.approx(expected.item(), abs=1e-6)


def test_patches_off_the_pixel_grid_weigh_by_area() -> None:
    masks = torch.zeros(1, 3, 3, dtype=torch.uint8)
    masks[0, :, 1] = OBJECT  # the middle column belongs half to each of two patches
    assert token_share(masks, (1, 2))[0].tolist() == pytest.approx([1 / 3, 1 / 3])
    fine = masks.repeat_interleave(2, 1).repeat_interleave(2, 2)  # the same picture, where patches fall on pixels
    assert torch.allclose(token_share(masks, (2, 2)), token_share(fine, (2, 2)))


def test_a_patch_of_ignored_pixels_has_no_share() -> None:
    masks = torch.full((1, 4, 4), IGNORED, dtype=torch.uint8)
    masks[0, :2, :2] = OBJECT
    assert token_share(masks, (2, 2))[0, 0] == 1
    assert token_share(masks, (2, 2))[0, 1:].isnan().all()
    assert to_tokens_nearest(masks, (2, 2)).tolist() == [[OBJECT, IGNORED, IGNORED, IGNORED]]


def test_ink_is_whatever_is_not_black() -> None:
    assert np.asarray(ink(Image.fromarray(np.array([[0, 1], [128, 255]], np.uint8)))).tolist() == [[0, 1], [1, 1]]


@pytest.mark.parametrize(
    "mask", [np.array([[True, False]]), Image.fromarray(np.array([[True, False]])), np.array([[1, 0]])]
)
def test_one_bit_masks_mean_object_where_true(mask: object) -> None:
    assert np.asarray(as_mask(mask, (2, 1), "a.png")).tolist() == [[OBJECT, CONTEXT]]


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (np.zeros((2, 3), np.uint8), "is 3 x 2 pixels, the image 2 x 2"),
        (np.full((2, 2), 7, np.uint8), r"holds \[7\]"),
        (np.arange(12, dtype=np.uint8).reshape(2, 2, 3), "its mask is in colour; expected one value per pixel"),
        (np.zeros((2, 2, 4), np.uint8), "its mask is partly transparent; .*--mask-decoding alpha"),
    ],
)
def test_masks_that_do_not_fit_say_why(mask: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        as_mask(mask, (2, 2), "a.png")
    assert "a.png" in str(caught.value)
