"""A few attacked pictures to look at: what was changed, and what the model says now."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from vitscope.runs.files import atomic_write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from vitscope.models.preprocessing import Preprocess
    from vitscope.robustness.attacks import Victims
    from vitscope.robustness.budgets import Sweep

TABLE = "attack_gallery"


def amplified(delta: Tensor) -> tuple[Tensor, float]:
    """A perturbation as a picture: grey where nothing changed, its largest change at full contrast; and the factor."""
    largest = float(delta.abs().max())
    factor = 0.5 / largest if largest > 0 else 1.0
    return (0.5 + factor * delta).clamp(0, 1), factor


def picture_names(image: int, attack: str) -> tuple[str, str]:
    """Files of an attacked picture and of its change, beside the thumbnails."""
    stem = f"{image}-{attack.replace(':', '-')}"
    return f"{stem}.png", f"{stem}-change.png"


def gallery_pictures(
    folder: Path,
    shown: Sequence[int],
    attack: str,
    done: Sweep,
    victims: Victims,
    preprocess: Preprocess,
    eps: Sequence[str],
    truth: Tensor,
    clean: Tensor,
    classes: Sequence[str],
) -> pd.DataFrame:
    """Write the pictures of the rows `shown` at the smallest epsilon that fooled (else the largest) -> their rows."""
    from vitscope.robustness.threat import channel_values

    def name(number: int) -> str:
        return str(classes[number]) if 0 <= number < len(classes) else f"class {number}"

    rows = []
    smallest = done.smallest().clamp(max=len(eps) - 1).tolist()
    for i in shown:
        image, e = int(victims.indices[i]), int(smallest[i])
        before, after = (x[i] for x in (victims.images, done.least))
        if victims.threat.space != "pixels":
            mean, std = channel_values(preprocess, before)
            before, after = before * std + mean, after * std + mean
        change, factor = amplified(after - before)
        attacked_file, change_file = picture_names(image, attack)
        save_png(folder / attacked_file, after)
        save_png(folder / change_file, change)
        answer = int(done.predictions[e, i]) if clean[i] == truth[i] else int(clean[i])
        row = {"image": image, "attack": attack, "eps": eps[e], "label": int(truth[i]), "prediction": answer}
        row |= {"class_name": name(int(truth[i])), "clean_name": name(int(clean[i])), "predicted_name": name(answer)}
        rows.append(
            row | {"fooled": int(answer != truth[i]), "wrong_before": int(clean[i] != truth[i]), "times": factor}
        )
    return pd.DataFrame(rows)


def save_png(path: Path, pixels: Tensor) -> None:
    """(C, H, W) in [0, 1] -> a PNG file."""
    import torch
    from PIL import Image

    levels = pixels.detach().cpu().clamp(0, 1).mul(255).round().to(torch.uint8)
    array = levels[: 3 if len(levels) >= 3 else 1].permute(1, 2, 0).numpy()
    png = io.BytesIO()
    Image.fromarray(array.squeeze(-1) if array.shape[-1] == 1 else array).save(png, "PNG")
    atomic_write(path, png.getvalue())
