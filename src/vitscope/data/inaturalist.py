"""iNaturalist 2018 and 2019: JSON files beside folders of pictures, and eight ways to say what a class is.

    root/train2018.json, root/val2018.json   images (id, file_name) and annotations (image_id, category_id)
    root/categories.json                     a list of species: id, name, genus, family, ..., kingdom, supercategory
    root/train_val2018/Aves/2820/x.jpg       or without the folder of the supercategory, as DeiT's program wants them

`inaturalist` has a class for each species, `inaturalist-genus` one for each genus, and so on. Classes are numbered as
they first appear among the annotations of the training pictures, which is how DeiT numbers them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from vitscope.data.folders import FileList
from vitscope.data.places import given_root
from vitscope.data.registry import register_dataset
from vitscope.data.source import Source
from vitscope.errors import DataError

YEARS = (2018, 2019)
_SPLITS = ("train", "val")

# One line each, not a loop: names are read off the decorators before the module is loaded.


@register_dataset("inaturalist", splits=_SPLITS)
@register_dataset("inaturalist-genus", splits=_SPLITS)
@register_dataset("inaturalist-family", splits=_SPLITS)
@register_dataset("inaturalist-order", splits=_SPLITS)
@register_dataset("inaturalist-class", splits=_SPLITS)
@register_dataset("inaturalist-phylum", splits=_SPLITS)
@register_dataset("inaturalist-kingdom", splits=_SPLITS)
@register_dataset("inaturalist-supercategory", splits=_SPLITS)
def inaturalist(root: Path | None, split: str, dataset: str) -> Source:
    """`dataset` says what a class is: a species, or what stands behind the hyphen."""
    category = dataset.partition("-")[2] or "name"
    root = given_root(root, "inaturalist")
    year = _year(root)
    names = _names(root / "categories.json", category)
    train, path = root / f"train{year}.json", root / f"{split}{year}.json"
    learned, content = _read(train), _read(path)
    number: dict[str, int] = {}
    for note in _rows(learned, "annotations", train, ("category_id",)):
        number.setdefault(_name(note["category_id"], names, train), len(number))
    kinds = {n["image_id"]: n["category_id"] for n in _rows(content, "annotations", path, ("image_id", "category_id"))}
    files, labels = [], []
    for image in _rows(content, "images", path, ("id", "file_name")):
        if image["id"] not in kinds:
            raise DataError(f"{path}: the image {image['file_name']} has no annotation, so nobody knows its class.")
        name = _name(kinds[image["id"]], names, path)
        if name not in number:
            raise DataError(f"{path}: {category} {name!r} of {image['file_name']} is in no annotation of {train.name}.")
        files.append(str(image["file_name"]))
        labels.append(number[name])
    files = _placed(root, files)
    return Source(FileList(root, files), labels, list(number), root=root, names=files, holds=split)


def _year(root: Path) -> int:
    found = [year for year in YEARS if (root / f"train{year}.json").is_file()]
    if len(found) == 1:
        return found[0]
    wanted = " or ".join(f"train{year}.json" for year in YEARS)
    if found:
        raise DataError(f"{root} holds both {wanted}: move one of the two years into a folder of its own.")
    raise DataError(f"{root} is not iNaturalist: expected {wanted}, with val*.json and categories.json beside it.")


def _names(path: Path, category: str) -> dict[int, str]:
    """{category_id: name of its class}; a row without an id has that of its place."""
    content = _read(path)
    if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        raise DataError(f"{path} should be a list of species, each with its name, genus, ..., and kingdom.")
    names = {}
    for place, row in enumerate(content):
        if category not in row:
            known = ", ".join(str(key) for key in row if key != "id")
            raise DataError(f"{path}: species {row.get('id', place)} has no {category!r}, but {known or 'nothing'}.")
        names[row.get("id", place)] = str(row[category])
    return names


def _name(category_id: Any, names: dict[int, str], path: Path) -> str:
    if category_id not in names:
        raise DataError(f"{path}: category_id {category_id!r} is not in categories.json ({len(names):,} species).")
    return names[category_id]


def _rows(content: Any, key: str, path: Path, needed: tuple[str, ...]) -> list[dict[str, Any]]:
    rows = content.get(key) if isinstance(content, dict) else None
    if not isinstance(rows, list):
        raise DataError(f"{path} has no list {key!r}: expected images and annotations, as iNaturalist writes them.")
    for row in rows:
        if not isinstance(row, dict) or not all(isinstance(row.get(name), str | int) for name in needed):
            raise DataError(f"{path}: an entry of {key!r} lacks one of {', '.join(needed)}: {str(row)[:100]}.")
    return rows


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path} is missing: iNaturalist has train, val and categories in JSON files.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {error or type(error).__name__}.") from error


def _placed(root: Path, files: list[str]) -> list[str]:
    """Where the pictures lie: as written, or without the supercategory's folder, as the first one shows."""
    if not files or os.path.isfile(root / files[0]):
        return files
    parts = [name.split("/") for name in files]  # train_val2018/Aves/2820/x.jpg -> train_val2018/2820/x.jpg
    short = ["/".join([p[0], *p[2:]] if len(p) == 4 else p) for p in parts]
    if os.path.isfile(root / short[0]):
        return short
    raise DataError(f"Neither {root / files[0]} nor {root / short[0]} exists: unpack the pictures below {root}.")
