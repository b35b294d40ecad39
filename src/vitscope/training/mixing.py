"""Mixup and cutmix, timm's: pictures and labels of a batch blended with those of the same batch in reverse order.

timm draws from NumPy's global generator, which the loop seeds for each step from (seed, step, process).
"""

from __future__ import annotations

from torch import Tensor

from vitscope.training.options import TrainOptions


class Mixing:
    """`mixing(images, labels) -> (images, targets)`; without mixup and cutmix both come back as they are."""

    def __init__(self, options: TrainOptions, classes: int) -> None:
        self.on = bool(options.mixup or options.cutmix or options.cutmix_minmax)
        if self.on:
            from timm.data import Mixup

            self._mixup = Mixup(
                mixup_alpha=options.mixup,
                cutmix_alpha=options.cutmix,
                cutmix_minmax=options.cutmix_minmax or None,
                prob=options.mixup_prob,
                switch_prob=options.mixup_switch_prob,
                mode=options.mixup_mode,
                label_smoothing=options.smoothing,
                num_classes=classes,
            )

    def __call__(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C, H, W), (B,) -> (B, C, H, W), (B, classes). Of an odd batch one picture waits: timm wants pairs."""
        if not self.on:
            return images, labels
        if len(images) % 2:
            from timm.data.mixup import mixup_target

            if len(images) == 1:
                return images, mixup_target(labels, self._mixup.num_classes, 1.0, self._mixup.label_smoothing)
            images, labels = images[:-1], labels[:-1]
        return self._mixup(images.clone(), labels)  # timm mixes in place


def answers(targets: Tensor) -> Tensor:
    """The label of each image, (B,); of a mixed image that of the larger part."""
    return targets if targets.ndim == 1 else targets.argmax(1)
