"""How an image becomes a model's input. The recipe is data; `vitscope.data.transforms` carries it out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
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
    source: str = ""  # where these values come from, e.g. the timm tag; shown in the report

    def to_dict(self) -> dict[str, Any]:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> Preprocess:
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in d.items()})
