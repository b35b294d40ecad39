"""What a segmentation learns from: pieces of pictures with their label maps."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from vitscope.data.segmentation.dataset import SegmentationData
from vitscope.data.segmentation.joint import Joint, JointOptions
from vitscope.errors import VitscopeError, suggest
from vitscope.models.preprocessing import Preprocess
from vitscope.training.lesson import OF_PICTURES, given_of
from vitscope.training.options import TrainOptions


def joint_augmentation(options: TrainOptions, data: Any, preprocess: Preprocess) -> Joint | None:
    """Drawn pieces for augment='joint', the middle of each picture for 'none'; None for data without label maps."""
    joint = options.augment == "joint"
    if not isinstance(data, SegmentationData):
        if joint:
            raise VitscopeError(
                f"augment='joint' moves label maps along, and {data.name} has none: choose another (--augment)."
            )
        return None
    if left := [name for name in given_of(options, OF_PICTURES) if name != "augment" or not joint]:
        raise VitscopeError(f"{left[0]} would leave label maps as they are: --augment joint moves them along.")
    if options.repeats > 1:
        raise VitscopeError("repeats is for pictures with one class each: leave it out.")
    if not joint:
        return Joint(preprocess)
    known = [f.name for f in fields(JointOptions)]
    for name, value in options.augment_options.items():
        if name not in known:
            near = suggest(name, known)
            raise VitscopeError(f"augment_options: there is no {name!r}.{near} Known: {', '.join(known)}.")
        if not isinstance(value, int | float):
            raise VitscopeError(f"augment_options: {name}={value!r} is no number.")
    return Joint(preprocess, JointOptions(**options.augment_options))
