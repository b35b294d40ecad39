"""Corruptions and severities as people name them, read without PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

from vitscope.errors import VitscopeError, suggest
from vitscope.registry import CORRUPTIONS

FAMILIES = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}
COMMON = tuple(name for names in FAMILIES.values() for name in names)  # the fifteen behind mCE
SEVERITIES = (1, 2, 3, 4, 5)


def list_corruptions() -> list[str]:
    """The fifteen in their usual order, then those that were registered beside them."""
    return [*COMMON, *(name for name in CORRUPTIONS.names() if name not in COMMON)]


def parse_corruptions(words: str | Sequence[str]) -> tuple[str, ...]:
    """'all', names and families (noise, blur, weather, digital), separated by commas -> names in their order.

    One's own may be named by its address, `package.module:function`.
    """
    words = [words] if isinstance(words, str) else words
    asked = [part.strip() for word in words for part in word.split(",") if part.strip()]
    known = list_corruptions()
    chosen: set[str] = set()
    for word in asked:
        if ":" in word:
            word = CORRUPTIONS.resolve(word)[0]
            known = list_corruptions()
        if word not in ("all", *FAMILIES, *known):
            words = ["all", *FAMILIES, *known]
            raise VitscopeError(f"There is no corruption {word!r}.{suggest(word, words)} Known: {', '.join(words)}.")
        chosen |= set(COMMON if word == "all" else FAMILIES.get(word, (word,)))
    return tuple(name for name in known if name in chosen)


def parse_severities(words: str | Sequence[str | int]) -> tuple[int, ...]:
    """'1,3-5' -> (1, 3, 4, 5)"""
    words = [words] if isinstance(words, str) else words
    found: set[int] = set()
    for part in (part.strip() for word in words for part in str(word).split(",") if part.strip()):
        low, dash, high = part.partition("-")
        ends = [low, high if dash else low]
        if not all(end.isdigit() and int(end) in SEVERITIES for end in ends):
            raise VitscopeError(f"Severities are numbers from 1 to 5, such as 1,3,5 or 2-4, not {part!r}.")
        found |= set(range(int(ends[0]), int(ends[1]) + 1))
    if not found:
        raise VitscopeError("No severity is given: type --severities 1-5, or leave it out.")
    return tuple(sorted(found))
