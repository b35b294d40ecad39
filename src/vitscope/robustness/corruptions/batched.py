"""The corruptions that are plain tensor algebra, for a whole batch at once, on any device.

Each gives the pictures of `imagecorruptions` to the last grey level or one beside it (its result is cut off to eight
bits, so a difference in the last float digit can cost one). The random draws are numpy's, one stream per picture, so
that they are the published ones for the same seed; all algebra around them is batched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitscope.robustness.corruptions.registry import register_corruption

NAMES = ("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "brightness", "contrast")


@register_corruption("gaussian_noise")
def gaussian_noise(pixels: Tensor, severity: int, seeds: Sequence[int]) -> Tensor:
    """x + sigma n, n standard normal."""
    sigma = (0.08, 0.12, 0.18, 0.26, 0.38)[severity - 1]
    return _eight_bits(_unit(pixels) + _draw(pixels, seeds, lambda rng, x: rng.normal(size=x.shape, scale=sigma)))


@register_corruption("shot_noise")
def shot_noise(pixels: Tensor, severity: int, seeds: Sequence[int]) -> Tensor:
    """Poisson(c x) / c: photons counted in low light."""
    photons = (60, 25, 12, 5, 3)[severity - 1]
    return _eight_bits(_draw(pixels, seeds, lambda rng, x: rng.poisson(x / 255.0 * photons)) / photons)


@register_corruption("impulse_noise")
def impulse_noise(pixels: Tensor, severity: int, seeds: Sequence[int]) -> Tensor:
    """A share of the values becomes 0 or 1, each with probability 1/2."""
    share = (0.03, 0.06, 0.09, 0.17, 0.27)[severity - 1]

    def impulses(seed: int, shape: tuple[int, ...]) -> np.ndarray:
        rng = np.random.default_rng(seed)
        flipped, salted = rng.random(shape) <= share, rng.random(shape) <= 0.5
        return np.where(flipped, salted.astype(np.int8), np.int8(-1))  # 0 pepper, 1 salt, -1 as it was

    shape = (*pixels.shape[2:], pixels.shape[1])  # (H, W, C): the order in which the published code draws
    hit = torch.from_numpy(np.stack([impulses(seed, shape) for seed in seeds])).permute(0, 3, 1, 2).to(pixels.device)
    return torch.where(hit < 0, pixels, (255 * hit.clamp_min(0)).to(torch.uint8))


@register_corruption("defocus_blur")
def defocus_blur(pixels: Tensor, severity: int, seeds: Sequence[int]) -> Tensor:
    """Convolution with a disk whose rim is smoothed a little, borders mirrored. By FFT: the kernel is up to 21 wide."""
    radius, alias = ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))[severity - 1]
    kernel = torch.from_numpy(disk(radius, alias)).to(pixels.device)  # symmetric: convolution is correlation
    reach = kernel.shape[0] - 1
    x = F.pad(_unit(pixels, torch.float32), (reach // 2,) * 4, mode="reflect")  # (B, 3, H + reach, W + reach)
    size = tuple(x.shape[2:])
    blurred = torch.fft.irfft2(torch.fft.rfft2(x) * torch.fft.rfft2(kernel, s=size), s=size)
    return _eight_bits(blurred[..., reach:, reach:])


@register_corruption("brightness")
def brightness(pixels: Tensor, severity: int, seeds: Sequence[int]) -> Tensor:
    """Raise the V of HSV: hue and saturation stay if all three channels grow by the same factor."""
    x = _unit(pixels)
    value = x.amax(1, keepdim=True)  # (B, 1, H, W)
    raised = (value + severity / 10).clamp(max=1)
    return _eight_bits(torch.where(value > 0, x * (raised / value.clamp_min(1 / 255)), raised))


@register_corruption("contrast")
def contrast(pixels: Tensor, severity: int, seeds: Sequence[int]) -> Tensor:
    """Pull every channel towards its mean over the picture."""
    factor = (0.4, 0.3, 0.2, 0.1, 0.05)[severity - 1]
    x = _unit(pixels)
    mean = x.mean((2, 3), keepdim=True)
    return _eight_bits((x - mean) * factor + mean)


def disk(radius: int, alias: float) -> np.ndarray:
    """A disk that sums to 1, smoothed by a Gaussian of 3 or 5 taps with mirrored borders: (k, k) float32."""
    from scipy.ndimage import correlate1d

    reach = max(8, radius)
    line = np.arange(-reach, reach + 1)
    inside = (line[:, None] ** 2 + line[None] ** 2 <= radius**2).astype(np.float32)
    taps = np.arange(-1, 2) if radius <= 8 else np.arange(-2, 3)
    gauss = np.exp(-(taps**2) / (2 * alias**2))
    kernel = inside / inside.sum()
    for axis in (0, 1):
        kernel = correlate1d(kernel, gauss / gauss.sum(), axis=axis, mode="mirror")
    return kernel.astype(np.float32)


def _unit(pixels: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    return pixels.to(dtype) / 255


def _eight_bits(x: Tensor) -> Tensor:
    """Clipped to [0, 1] and cut off (not rounded) to eight bits, as published."""
    return (x.clamp(0, 1) * 255).to(torch.uint8)


def _draw(
    pixels: Tensor, seeds: Sequence[int], drawn: Callable[[np.random.RandomState, np.ndarray], np.ndarray]
) -> Tensor:
    """Numbers of each picture from its own legacy numpy stream, drawn in the order (H, W, C): (B, C, H, W) float64."""
    x = pixels.permute(0, 2, 3, 1).cpu().numpy()
    draws = np.stack([drawn(np.random.RandomState(seed), picture) for seed, picture in zip(seeds, x)])
    return torch.from_numpy(draws.astype(np.float64)).permute(0, 3, 1, 2).to(pixels.device)
