"""The corruptions of ImageNet-C for any picture: `corrupt(pixels, "fog", 3, seeds)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitscope.lazy import lazy

if TYPE_CHECKING:
    from vitscope.robustness.corruptions.names import COMMON as COMMON
    from vitscope.robustness.corruptions.names import SEVERITIES as SEVERITIES
    from vitscope.robustness.corruptions.names import list_corruptions as list_corruptions
    from vitscope.robustness.corruptions.names import parse_corruptions as parse_corruptions
    from vitscope.robustness.corruptions.names import parse_severities as parse_severities
    from vitscope.robustness.corruptions.registry import corrupt as corrupt
    from vitscope.robustness.corruptions.registry import image_seed as image_seed
    from vitscope.robustness.corruptions.registry import register_corruption as register_corruption

__getattr__, __dir__, __all__ = lazy(__name__)
