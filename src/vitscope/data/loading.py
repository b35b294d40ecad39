"""`load_data`: from a name or a path to the chosen pictures."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from vitscope.data.dataset import ImageData, missing_masks
from vitscope.data.folders import find_splits, folder_source
from vitscope.data.imagenet_s import SUFFIX, categories_file, imagenet_s, with_masks
from vitscope.data.mask_decoding import doubtful_masks, find_decoding
from vitscope.data.masks import check_rule
from vitscope.data.own import choose, is_data
from vitscope.data.registry import DatasetEntry, check_place, find_dataset
from vitscope.data.selection import pick_every, pick_images, pick_listed, pick_per_class, pick_share
from vitscope.data.source import Source, as_source
from vitscope.data.splits import ALL, choose_split, normal_split, seeded_split
from vitscope.errors import DataError, VitscopeError


def load_data(
    name_or_path: str | Path,
    split: str | None = None,
    *,
    root: str | Path | None = None,
    images: int | None = None,
    per_class: int | None = None,
    list_file: str | Path | None = None,
    every: int = 1,
    share: float = 1.0,
    seed: int = 0,
    masks: bool | None = None,
    mask_decoding: str | None = None,
    mask_rule: str = "centre",
    strict: bool = False,
    download: bool = False,
) -> ImageData:
    """Choose pictures. Nothing is decoded here but a few masks; broken pictures turn up when they are read.

    `name_or_path`: a registered name (`list_datasets()`), `package.module:function`, or a folder.
    `split`: 'train', 'val', 'test', a folder's name, or 'all' for a set that has no splits. None: the held-out part.
    `root`: where a named dataset lies. `download`: fetch it if it is not there.
    `list_file`, `every` (images 0, every, 2 every, ...), `share`, `per_class`, `images` are applied in this order;
    `seed` chooses among equals.
    `masks`: True insists on them, False leaves them out, None takes them where they exist.
    `mask_decoding`: how masks are stored, if not as 0, 1 and 255: 'nonzero' (whatever is not 0 is the object), 'half'
    (whatever is nearer to white than to black), 'alpha' (whatever is opaque).
    `mask_rule`: which pixel of a mask speaks for a token, that at the 'centre' of its patch or at its upper left
    'corner', as in the published class-embedding study.
    `strict`: whatever is otherwise left out or doubtful (`data.warnings`: empty class folders, stray images, links that
    are not followed, fewer images than asked for, masks without an object) raises DataError here, and an unreadable
    picture when it is read. Unknown labels of a folder without classes are no fault.
    """
    place = None if root is None else Path(root).expanduser()
    decode = find_decoding(mask_decoding) if mask_decoding is not None else None
    check_rule(mask_rule)
    source, name, split_name, wanted = _find(name_or_path, split, place, download, plain=decode is not None)
    selection: dict[str, Any] = {
        "source": str(name_or_path),
        "root": None if root is None else str(root),
        "images": images,
        "per_class": per_class,
        "list_file": None if list_file is None else str(list_file),
        "share": share,
        "seed": seed,
    }
    if every != 1:  # as absent as in older runs, which are then still the same
        selection["every"] = every
    if mask_decoding is not None:
        selection["mask_decoding"] = mask_decoding
    if mask_rule != "centre":
        selection["mask_rule"] = mask_rule
    if not isinstance(source, Source):
        return cast(ImageData, choose(source, selection))
    if decode is not None:
        if source.masks is None:
            raise DataError(f"{name} has no masks to decode: leave out mask_decoding (--mask-decoding).")
        source = replace(source, decode_mask=decode)
    if not len(source.images):
        raise DataError(f"{name} ({split_name}) has no images.")
    names, labels = list(source.names or []), list(source.labels or [])
    order = list(range(len(names)))
    if split_name == ALL and wanted not in (None, ALL):
        split_name, order = seeded_split(wanted, names, labels)

    shortages: list[str] = []

    def narrow(picked: list[int] | tuple[list[int], str | None]) -> None:
        nonlocal order
        positions, remark = picked if isinstance(picked, tuple) else (picked, None)
        order = [order[i] for i in positions]
        if remark:
            shortages.append(remark)

    def chosen() -> tuple[list[str], list[int]]:
        return [names[i] for i in order], [labels[i] for i in order]

    if list_file is not None:
        narrow(pick_listed(chosen()[0], list_file, source.root))
    if every != 1:
        narrow(pick_every(chosen()[0], every))
    if share != 1:
        narrow(pick_share(*chosen(), share, seed))
    if per_class is not None:
        narrow(pick_per_class(*chosen(), per_class, seed))
    if images is not None:
        narrow(pick_images(*chosen(), images, seed))
    bare = missing_masks(source, order) if masks is not False else []
    if bare:
        shortages.append(f"{len(bare):,} of {len(order):,} images have no mask, e.g. {bare[0]}.")
        if masks:
            raise DataError(f"{shortages[-1]} Leave masks=True out to use them without.")
        shortages[-1] += " What needs masks leaves them out."
    data = ImageData(
        source,
        order,
        name=name,
        split=split_name,
        selection=selection,
        masks=masks,
        strict=strict,
        warnings=[*source.warnings, *source.notes, *shortages],
    )
    doubt = doubtful_masks(data, bare, mask_decoding) if data.has_masks else None
    if doubt:
        data.warnings.append(doubt)
    faults = [*source.warnings, *shortages, *([doubt] if doubt else [])]
    if strict and faults:
        more = f" And {len(faults) - 5:,} more." if len(faults) > 5 else ""
        raise DataError(f"{' '.join(faults[:5])}{more} Leave strict (--strict) out to go on with warnings.")
    return data


def _find(
    name_or_path: str | Path, split: str | None, root: Path | None, download: bool, plain: bool
) -> tuple[Any, str, str, str | None]:
    """The source, the dataset's name, the split that the source holds, and the one that is wanted (None: any).

    In the place of a source there may be data that make their own batches.
    """
    entry = find_dataset(name_or_path) if isinstance(name_or_path, str) else None
    if entry is not None:
        source, holds = _call(entry, split, root, download)
        wanted = choose_split(split, entry.splits, entry.name) if split is None and entry.splits else split
        return source, entry.name, holds, wanted and normal_split(wanted)
    check_place(name_or_path, root)
    path = Path(name_or_path).expanduser()
    path = root / path if root is not None else path
    path = Path(os.path.abspath(path))  # a name for "."; links stay as they are
    paired = bool(path.name) and path.with_name(path.name + SUFFIX).is_dir() and split in (None, path.name)
    if paired and normal_split(path.name) in find_splits(path.parent, []):
        path, split = path.parent, path.name  # .../ImageNetS919/validation itself
    if categories_file(path) is not None and not plain:
        source = imagenet_s(path, split)
    else:
        source = with_masks(folder_source(path, split), path, plain)
    return as_source(source, path.name), path.name, source.holds or ALL, split and normal_split(split)


def _call(entry: DatasetEntry, split: str | None, root: Path | None, download: bool) -> tuple[Any, str]:
    """Run a dataset function, and say which split came back."""
    asked = normal_split(split) if split is not None else None
    if not entry.has_splits:
        wanted: str | None = ALL
    elif entry.splits is not None:
        wanted = choose_split(asked, entry.splits, f"Dataset {entry.name!r}")
    else:
        wanted = asked or entry.default_split()
    try:
        returned = entry(split=wanted, root=root, download=download)
    except VitscopeError:
        raise
    except Exception as error:  # a user's own function may fail in any way
        raise DataError(f"Dataset {entry.name!r} failed: {type(error).__name__}: {error}") from error
    if is_data(returned):
        return returned, wanted or ALL
    source = as_source(returned, entry.name)
    return source, source.holds or wanted or ALL
