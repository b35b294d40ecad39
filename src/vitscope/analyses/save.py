"""`--save POINTS`: chosen activations, or their projections on the classes, on disk for one's own work.

    RUN/activations/points.json               per point: shape of one image's value, type, projected or not
    RUN/activations/<point>/r<rank>-<shard>.npy   rows of images, at most `shard_mb` each, for numpy.load(mmap_mode="r")
    RUN/tables/saved.csv                      image, rank, row: where each image is, the same for every point; of texts
                                              also how many tokens of the row are theirs

`open_saved(run)[point]` puts them together again without reading them into memory.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from vitscope.analyses.base import Analysis, register_analysis, zeros
from vitscope.analyses.shards import ShardWriter, cut_shards, shard_name
from vitscope.data.batch import Batch
from vitscope.errors import NumericalError, RunError, UnsupportedModelError, VitscopeError
from vitscope.models import Model
from vitscope.report.numbers import memory
from vitscope.runs import Run
from vitscope.runs.files import atomic_write
from vitscope.runs.shape import read_json

FOLDER = "activations"
DTYPES = {"float32": np.float32, "float16": np.float16}


@register_analysis("save")
class Save(Analysis):
    """Write the values of points to disk, image by image."""

    default = False  # activations are large: only where they are asked for
    controllable = False  # its files are the model's own

    def __init__(
        self,
        points: Sequence[str] = (),  # names or globs
        dtype: str = "float32",  # float16 halves the space; values beyond 65,504 are then refused
        tokens: str = "all",  # 'class' or 'image' keep only those (queries, in a pattern)
        project: bool = False,  # save class-space logits of (B, N, C) points instead of the points
        shard_mb: int = 256,  # no file grows beyond this
    ) -> None:
        super().__init__()
        self.points = [points] if isinstance(points, str) else list(points)
        self.dtype, self.tokens, self.project, self.shard_mb = dtype, tokens, project, shard_mb
        if dtype not in DTYPES:
            raise VitscopeError(f"Activations are saved as {' or '.join(DTYPES)}, not {dtype!r}.")
        if tokens not in ("all", "class", "image"):
            raise VitscopeError(f"Tokens to save are 'all', 'class' or 'image', not {tokens!r}.")
        if shard_mb < 1:
            raise VitscopeError(f"A shard has at least 1 MB, not {shard_mb}.")

    def needs(self, model: Model) -> Sequence[str]:
        if not self.points:
            raise VitscopeError("Which points shall be saved? For example --save 'blocks.*.hook_resid_post'.")
        return self.points

    def start(self, model: Model) -> None:
        self.model, self.names = model, model.resolve_points(self.needs(model))
        if self.tokens != "all" and hasattr(model.preprocess, "encode"):
            raise UnsupportedModelError("Of texts all tokens are saved: leave tokens out.")
        if self.tokens == "class" and model.layout.class_tokens == 0:
            raise UnsupportedModelError(f"{model.name} has no class token to save: use tokens='image' or 'all'.")
        if self.project:
            reason = model.why_no_class_space()
            if reason is not None:
                raise UnsupportedModelError(f"{model.name} cannot project on classes: {reason}")
        self.sums = {"rows": zeros(1, dtype=torch.int64)}  # images written by this process
        self._writers: dict[str, ShardWriter] = {}
        self._described = False
        self.length: int | None = None  # tokens of a row, where texts differ in theirs
        self._needed = 0  # bytes that the points seen so far will still take

    def prepare(self, data: Any, model: Model) -> None:
        """Texts differ in length, rows do not: each is saved with `context` tokens, the rest of a row being 0."""
        if hasattr(model.preprocess, "encode"):
            context = getattr(data, "texts", data).options.context
            if context is None:
                raise VitscopeError("How many tokens of each text shall be saved? Say context=N (--context N).")
            self.length = min(context, model.preprocess.length)

    def begin(self) -> None:
        if self.setting.folder is None:
            raise VitscopeError("`save` writes into a run folder: use it through analyze(..., save=[...]).")
        self.folder = self.setting.folder / FOLDER
        self.folder.mkdir(parents=True, exist_ok=True)
        self._free = shutil.disk_usage(self.folder).free
        known = read_points(self.folder)
        done = int(self.sums["rows"])
        for point in self.names:
            if point in known and done:
                cut_shards(self.folder / point, self.setting.rank, done, known[point]["rows_per_shard"])
            elif (self.folder / point).exists():  # written, but never vouched for by a saved state
                cut_shards(self.folder / point, self.setting.rank, 0, 1)

    def update(self, block: int, points: Mapping[str, Tensor], batch: Batch) -> None:
        for name, value in points.items():
            array = self._prepare(name, value)
            if len(array) != len(batch):
                raise VitscopeError(
                    f"{name} has {len(array)} rows for {len(batch)} images: it does not belong to images and "
                    "cannot be saved per image. Read it with model.run_with_cache instead."
                )
            if name not in self._writers:
                self._writers[name] = self._open(name, array)
            self._writers[name].write(int(self.sums["rows"]), array)

    def _prepare(self, name: str, value: Tensor) -> np.ndarray:
        layout = self.model.layout
        if self.length is not None:
            value = padded(value, self.length, square=name.endswith(("pattern", "attn_scores", "bias")))
        elif value.shape[-2] == layout.tokens:  # all points but hook_embed, which has image tokens only
            wanted = {"all": slice(None), "class": slice(0, layout.class_tokens), "image": layout.image}[self.tokens]
            value = value[..., wanted, :]
        elif self.tokens == "class":
            raise VitscopeError(f"{name} has no class token: save it with tokens='all' or 'image'.")
        if self.project:
            if value.ndim != 3 or value.shape[-1] != layout.width:
                raise VitscopeError(f"{name} is not part of the residual stream and has no projection on classes.")
            value = self.model.to_class_space(value)
        with np.errstate(over="ignore"):  # checked below
            array = value.detach().float().cpu().numpy().astype(DTYPES[self.dtype])
        if self.dtype == "float16" and np.isinf(array).any() and bool(value.isfinite().all()):
            raise NumericalError(f"{name} has values beyond 65,504, too large for float16: save it as float32.")
        return array

    def _open(self, name: str, array: np.ndarray) -> ShardWriter:
        shape, row_bytes = array.shape[1:], array[0].nbytes
        rows_per_shard = max(1, self.shard_mb * 2**20 // row_bytes)
        self._check_space(row_bytes)
        return ShardWriter(self.folder / name, self.setting.rank, shape, array.dtype, rows_per_shard)

    def _check_space(self, row_bytes: int) -> None:
        """All processes together, for all images that are still to come."""
        if self.setting.images is None:
            return
        self._needed += row_bytes * (self.setting.images - int(self.sums["rows"])) * self.setting.world
        if self._needed > self._free:
            raise RunError(
                f"The activations would take at least {memory(self._needed)} and {self.folder} has "
                f"{memory(self._free)} free. Save fewer points or images, only class tokens (tokens='class'), or "
                "half precision (dtype='float16'), or choose another disk with --out."
            )

    def end_batch(self, batch: Batch) -> None:
        if not self._described:
            self._describe()
        first = int(self.sums["rows"])
        rows = np.arange(first, first + len(batch))
        place = {"image": batch.indices.numpy(), "rank": self.setting.rank, "row": rows}
        if batch.valid is not None:
            place["tokens"] = batch.valid.sum(1).numpy()
        self.emit("saved", pd.DataFrame(place))
        self.add("rows", torch.tensor([len(batch)]))

    def _describe(self) -> None:
        """Write points.json: every process writes the same, and before the first state that speaks of rows."""
        for name in self.points:  # a glob may cover points that a model does not have (hook_bias); a name may not
            if name in self.names and name not in self._writers:
                raise VitscopeError(f"{self.model.name} has no value at {name}: leave it out of --save.")
        common = {"dtype": self.dtype, "tokens": self.tokens, "projected": self.project}
        entries = {
            name: {"shape": list(writer.shape), "rows_per_shard": writer.rows_per_shard, **common}
            for name, writer in self._writers.items()
        }
        atomic_write(self.folder / "points.json", json.dumps(entries, indent=2) + "\n")
        self._described = True

    def flush(self) -> None:
        for writer in self._writers.values():
            writer.flush()


def padded(value: Tensor, length: int, square: bool) -> Tensor:
    """(..., N, C) with zeros up to `length` tokens; (..., N, N) in both directions."""
    missing = length - value.shape[-2]
    return torch.nn.functional.pad(value, (0, missing if square else 0, 0, missing))


class SavedPoint:
    """The values of one point over all images, on disk. Index it with an image number, a list of them, or iterate."""

    def __init__(self, folder: Path, name: str, entry: Mapping[str, Any], index: pd.DataFrame) -> None:
        self.folder, self.name, self.entry = folder, name, entry
        self.images: np.ndarray = index["image"].to_numpy()  # numbers of the images that are there, ascending
        self._place = dict(zip(self.images.tolist(), zip(index["rank"].tolist(), index["row"].tolist())))
        self._open: dict[tuple[int, int], np.ndarray] = {}

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.images), *self.entry["shape"])

    def shard(self, rank: int, number: int) -> np.ndarray:
        """One file, mapped into memory."""
        if (rank, number) not in self._open:
            self._open[rank, number] = np.load(self.folder / self.name / shard_name(rank, number), mmap_mode="r")
        return self._open[rank, number]

    def __getitem__(self, image: int | Sequence[int] | np.ndarray) -> np.ndarray:
        """Image number -> its value (a view of the file); several numbers -> a stacked copy."""
        if isinstance(image, Sequence | np.ndarray):
            return np.stack([self[int(i)] for i in image])
        if image not in self._place:
            raise VitscopeError(f"Image {image} is not among the {len(self.images):,} that were saved.")
        rank, row = self._place[image]
        number, inside = divmod(row, self.entry["rows_per_shard"])
        return self.shard(rank, number)[inside]

    def __iter__(self) -> Any:
        """(image number, value) in image order; only what is looked at is read."""
        for image in self.images.tolist():
            yield image, self[image]

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        return f"SavedPoint({self.name}: {self.shape} {self.entry['dtype']})"


def open_saved(run: Any) -> dict[str, SavedPoint]:
    """{point: SavedPoint} of a finished run (a Run or its folder)."""
    run = run if isinstance(run, Run) else Run.open(run)
    index = run.table("saved")
    if index is None:
        raise RunError(f"{run.path} has no saved activations, or is not finished. Run it with --save POINTS.")
    folder = run.path / FOLDER
    return {name: SavedPoint(folder, name, entry, index) for name, entry in read_points(folder).items()}


def read_points(folder: Path) -> dict[str, Any]:
    shape = {str: {"shape": [int], "rows_per_shard": int, "dtype": str}}
    return read_json(folder / "points.json", shape, "Make the run again with --overwrite.")
