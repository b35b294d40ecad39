"""The corruptions of ImageNet-C for any picture: `corrupt(pixels, "fog", 3, seeds)`."""

from vitscope.robustness.corruptions.registry import (
    COMMON,
    SEVERITIES,
    corrupt,
    image_seed,
    list_corruptions,
    parse_corruptions,
    parse_severities,
    register_corruption,
)

__all__ = [
    "COMMON",
    "SEVERITIES",
    "corrupt",
    "image_seed",
    "list_corruptions",
    "parse_corruptions",
    "parse_severities",
    "register_corruption",
]
