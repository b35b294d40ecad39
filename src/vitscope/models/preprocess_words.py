"""`--preprocess`: another preprocessing than a model's own, in words: 'reproduction', or 'squash,mean=0.5,std=0.5'.

Words are taken from left to right, each over what was said before it: 'reproduction,interpolation=bicubic'.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vitscope.errors import VitscopeError, suggest
from vitscope.models.preprocessing import Preprocess

_IMAGENET = "mean=0.485/0.456/0.406,std=0.229/0.224/0.225"
# What the studies' programs do to a picture, read off their code.
PRESETS: Mapping[str, str] = {
    "reproduction": f"squash,crop=1,interpolation=bilinear,{_IMAGENET}",
    "rpc": f"center,resize=256,interpolation=bicubic,{_IMAGENET}",
    "class-embedding": "squash,crop=1,interpolation=bilinear,mean=0.5,std=0.5",
    "class-embedding-refinement": f"squash,resize=256,interpolation=bicubic,{_IMAGENET}",
    "cifar": "squash,crop=1,interpolation=bilinear,mean=0.5,std=0.5",
    "separation": "center,crop=1,mean=0.1307,std=0.3081",
}
_MODES = ("center", "squash", "border", "short")
_KEYS = ("resize", "crop", "interpolation", "mean", "std")
_INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "box", "hamming", "lanczos")
_MARK = "--preprocess "


def check_words(text: str) -> None:
    """Refuse words that mean nothing, without a model."""
    for key, value in _pairs(text):
        if key == "mode":
            continue
        if key == "interpolation":
            if value not in _INTERPOLATIONS:
                raise VitscopeError(
                    f"--preprocess {text}: there is no interpolation {value!r}.{suggest(value, _INTERPOLATIONS)} "
                    f"Known: {', '.join(_INTERPOLATIONS)}."
                )
        else:
            _numbers(text, key, value)


def preprocess_in_words(own: Preprocess, text: str) -> Preprocess:
    """A model's own preprocessing with what the words change; `source` keeps the words."""
    check_words(text)
    changes: dict[str, Any] = {}
    channels, height = own.input_size[:2]
    for key, value in _pairs(text):
        if key == "mode":
            changes["crop_mode"] = value
        elif key == "interpolation":
            changes["interpolation"] = value
        elif key == "crop":
            changes["crop_pct"] = _numbers(text, key, value)[0]
        elif key == "resize":
            changes["crop_pct"] = _share(height, int(_numbers(text, key, value)[0]))
        else:
            given = _numbers(text, key, value)
            if len(given) not in (1, channels):
                raise VitscopeError(
                    f"--preprocess {text}: {key} has {len(given)} values, the model {channels} channels."
                )
            changes[key] = given * channels if len(given) == 1 else given
    return replace(own, **changes, source=_MARK + text)


def words_of(source: str) -> str | None:
    """The words that made a saved preprocessing; None where it is the model's own."""
    return source.removeprefix(_MARK) if source.startswith(_MARK) else None


def _pairs(text: str) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for word in (part.strip() for part in text.split(",")):
        key, equals, value = (part.strip() for part in word.partition("="))
        if word in PRESETS:
            pairs += _pairs(PRESETS[word])
        elif word in _MODES:
            pairs.append(("mode", word))
        elif equals and key in _KEYS:
            pairs.append((key, value))
        else:
            known = [*PRESETS, *_MODES, *(f"{k}=" for k in _KEYS)]
            near = suggest(f"{key}=" if equals else key, known)
            raise VitscopeError(
                f"--preprocess {text}: {word!r} means nothing.{near} Known: {', '.join(known)}, separated by commas; "
                "mean and std per channel as in mean=0.485/0.456/0.406."
            )
    return pairs


def _numbers(text: str, key: str, value: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(part) for part in value.split("/"))
    except ValueError:
        numbers = (math.nan,)
    single = key in ("resize", "crop")
    fits = (
        all(map(math.isfinite, numbers)) and (key == "mean" or min(numbers) > 0) and not (single and len(numbers) > 1)
    )
    if not fits or (key == "resize" and numbers[0] != int(numbers[0])):
        expected = {
            "resize": "whole pixels, as in resize=256",
            "crop": "the share of the resized side that is kept, as in crop=0.875",
            "mean": "numbers, one or one per channel, as in mean=0.485/0.456/0.406",
            "std": "positive numbers, one or one per channel, as in std=0.229/0.224/0.225",
        }[key]
        raise VitscopeError(f"--preprocess {text}: {key}={value} is not {expected}.")
    return numbers


def _share(size: int, resized: int) -> float:
    """The `crop_pct` with which a side of `size` is cut out of one of `resized` pixels: floor(size / it) == resized."""
    share = size / resized
    return share if math.floor(size / share) == resized else size / (resized + 0.5)
