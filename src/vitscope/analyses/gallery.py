"""A few images or texts to look at: the report shows them beside the maps that analyses emit for them."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import torch
from PIL import Image
from torch import Tensor

from vitscope.analyses.base import Analysis, Setting
from vitscope.architectures.text_layout import token_ids
from vitscope.data.batch import Batch
from vitscope.models import Model
from vitscope.models.preprocessing import Preprocess
from vitscope.runs import Run
from vitscope.runs.files import atomic_write

LONGEST_TEXT = 128  # tokens of a text that are shown


class Gallery(Analysis):
    """The pictures or texts of a run's gallery, and a row for each: what any run has, whatever is measured in it."""

    controllable = False
    name = "gallery"

    def __init__(self, run: Run, setting: Setting, model: Model) -> None:
        super().__init__()
        self.run, self.setting, self.model = run, setting, model

    def end_batch(self, batch: Batch) -> None:
        if hasattr(self.model.preprocess, "words"):
            shown = [i for i, number in enumerate(batch.indices.tolist()) if number in self.setting.gallery]
            if shown:
                images, texts = text_rows(batch, shown, self.model.preprocess.words)
                self.emit("images", images)
                self.emit("texts", texts)
            return
        one_class = self.setting.task.one_class
        rows = gallery_rows(batch, self.setting.gallery, self.setting.classes, self.model.num_classes, one_class)
        if rows is not None:
            self.run.check_writable()  # a pass takes a while: the folder may be another process's by now
            save_thumbnails(self.run.images_dir, batch, self.setting.gallery, self.model.preprocess)
            self.emit("images", rows)


def choose_gallery(labels: Sequence[int], wanted: int = 8) -> frozenset[int]:
    """Image numbers spread evenly over the classes, in whatever order the data come."""
    wanted = min(wanted, len(labels))
    by_class = sorted(range(len(labels)), key=labels.__getitem__)  # stable: images of a class stay in their order
    return frozenset(by_class[i * len(labels) // wanted] for i in range(wanted))


def as_picture(image: Tensor, preprocess: Preprocess) -> Tensor:
    """Undo the normalisation: what the model saw, (C, H, W) float -> (H, W, C) uint8 with 1 or 3 channels."""
    mean, std = (torch.tensor(v, dtype=torch.float64).view(-1, 1, 1) for v in (preprocess.mean, preprocess.std))
    pixels = (image.detach().cpu().double() * std + mean).clamp(0, 1).mul(255).round().to(torch.uint8)
    return pixels[: 3 if len(pixels) >= 3 else 1].permute(1, 2, 0)


def save_thumbnails(folder: Path, batch: Batch, gallery: frozenset[int], preprocess: Preprocess) -> None:
    """Write `<image>.png` for those of a batch that are in the gallery, where they are pictures."""
    if not getattr(preprocess, "mean", ()):  # texts, or whatever the data give
        return

    for i, number in enumerate(batch.indices.tolist()):
        if number in gallery:
            pixels = as_picture(batch.images[i], preprocess).numpy()
            png = io.BytesIO()
            Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).save(png, "PNG")
            atomic_write(folder / f"{number}.png", png.getvalue())


def gallery_rows(
    batch: Batch, gallery: frozenset[int], classes: Sequence[str], head: int, one_class: bool = True
) -> pd.DataFrame | None:
    """Rows of the table `images`: image, path, label, class_name, prediction, predicted_name.

    `head`: classes of the model; without any, prediction is -1. Names are empty where they are not known. `one_class`:
    is each image of one class? Otherwise label and prediction are -1: what its targets are is known to its task alone.
    """
    assert batch.logits is not None
    shown = [i for i, number in enumerate(batch.indices.tolist()) if number in gallery]
    if not shown:
        return None
    labels = batch.labels[shown].tolist() if one_class else [-1] * len(shown)
    predictions = batch.logits[shown].argmax(1).tolist() if head and one_class else [-1] * len(shown)
    # names belong to the data's classes; they name predictions only where the head has the same ones
    names = [classes[p] if head == len(classes) and p >= 0 else "" for p in predictions]
    return pd.DataFrame(
        {
            "image": batch.indices[shown].numpy(),
            "path": [batch.paths[i] for i in shown],
            "label": labels,
            "class_name": [classes[c] if 0 <= c < len(classes) else "" for c in labels],
            "prediction": predictions,
            "predicted_name": names,
        }
    )


def readable(word: str) -> str:
    """A token in one line: what cannot be printed is written as an escape, a line break as \\n."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in word)


def text_rows(
    batch: Batch, shown: Sequence[int], words: Callable[[Sequence[int]], list[str]]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows of the tables `images` (image, path) and `texts` (image, token, word, target_word) for some of a batch.

    `words` names tokens. target_word is what comes next, empty where nothing is compared.
    """
    ids = token_ids(batch.inputs)
    images = pd.DataFrame(
        {"image": [int(batch.indices[i]) for i in shown], "path": [readable(batch.names[i]) for i in shown]}
    )
    frames = []
    for i in shown:
        n = min(LONGEST_TEXT, ids.shape[1] if batch.valid is None else int(batch.valid[i].sum()))
        targets = batch.targets[i, :n].tolist() if batch.targets.ndim > 1 else [-1] * n  # of one class as a whole
        named = dict(zip(kept := sorted({t for t in targets if t >= 0}), words(kept) if kept else []))
        frames.append(
            pd.DataFrame(
                {
                    "image": int(batch.indices[i]),
                    "token": range(n),
                    "word": [readable(word) for word in words(ids[i, :n].tolist())],
                    "target_word": [readable(named[t]) if t >= 0 else "" for t in targets],
                }
            )
        )
    return images, pd.concat(frames, ignore_index=True)
