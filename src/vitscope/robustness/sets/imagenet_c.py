"""ImageNet-C: <corruption>/<severity>/<WordNet id>/*.JPEG, perhaps below the names of its archives (noise, blur, ...).

Hendrycks & Dietterich, ICLR 2019. The pictures are distributed resized and cropped to 224 x 224, so they are resized to
the model's input where that is another size, and never cropped again.
"""

from __future__ import annotations

from pathlib import Path

from vitscope.data.folders import subfolders
from vitscope.errors import DataError
from vitscope.robustness.condition import Condition
from vitscope.robustness.corruptions.names import COMMON
from vitscope.robustness.sets.folders import read_set, wordnet_classes
from vitscope.robustness.sets.registry import SetOptions, register_set


@register_set("C", "ImageNet-C")
def imagenet_c(folder: Path, options: SetOptions) -> list[Condition]:
    inside = subfolders(folder, [])
    below = {d.name: d for parent in (*inside, folder) for d in subfolders(parent, [])}  # folder's own names win
    wanted = [(name, severity) for name in options.corruptions for severity in options.severities]
    places = {(name, s): below.get(name, folder / name) / str(s) for name, s in wanted}
    missing = [key for key, place in places.items() if not place.is_dir()]
    if missing:
        raise DataError(_missing(folder, missing, {n for n in below if n in COMMON}))
    conditions = []
    for (name, severity), place in places.items():
        wordnet_classes(place, "ImageNet-C")
        conditions.append(Condition("C", read_set(place, options), name, severity, cropped=True))
    return conditions


def _missing(folder: Path, missing: list[tuple[str, int]], present: set[str]) -> str:
    names = list(dict.fromkeys(name for name, _ in missing if name not in present))
    if not names:
        lack = ", ".join(f"{name}/{severity}" for name, severity in missing[:5])
        return f"{folder} lacks {lack} of ImageNet-C. Unpack it, or read fewer severities with --severities 1-3."
    have = ",".join(name for name in COMMON if name in present)
    hint = f", or read those that are there with --c-corruptions {have} (mCE needs all 15)" if have else ""
    return (
        f"{folder} lacks {len(names)} corruption folder(s) of ImageNet-C: {', '.join(names)}. Expected "
        f"<corruption>/<severity>/<WordNet id>/*.JPEG, as in the archives. Unpack the missing ones{hint}."
    )
