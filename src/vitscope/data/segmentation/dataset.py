"""The chosen pictures of a dataset with label maps: what `load_data` returns where every pixel has a class."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from PIL import Image

from vitscope.data.batch import Batch, Item
from vitscope.data.dataset import ImageData
from vitscope.data.dealing import Turn
from vitscope.data.images import BadFileError, open_image
from vitscope.data.segmentation.maps import Numbers, as_map
from vitscope.data.source import Source
from vitscope.errors import DataError
from vitscope.models.preprocessing import Preprocess


class SegmentationData(ImageData):
    """Pictures with a class for every pixel, in a fixed order. A picture whose map is missing or bad is skipped."""

    task: Any = "segmentation"

    def __init__(self, source: Source, order: Sequence[int], **about: Any) -> None:
        super().__init__(source, order, **{**about, "masks": False})
        self._decode: Callable[[Any], np.ndarray] = source.decode_map or Numbers(len(self.classes))
        self._places: np.ndarray | None = None  # where each class of the files stands in `classes`, if not as there
        self._alike: bool | None = None

    def read(self, i: int, masks: bool = True) -> Item:
        """Picture `i` with its label map, or without it if `masks` is false. Raises DataError that names the file."""
        item = super().read(i, masks=False)
        if masks:
            item.target = self._map(self._order[item.index], item)
        return item

    def _map(self, position: int, item: Item) -> np.ndarray:
        maps = self._source.maps
        assert maps is not None
        name = "its label map"
        try:
            stored = maps[position]
            if stored is None:
                raise DataError("it is missing")
            if isinstance(stored, (str, Path)):
                name = f"its label map {Path(stored).name}"
                stored = open_image(stored)
            labels = self._decode(stored)
        except BadFileError as error:
            raise BadFileError(item.path, f"{name}: {error.reason}") from error
        except Exception as error:  # a user's own maps may fail in any way
            reason = str(error) if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
            raise BadFileError(item.path, f"{name}: {reason}") from error
        labels = as_map(labels, item.image.size, self.num_classes, item.path, name)
        return labels if self._places is None else self._places[labels]

    def sizes(self) -> Iterator[tuple[int, int]]:
        """(height, width) of one picture after the other; of all of them once, where they are known to be alike."""
        images = self._source.images
        known = isinstance(images, np.ndarray) or getattr(images, "alike", False)
        found = (_size(images[position]) for position in (self._order[:1] if known else self._order))
        return (size for size in found if size is not None)

    @property
    def alike(self) -> bool:
        """Have all pictures the same size? Others go through a model one at a time."""
        if self._alike is None:
            sizes = self.sizes()
            first = next(sizes, None)
            self._alike = all(size == first for size in sizes)
        return self._alike

    @property
    def most_together(self) -> int:
        """The largest batch for an evaluation."""
        return len(self) if self.alike else 1

    def ordered_as(self, classes: Sequence[str]) -> SegmentationData:
        data = copy.copy(self)
        place = [list(classes).index(name) for name in self.classes]
        before = np.array([*range(len(place)), -1]) if self._places is None else self._places  # -1, ignored, stays
        data._places = np.array([*place, -1])[before]
        data.class_ids = [self.class_ids[self.classes.index(name)] for name in classes]
        data.classes = list(classes)
        return data

    def batches(self, preprocess: Preprocess, batch_size: int = 64, **turn: Unpack[Turn]) -> Iterator[Batch]:
        """Whole pictures, their short side as the model wants it, with maps as large as the files have them.

        As `ImageData.batches`; pictures of different sizes come one at a time.
        """
        from vitscope.data.segmentation.batching import whole_batches

        return whole_batches(self, preprocess, batch_size, **turn)

    def learn(self, preprocess: Preprocess, batch_size: int, *, seed: int, epoch: int, **how: Any) -> Iterator[Batch]:
        """One epoch of training in the order of (seed, epoch): pieces of pictures and maps, as large as the input.

        `augment` draws them; without it, they are the middle of each picture.
        """
        from vitscope.data.batching import check_pictures
        from vitscope.data.segmentation.batching import Piece, piece_batches
        from vitscope.data.segmentation.joint import Joint

        check_pictures(self, preprocess)
        piece = Piece(how.pop("augment", None) or Joint(preprocess), seed, epoch)
        return piece_batches(self, piece, batch_size, **how)

    def check_head(self, num_classes: int, model: str = "the model") -> None:
        if num_classes != self.num_classes:
            raise DataError(
                f"{model} tells {num_classes:,} classes apart, but {self.name} has {self.num_classes:,} "
                f"({', '.join(self.classes[:3])}, ...): choose a model trained on these classes, or data of its own."
            )

    def __repr__(self) -> str:
        return f"SegmentationData({self.name} {self.split}: {len(self):,} images, {self.num_classes:,} classes)"


def missing_maps(source: Source, order: Sequence[int]) -> list[str]:
    """The names of pictures without a label map, as far as that is known without decoding anything."""
    if not isinstance(source.maps, (list, tuple)):
        return []
    names = source.names or []
    return [names[i] for i in order if (m := source.maps[i]) is None or (isinstance(m, Path) and not m.exists())]


def _size(picture: Any) -> tuple[int, int] | None:
    """(height, width), of a file from its first bytes; None where that is not known."""
    if isinstance(picture, (str, Path)):
        try:
            with Image.open(picture) as file:
                return file.height, file.width
        except Exception:  # skipped, with the reason, when it is read
            return None
    if isinstance(picture, Image.Image):
        return picture.height, picture.width
    shape: tuple[int, ...] = getattr(picture, "shape", ())
    return (int(shape[0]), int(shape[1])) if len(shape) > 1 else None
