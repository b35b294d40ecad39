"""How an image becomes a model's input. The recipe is data; `vitscope.data.transforms` carries it out."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Preprocess:
    """Resize, crop and normalise as the model's weights expect."""

    input_size: tuple[int, int, int]  # (channels, height, width) of the tensor that goes in
    mean: tuple[float, ...]  # one per channel, of pixels in [0, 1]
    std: tuple[float, ...]
    interpolation: str = "bicubic"  # 'bilinear', 'bicubic', 'nearest', 'lanczos'
    crop_pct: float = 1.0  # the short side is resized to size / crop_pct before the centre crop
    crop_mode: str = "center"  # timm's: 'center' (short side), 'squash' (both sides), 'border' (long side, padded)
    # ... or 'short': the short side becomes that of the input, and nothing is cut off
    source: str = ""  # where these values come from, e.g. the timm tag; shown in the report

    def whole(self) -> Preprocess:
        """The same without a crop: the short side becomes that of the input, and all of the picture goes in."""
        return self if self.crop_mode == "short" else replace(self, crop_mode="short", crop_pct=1.0)

    def to_dict(self) -> dict[str, Any]:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> Preprocess:
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in d.items()}
        return cls(**values)


UNTOUCHED = Preprocess((0, 0, 0), (), (), source="none: inputs go in as the data give them")


def from_timm(config: dict[str, Any], input_size: tuple[int, int, int], source: str) -> Preprocess:
    """The recipe in a timm `pretrained_cfg`, for the input size that the built model takes."""
    channels = input_size[0]

    def per_channel(values: tuple[float, ...]) -> tuple[float, ...]:
        # a model rebuilt for another number of channels (grey digits) gets the average of the tag's values
        return tuple(values) if len(values) == channels else (sum(values) / len(values),) * channels

    return Preprocess(
        input_size=input_size,
        mean=per_channel(config.get("mean", (0.485, 0.456, 0.406))),
        std=per_channel(config.get("std", (0.229, 0.224, 0.225))),
        interpolation=config.get("interpolation", "bicubic"),
        crop_pct=config.get("crop_pct", 0.875),
        crop_mode=config.get("crop_mode", "center"),
        source=source,
    )


def disagreement(architecture: str, taken: dict[str, Any]) -> str | None:
    """A sentence for a bare name whose tags want different mean/std; None where they all agree."""
    from timm.models import get_pretrained_cfg, list_pretrained

    others = {}
    for tag in list_pretrained(f"{architecture}.*"):
        other = get_pretrained_cfg(tag)
        if other is not None and (other.mean, other.std) != (taken.get("mean"), taken.get("std")):
            others[tag.split(".", 1)[1]] = other.mean
    if not others:
        return None
    names = ", ".join(list(others)[:4]) + (", ..." if len(others) > 4 else "")
    return (
        f"The tags of {architecture} disagree on mean/std: took those of '{taken.get('tag')}' "
        f"(mean {taken.get('mean')}); "
        f"{names} use others. Name a tag, as in {architecture}.{next(iter(others))}, to choose."
    )
