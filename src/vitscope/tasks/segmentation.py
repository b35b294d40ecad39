"""A class for every pixel.

From sums over all pixels of all images, as ADE20K is judged: with n[t, p] pixels of class t that are taken for p,

    IoU_c = n[c, c] / (n[c, .] + n[., c] - n[c, c]),  accuracy_c = n[c, c] / n[c, .],  pixel accuracy = sum n[c, c] / n

Mean IoU is over the classes that are there or are answered (where IoU is defined), mean accuracy over those that are
there. A pixel without a class (-1) is in no sum, whatever is answered there.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitscope.data import Data
from vitscope.data.batch import Batch
from vitscope.errors import UnsupportedModelError
from vitscope.models import Model
from vitscope.tasks.base import Measure, Task, register_task
from vitscope.tasks.classification import check_classes, some

JUDGED = 32  # pixels per side of a map that are judged one by one: neighbours say the same
CHUNK = 2**23  # logits that are enlarged at a time: 32 MB in float32


@register_task("segmentation")
class Segmentation(Task):
    """Outputs (B, C, h, w), targets (B, H, W): a class of each pixel, -1 where nothing is compared.

    Where maps are larger or smaller than the outputs, these are resized to them (bilinear) before anybody answers.
    """

    measure = Measure("mean_iou", "%", 100.0)
    evaluation = "segmentation"
    attack = "segmentation.attack"

    def match(self, model: Model, data: Data) -> tuple[Data, str | None]:
        """Classes by name, where the model knows the names of its own."""
        mine, theirs = model.classes, list(data.classes)
        if mine is None or mine == theirs or len(mine) != len(theirs):
            return data, None
        if len(set(mine)) == len(mine) and set(mine) == set(theirs):
            return data.ordered_as(mine), f"Classes are compared by name, in the model's order: {some(mine)}."
        return data, (
            f"The model was trained on classes called {some(mine)}; those of the data are called {some(theirs)}. They "
            "are compared by number."
        )

    def check(self, model: Model, data: Data) -> None:
        check_segmenter(model)
        data.check_head(model.num_classes, model.name)

    def check_learning(self, train: Data, test: Data) -> None:
        check_classes(train, test, "both must have the same")

    def model_options(self, data: Data) -> dict[str, Any]:
        return {"num_classes": data.num_classes}

    def preprocess(self, recipe: Any) -> Any:
        """Whole pictures, their short side as long as that of the input."""
        return recipe.whole()

    def item_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses = F.cross_entropy(resized(outputs, targets), targets, reduction="none", ignore_index=-1)  # (B, H, W)
        return losses.flatten(1).sum(1)

    def right(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return ((strongest(resized(outputs, targets)) == targets) & (targets >= 0)).flatten(1).sum(1)

    def counted(self, targets: Tensor) -> Tensor:
        return (targets >= 0).flatten(1).sum(1)

    def more(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Confusions (C * C,), summed over the batch, row by row: true class, answer."""
        answers = strongest(resized(outputs, targets))
        return confusions(answers, targets, outputs.shape[1]).sum(0).flatten()

    def tally(self, outputs: Tensor, targets: Tensor) -> list[float]:
        """Some rows of a picture at a time: 150 classes of a large one would not fit otherwise."""
        classes = outputs.shape[1]
        matrix, loss = torch.zeros(classes, classes, dtype=torch.int64), 0.0
        for logits, truth in bands(outputs.detach(), targets):
            told = F.cross_entropy(logits.float(), truth, reduction="none", ignore_index=-1)
            loss += float(told.double().sum())
            matrix += confusions(strongest(logits), truth, classes).sum(0).cpu()
        return [loss, float(matrix.trace()), float(matrix.sum()), *map(float, matrix.flatten().tolist())]

    def judged(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Of every map a lattice of pixels, all where it is small: items are pictures, and a picture has enough."""
        assert batch.outputs is not None
        rows, columns = (lattice(side) for side in batch.targets.shape[1:])
        logits = resized(batch.outputs, batch.targets)[:, :, rows][..., columns]  # (B, C, r, c)
        targets = batch.targets[:, rows][..., columns].cpu()
        item, row, column = (targets >= 0).nonzero(as_tuple=True)
        return logits.movedim(1, -1)[item, row, column].cpu().double(), targets[item, row, column], item

    def figures(self, loss: float, right: float, counted: float, *more: float) -> dict[str, float]:
        matrix = torch.tensor(more, dtype=torch.float64).view(round(len(more) ** 0.5), -1)
        counted = max(counted, 1)
        found = {"mean_iou": mean_iou(matrix), "mean_accuracy": mean_accuracy(matrix)}
        return {"loss": loss / counted, **found, "accuracy": right / counted}


def lattice(side: int) -> Tensor:
    """Places along a side, evenly apart and at most JUDGED of them."""
    step = -(-side // JUDGED)
    return torch.arange((step - 1) // 2, side, step)


def check_segmenter(model: Model) -> None:
    """Raise where a model has no grid of patches to answer for."""
    row: Any = model.row
    if row.text or getattr(model.layout, "grid", None) is None:
        raise UnsupportedModelError(
            f"{model.name} has no grid of patches, so that it cannot say what each pixel is: take a `segmenter`."
        )


def check_pixels(outputs: Any) -> None:
    """Raise where a model answers once for a whole picture."""
    if not isinstance(outputs, Tensor) or outputs.ndim != 4:
        shape = tuple(outputs.shape[1:]) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise UnsupportedModelError(
            f"The model answers with {shape} numbers per image, not with classes for pixels: take a `segmenter` "
            "(--model segmenter)."
        )


def resized(outputs: Tensor, targets: Tensor) -> Tensor:
    """Logits (B, C, h, w) at the size of the maps (B, H, W)."""
    check_pixels(outputs)
    size = targets.shape[-2:]
    if outputs.shape[-2:] == size:
        return outputs
    return F.interpolate(outputs, size=size, mode="bilinear", align_corners=False)


def bands(outputs: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """`resized(outputs, targets)` and the targets, some pictures or some rows of one at a time: (b, C, rows, W).

    Row r of H lies at (r + 1/2) h / H - 1/2 of h rows, between its neighbours; columns likewise.
    """
    targets = targets.to(outputs.device)
    classes, h = outputs.shape[1:3]
    height, width = targets.shape[-2:]
    if together := CHUNK // (classes * height * width):
        for i in range(0, len(targets), together):
            yield resized(outputs[i : i + together], targets[i : i + together]), targets[i : i + together]
        return
    place = ((torch.arange(height, device=outputs.device) + 0.5) * (h / height) - 0.5).clamp(min=0)  # (H,)
    above = place.floor().long().clamp(max=h - 1)
    below, share = (above + 1).clamp(max=h - 1), (place - above).to(outputs.dtype)[:, None]  # (H,), (H, 1)
    step = max(1, CHUNK // (classes * width))
    for logits, truth in zip(outputs, targets):  # (C, h, w), (H, W)
        for rows in (slice(r, r + step) for r in range(0, height, step)):
            part = torch.lerp(logits[:, above[rows]], logits[:, below[rows]], share[rows])  # (C, rows, w)
            yield resized(part[None], truth[None, rows]), truth[None, rows]


def strongest(logits: Tensor) -> Tensor:
    """The class of the largest logit, the first of equals: (B, C, ...) -> (B, ...) int64.

    argmax(1), which takes up to six times as long on a CPU.
    """
    classes = logits.shape[1]
    if logits.device.type != "cpu" or logits.dtype not in (torch.float32, torch.float64):
        return logits.argmax(1)
    if logits.stride(1) == 1:  # the classes of a pixel lie side by side
        values = logits.detach().movedim(1, -1)
        pieces = np.array_split(values.reshape(-1, classes).numpy(), torch.get_num_threads())
        with ThreadPoolExecutor(len(pieces)) as pool:  # NumPy lets others run meanwhile
            found = np.concatenate([*pool.map(partial(np.argmax, axis=-1), pieces)])
        return torch.from_numpy(found).view(values.shape[:-1])
    kind = torch.uint8 if classes < 256 else torch.int16
    down = torch.arange(classes, 0, -1, dtype=kind).view(-1, *[1] * (logits.ndim - 2))  # (C, 1, ...)
    largest = (logits == logits.amax(1, keepdim=True)).to(kind).mul_(down).amax(1)  # (B, ...)
    return classes - largest.long().clamp_(min=1)  # NaN is nowhere the largest: the last class


def answered(outputs: Tensor, targets: Tensor) -> Tensor:
    """The class of each pixel, at the size of the maps: (B, C, h, w), (B, H, W) -> (B, H, W) int64."""
    return torch.cat([strongest(logits).flatten() for logits, _ in bands(outputs, targets)]).view(targets.shape)


def confusions(answers: Tensor, targets: Tensor, classes: int) -> Tensor:
    """How many pixels of class t are taken for p, in each image: twice (B, H, W) -> (B, C, C) int64.

    Sums at places that are known beforehand: a device is not waited for. Ignored pixels have a row of their own, which
    is left out.
    """
    items, size = len(targets), (classes + 1) * classes
    first = size * torch.arange(items, device=targets.device).view(-1, 1, 1)
    place = targets.add(1).mul_(classes).add_(answers.to(targets.device)).add_(first).flatten()
    counts = torch.zeros(items * size, dtype=torch.int64, device=targets.device)
    counts.index_add_(0, place, counts.new_ones(()).expand(len(place)))
    return counts.view(items, classes + 1, classes)[:, 1:]


def class_iou(matrix: Tensor) -> Tensor:
    """(..., C, C) -> IoU of each class (..., C) float64, NaN where it neither is there nor is answered."""
    right, there, said = matrix.diagonal(dim1=-2, dim2=-1), matrix.sum(-1), matrix.sum(-2)
    return iou(right, there, said)


def iou(right: Tensor, there: Tensor, said: Tensor) -> Tensor:
    """Of right pixels, pixels of a class and pixels answered with it, all of one shape; NaN where there are none."""
    return right.double() / (there + said - right).double()  # 0 / 0 is NaN


def class_accuracy(matrix: Tensor) -> Tensor:
    """(..., C, C) -> share of each class's pixels that are right (..., C), NaN where it is not there."""
    return matrix.diagonal(dim1=-2, dim2=-1).double() / matrix.sum(-1).double()


def mean_iou(matrix: Tensor) -> float:
    return float(class_iou(matrix).nanmean())


def mean_accuracy(matrix: Tensor) -> float:
    return float(class_accuracy(matrix).nanmean())
