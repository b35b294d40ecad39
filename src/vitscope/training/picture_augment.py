"""Random changes of single pictures, all of them timm's and torchvision's: crops, RandAugment, random erasing.

They draw from the global generators. `train_batches` seeds those for each picture from (seed, epoch, picture) and puts
them back afterwards, so what is drawn does not depend on workers, processes or a resume.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import Tensor

from vitscope.data.transforms import apply, build_transform, normalise, plan
from vitscope.errors import VitscopeError
from vitscope.models.preprocessing import Preprocess

if TYPE_CHECKING:
    from vitscope.training.options import TrainOptions


def picture_augmentation(options: TrainOptions, preprocess: Preprocess) -> PictureAugmentation | None:
    """What the options ask for, or None where pictures go in as they are (and may stay in memory)."""
    if options.augment not in ("crop", "resized") and not (options.randaugment or options.erase):
        return None
    return PictureAugmentation(preprocess, options.augment, options.randaugment, options.erase)


class PictureAugmentation:
    """A picture -> the augmented, normalised tensor (C, H, W). It can be sent to the processes that read.

    `resized` cuts out 8 to 100 % of the area with timm's RandomResizedCrop and mirrors half of the pictures, as models
    of ImageNet learn; `crop` pads an eighth of the side, cuts the size out again and mirrors, as is usual for CIFAR;
    any other name takes the cut that evaluation takes.
    """

    def __init__(self, preprocess: Preprocess, augment: str, randaugment: str, erase: float) -> None:
        from timm.data.random_erasing import RandomErasing
        from timm.data.transforms import RandomResizedCropAndInterpolation
        from torchvision.transforms import RandomCrop, RandomHorizontalFlip

        self.transform, self.preprocess = build_transform(preprocess), preprocess
        size = preprocess.input_size[1:]  # (H, W)
        self.steps: list[Any] = []
        if augment == "resized":
            self.steps.append(RandomResizedCropAndInterpolation(size, interpolation=preprocess.interpolation))
        else:
            self.steps.append(self._centre)
        if augment == "crop":
            self.steps.append(RandomCrop(size, padding=max(1, min(size) // 8)))
        if augment in ("crop", "resized"):
            self.steps.append(RandomHorizontalFlip())
        if randaugment:
            self.steps.append(_rand_augment(randaugment, preprocess))
        # a box of normal noise, after normalisation, as DeiT has it
        self.erase = RandomErasing(erase, mode="pixel", max_count=1, device="cpu") if erase else None

    def __call__(self, picture: Image.Image, generator: torch.Generator) -> Tensor:
        picture = picture.convert("RGB")  # RandAugment's colours want three channels
        for step in self.steps:
            picture = step(picture)
        x = normalise(picture.convert(self.transform.mode), self.transform.mean, self.transform.std)  # (C, H, W)
        return x if self.erase is None else self.erase(x)

    def _centre(self, picture: Image.Image) -> Image.Image:
        geometry = plan((picture.height, picture.width), self.preprocess)
        return apply(picture, geometry, self.transform.resample, 0)


def _rand_augment(config: str, preprocess: Preprocess) -> Any:
    from timm.data.auto_augment import posterize, rand_augment_transform
    from timm.data.transforms import str_to_pil_interp

    mean = preprocess.mean if len(preprocess.mean) == 3 else preprocess.mean[:1] * 3
    settings = {
        "translate_const": int(min(preprocess.input_size[1:]) * 0.45),
        "img_mean": tuple(min(255, round(255 * value)) for value in mean),
        "interpolation": str_to_pil_interp(preprocess.interpolation),
    }
    try:
        if not config.startswith("rand"):
            raise ValueError("it must begin with 'rand'")
        transform = rand_augment_transform(config, settings)
    except (AssertionError, ValueError, KeyError, NotImplementedError) as error:
        raise VitscopeError(
            f"randaugment={config!r} cannot be read ({error}): timm writes it as in 'rand-m9-mstd0.5-inc1'."
        ) from error
    for op in transform.ops:
        if op.aug_fn is posterize:
            op.aug_fn = _posterize
    return transform


def _posterize(picture: Image.Image, bits: int, **_: Any) -> Image.Image:
    """timm asks for 0 bits at the highest magnitude. Pillow used to answer with black; today it refuses."""
    from timm.data.auto_augment import posterize

    return posterize(picture, bits) if bits >= 1 else Image.new(picture.mode, picture.size)
