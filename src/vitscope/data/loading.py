"""`load_data`: from a name or a path to the chosen pictures or texts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from vitscope.data.dataset import ImageData, missing_masks
from vitscope.data.finding import Found, find_source
from vitscope.data.mask_decoding import doubtful_masks, find_decoding
from vitscope.data.masks import check_rule
from vitscope.data.own import choose, is_data
from vitscope.data.segmentation.dataset import SegmentationData, missing_maps
from vitscope.data.selection import Choice
from vitscope.data.source import Source
from vitscope.data.splits import ALL, seeded_split
from vitscope.data.text.loading import choose_texts
from vitscope.data.text.options import TextOptions
from vitscope.errors import DataError


def load_data(
    name_or_path: str | Path,
    split: str | None = None,
    *,
    root: str | Path | None = None,
    images: int | None = None,
    texts: int | None = None,
    first: int | None = None,
    every: int = 1,
    share: float = 1.0,
    seed: int = 0,
    strict: bool = False,
    download: bool = False,
    per_class: int | None = None,
    list_file: str | Path | None = None,
    masks: bool | None = None,
    mask_decoding: str | None = None,
    mask_rule: str = "centre",
    labels: str | Path | None = None,
    **text: Any,
) -> Any:
    """Choose pictures (`ImageData`) or texts (`TextData`, see `load_texts`) by name or path.

    Nothing is decoded here but a few masks; broken pictures turn up when they are read.

    `name_or_path`: a registered name (`list_datasets()`), `package.module:function`, or a folder; of texts also a file.
    `split`: 'train', 'val', 'test', a folder's name, or 'all' for a set that has no splits. None: the held-out part.
    `root`: where a named dataset lies. `download`: fetch it if it is not there.
    `list_file`, `every` (items 0, every, 2 every, ...), `share`, `per_class`, `images` or `texts` (so many), `first`
    (the first so many) are applied in this order; `seed` chooses among equals. `per_class`, `list_file` and what is
    said of masks is for pictures, all keywords beside (`unit`, `min_chars`, `column`, `context`, ...) for texts.
    `masks`: True insists on them, False leaves them out, None takes them where they exist.
    `mask_decoding`: how masks are stored, if not as 0, 1 and 255: 'nonzero' (whatever is not 0 is the object), 'half'
    (whatever is nearer to white than to black), 'alpha' (whatever is opaque).
    `mask_rule`: which pixel of a mask speaks for a token, that at the 'centre' of its patch or at its upper left
    'corner', as in the published class-embedding study.
    `labels`: a folder of label maps for the pictures of a folder, which then have a class for every pixel
    (`SegmentationData`).
    `strict`: whatever is otherwise left out or doubtful (`data.warnings`: empty class folders, stray images, links that
    are not followed, fewer images than asked for, masks without an object) raises DataError here, and an unreadable
    picture when it is read. Unknown labels of a folder without classes are no fault.
    """
    options = TextOptions.of(text)
    found = find_source(
        name_or_path,
        split,
        root,
        download=download,
        plain=mask_decoding is not None,
        column=options.column,
        labels=labels,
        label=options.label_column,
    )
    n = texts if images is None else images
    if images is not None and texts is not None:
        raise DataError(f"images={images} and texts={texts} both say how many: give one of them.")
    choice = Choice(list_file, every, share, per_class, n, first, seed)
    if is_data(found.source):
        return choose(found.source, choice, source=str(name_or_path), root=root)
    if isinstance(found.source, Source):
        _refuse(options.changed(), f"{found.name} are pictures", "load_texts or texts such as 'pydoc'")
        about_masks = (masks, mask_decoding, mask_rule)
        return choose_images(found, choice, str(name_or_path), root, *about_masks, strict=strict, maps=labels)
    only_pictures: dict[str, Any] = {"per_class": per_class, "list_file": list_file, "mask_decoding": mask_decoding}
    only_pictures |= {"masks": masks or None, "mask_rule": None if mask_rule == "centre" else mask_rule}
    given = {name: value for name, value in only_pictures.items() if value is not None}
    _refuse(given, f"{found.name} are texts", "images=N, first=N, every=N or share=X to choose among them")
    return choose_texts(found, options, choice, source=str(name_or_path), root=root, strict=strict)


def _refuse(given: dict[str, Any], because: str, instead: str) -> None:
    if given:
        raise DataError(f"{because}: {', '.join(given)} cannot be said of them. Leave it out; use {instead}.")


def load_images(name_or_path: str | Path, split: str | None = None, **choice: Any) -> ImageData:
    """`load_data`, where nothing but pictures will do."""
    found = load_data(name_or_path, split, **choice)
    if not isinstance(found, ImageData):
        raise DataError(f"{found.name} are no pictures, and pictures are wanted: choose some, such as 'mnist5k'.")
    return found


def choose_images(
    found: Found,
    choice: Choice,
    given_as: str,
    root: str | Path | None,
    masks: bool | None,
    mask_decoding: str | None,
    mask_rule: str,
    *,
    strict: bool,
    maps: str | Path | None,
) -> ImageData:
    """The pictures of a source that are meant. maps: the folder that was given for label maps."""
    decode = find_decoding(mask_decoding) if mask_decoding is not None else None
    check_rule(mask_rule)
    source, name, split_name, wanted = found.source, found.name, found.holds, found.wanted
    assert isinstance(source, Source)
    if decode is not None:
        if source.masks is None:
            raise DataError(f"{name} has no masks to decode: leave out mask_decoding (--mask-decoding).")
        source = replace(source, decode_mask=decode)
    if not len(source.images):
        raise DataError(f"{name} ({split_name}) has no images.")
    names, labels = list(source.names or []), list(source.labels or [])
    order = list(range(len(names)))
    if split_name == ALL and wanted is not None and wanted != ALL:
        split_name, order = seeded_split(wanted, names, labels)
    places, shortages = choice.among([names[i] for i in order], [labels[i] for i in order], source.root)
    order = [order[i] for i in places]
    bare = missing_masks(source, order) if masks is not False else []
    if bare:
        shortages.append(f"{len(bare):,} of {len(order):,} images have no mask, e.g. {bare[0]}.")
        if masks:
            raise DataError(f"{shortages[-1]} Leave masks=True out to use them without.")
        shortages[-1] += " What needs masks leaves them out."
    selection = choice.described(given_as, root)
    if mask_decoding is not None:
        selection["mask_decoding"] = mask_decoding
    if mask_rule != "centre":
        selection["mask_rule"] = mask_rule
    if maps is not None:
        selection["labels"] = str(maps)
    unmapped = missing_maps(source, order)
    if unmapped:
        shortages.append(f"{len(unmapped):,} of {len(order):,} images have no label map, e.g. {unmapped[0]}: skipped.")
    data = (ImageData if source.maps is None else SegmentationData)(
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
