"""Random changes of single pictures, all of them timm's and torchvision's: crops, policies, colours, random erasing.

They draw from the global generators. `train_batches` seeds those for each picture from (seed, epoch, picture) and puts
them back afterwards, so what is drawn does not depend on workers, processes or a resume.
"""

from __future__ import annotations

from typing import Any

import torch
from PIL import Image
from torch import Tensor

from vitscope.data.transforms import apply, build_transform, normalise, plan
from vitscope.errors import VitscopeError
from vitscope.models.preprocessing import Preprocess
from vitscope.training.options import TrainOptions


def picture_augmentation(options: TrainOptions, preprocess: Preprocess) -> PictureAugmentation | None:
    """What the options ask for, or None where pictures go in as they are (and may stay in memory)."""
    return PictureAugmentation(preprocess, options) if options.changes_pictures else None


class PictureAugmentation:
    """A picture -> the augmented, normalised tensor (C, H, W). It can be sent to the processes that read.

    `resized` cuts out 8 to 100 % of the area with timm's RandomResizedCrop and mirrors half of the pictures, as models
    of ImageNet learn; `crop` pads an eighth of the side, cuts the size out again and mirrors, as is usual for CIFAR;
    any other name takes the cut that evaluation takes. Then a policy or colours, in timm's order, and the erasing.
    """

    def __init__(self, preprocess: Preprocess, changes: TrainOptions) -> None:
        from timm.data.random_erasing import RandomErasing
        from timm.data.transforms import RandomResizedCropAndInterpolation
        from torchvision.transforms import ColorJitter, RandomCrop, RandomHorizontalFlip

        self.transform, self.preprocess = build_transform(preprocess), preprocess
        size = preprocess.input_size[1:]  # (H, W)
        interpolation: str = changes.train_interpolation
        interpolation = preprocess.interpolation if interpolation == "model" else interpolation
        self.steps: list[Any] = []
        if changes.augment == "resized":
            self.steps.append(RandomResizedCropAndInterpolation(size, interpolation=interpolation))
        else:
            self.steps.append(self._centre)
        if changes.augment == "crop":
            self.steps.append(RandomCrop(size, padding=max(1, min(size) // 8)))
        if changes.augment in ("crop", "resized"):
            self.steps.append(RandomHorizontalFlip())
        policy = changes.randaugment or changes.auto_augment
        if policy:
            self.steps.append(build_policy(policy, bool(changes.randaugment), preprocess, interpolation))
        if changes.color_jitter and (not policy or "3a" in policy):  # timm's rule: the others change colours themselves
            self.steps.append(ColorJitter(*(changes.color_jitter,) * 3))  # no hue
        # after normalisation: noise of the pixels' own deviation, and 0 is the mean
        mode = {"mode": changes.erase_mode, "max_count": changes.erase_count}
        self.erase = RandomErasing(changes.erase, **mode, device="cpu") if changes.erase else None

    def __call__(self, picture: Image.Image, generator: torch.Generator) -> Tensor:
        picture = picture.convert("RGB")  # RandAugment's colours want three channels
        for step in self.steps:
            picture = step(picture)
        x = normalise(picture.convert(self.transform.mode), self.transform.mean, self.transform.std)  # (C, H, W)
        return x if self.erase is None else self.erase(x)

    def _centre(self, picture: Image.Image) -> Image.Image:
        geometry = plan((picture.height, picture.width), self.preprocess)
        return apply(picture, geometry, self.transform.resample, 0)


def build_policy(config: str, rand: bool, preprocess: Preprocess, interpolation: str) -> Any:
    """timm's RandAugment (`rand`), AutoAugment or AugMix, in timm's own notation and with its settings."""
    from timm.data import auto_augment as timms
    from timm.data.transforms import str_to_pil_interp

    mean = preprocess.mean if len(preprocess.mean) == 3 else preprocess.mean[:1] * 3
    settings: dict[str, Any] = {
        "translate_const": int(min(preprocess.input_size[1:]) * 0.45),
        "img_mean": tuple(min(255, round(255 * value)) for value in mean),
    }
    if interpolation != "random":
        settings["interpolation"] = str_to_pil_interp(interpolation)
    try:
        if rand and not config.startswith("rand"):
            raise ValueError("it must begin with 'rand'; other policies are for auto_augment")
        if config.startswith("rand"):
            transform: Any = timms.rand_augment_transform(config, settings)
        elif config.startswith("augmix"):
            transform = timms.augment_and_mix_transform(config, {**settings, "translate_pct": 0.3})
        else:
            transform = timms.auto_augment_transform(config, settings)
    except (AssertionError, ValueError, KeyError, IndexError, NotImplementedError) as error:
        option, example = ("randaugment", "rand-m9-mstd0.5-inc1") if rand else ("auto_augment", "original-mstd0.5")
        more = "" if rand else "; its policies are original, originalr, v0, v0r, 3a, and 'augmix-m3-w3'"
        raise VitscopeError(
            f"{option}={config!r} cannot be read ({error or type(error).__name__}): timm writes it as in "
            f"{example!r}{more}."
        ) from error
    for op in transform.ops if hasattr(transform, "ops") else [op for pair in transform.policy for op in pair]:
        if op.aug_fn is timms.posterize:
            op.aug_fn = _posterize
    return transform


def _posterize(picture: Image.Image, bits: int, **_: Any) -> Image.Image:
    """timm asks for 0 bits at the highest magnitude. Pillow used to answer with black; today it refuses."""
    from timm.data.auto_augment import posterize

    return posterize(picture, bits) if bits >= 1 else Image.new(picture.mode, picture.size)
