"""The batched corruptions against the published functions, picture by picture."""

import numpy as np
import pytest
import torch

from vitscope.robustness.corruptions import SEVERITIES, corrupt
from vitscope.robustness.corruptions.batched import NAMES, disk

imagecorruptions = pytest.importorskip("imagecorruptions", reason="needs vitscope[corruptions]")


def pictures() -> torch.Tensor:
    """Three pictures (3, 3, 40, 52): noise, a colour gradient with black and white corners, flat grey."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (40, 52, 3), dtype=np.uint8)
    y, x = np.mgrid[0:40, 0:52]
    gradient = np.stack([y * 6, x * 4, (x + y) * 2], axis=-1).astype(np.uint8)
    gradient[:4, :4], gradient[-4:, -4:] = 0, 255
    flat = np.full((40, 52, 3), 97, dtype=np.uint8)
    return torch.from_numpy(np.stack([noise, gradient, flat])).permute(0, 3, 1, 2).contiguous()


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("name", NAMES)
def test_a_batched_corruption_is_the_published_one_to_the_last_grey_level_or_one_beside_it(name, severity):
    x, seeds = pictures(), [11, 12, 13]
    ours = corrupt(x, name, severity, seeds)
    state = np.random.get_state()
    for picture, seed, result in zip(x, seeds, ours):
        np.random.seed(seed)
        own = {"seed": seed} if name == "impulse_noise" else {}
        array = picture.permute(1, 2, 0).numpy()
        theirs = imagecorruptions.corrupt(array, severity=severity, corruption_name=name, **own)
        difference = np.abs(result.permute(1, 2, 0).numpy().astype(int) - theirs.astype(int))
        assert difference.max() <= 1
        if seed == 11:  # the others lie on grey levels, where the last digit decides everywhere
            assert (difference > 0).mean() < 0.1
    np.random.set_state(state)
    assert not torch.equal(ours, x)


@pytest.mark.parametrize(("radius", "alias"), [(3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)])
def test_the_blurring_disk_is_the_published_kernel(radius, alias):
    theirs = imagecorruptions.corruptions.disk(radius=radius, alias_blur=alias)
    np.testing.assert_allclose(disk(radius, alias), theirs, atol=1e-7)
