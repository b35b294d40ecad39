"""iNaturalist in miniature: five species of three genera, in the layout of 2018 and in that of 2019."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitscope.data import load_data
from vitscope.errors import DataError

SPECIES = [
    ("Parus major", "Parus", "Paridae", "Passeriformes", "Aves", "Chordata", "Animalia", "Aves"),
    ("Parus minor", "Parus", "Paridae", "Passeriformes", "Aves", "Chordata", "Animalia", "Aves"),
    ("Apis mellifera", "Apis", "Apidae", "Hymenoptera", "Insecta", "Arthropoda", "Animalia", "Insecta"),
    ("Rosa canina", "Rosa", "Rosaceae", "Rosales", "Magnoliopsida", "Tracheophyta", "Plantae", "Plantae"),
    ("Rosa gallica", "Rosa", "Rosaceae", "Rosales", "Magnoliopsida", "Tracheophyta", "Plantae", "Plantae"),
]
KEYS = ("name", "genus", "family", "order", "class", "phylum", "kingdom", "supercategory")
PICTURES = {"train": [3, 0, 1, 4, 2, 0], "val": [2, 3, 1]}  # species of each picture, in the order of the file


def write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content))


def folder(root: Path, year: int = 2018, flat: bool = False) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    write(root / "categories.json", [{"id": i, **dict(zip(KEYS, row))} for i, row in enumerate(SPECIES)])
    for split, species in PICTURES.items():
        images, notes = [], []
        for i, kind in enumerate(species):
            name = f"train_val{year}/{SPECIES[kind][-1]}/{kind}/{split}{i}.png"
            images.append({"id": 100 + i, "file_name": name})
            notes.append({"id": i, "image_id": 100 + i, "category_id": kind})
            parts = name.split("/")
            file = root / "/".join([parts[0], *parts[2:]] if flat else parts)
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((8, 8, 3), 10 * kind, np.uint8)).save(file)
        write(root / f"{split}{year}.json", {"images": images, "annotations": notes})
    return root


@pytest.mark.parametrize("flat", [False, True], ids=["as released", "as DeiT wants it"])
@pytest.mark.parametrize("year", [2018, 2019])
def test_pictures_have_the_class_of_their_annotation(tmp_path: Path, year: int, flat: bool) -> None:
    root = folder(tmp_path, year, flat)
    for split in ("train", "val"):
        data = load_data("inaturalist", split, root=root)
        assert [data.classes[label] for label in data.labels] == [SPECIES[kind][0] for kind in PICTURES[split]]
        seen = [data.read(i).image.getpixel((0, 0))[0] // 10 for i in range(len(data))]
        assert seen == PICTURES[split]
        assert data.split == split


@pytest.mark.parametrize("category", KEYS)
def test_a_class_can_be_anything_from_species_to_kingdom(tmp_path: Path, category: str) -> None:
    root, column = folder(tmp_path), KEYS.index(category)
    name = "inaturalist" if category == "name" else f"inaturalist-{category}"
    expected = list(dict.fromkeys(SPECIES[kind][column] for kind in PICTURES["train"]))  # as they first appear
    for split in ("train", "val"):
        data = load_data(name, split, root=root)
        assert list(data.classes) == expected
        assert [expected[label] for label in data.labels] == [SPECIES[kind][column] for kind in PICTURES[split]]


def test_a_training_is_told_the_category(tmp_path: Path) -> None:
    from vitscope.training import TrainOptions
    from vitscope.training.setup import open_data

    options = TrainOptions(data="inaturalist", root=folder(tmp_path), inat_category="kingdom", batch_size=2)
    assert list(open_data(options).train.classes) == ["Plantae", "Animalia"]


def damaged(root: Path, file: str, change: object) -> Path:
    folder(root)
    path = root / file
    if change is None:
        path.unlink()
    else:
        content = json.loads(path.read_text())
        write(path, change(content))  # type: ignore[operator]
    return root


def with_other(notes: list[dict], **values: object) -> list[dict]:
    return [{**notes[0], **values}, *notes[1:]]


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("categories.json", None, "categories.json is missing"),
        ("val2018.json", None, "val2018.json is missing"),
        ("train2018.json", None, "is not iNaturalist: expected train2018.json or train2019.json"),
        ("categories.json", lambda c: [{"id": 0, "genus": "Parus"}], "species 0 has no 'name', but genus"),
        ("categories.json", lambda c: {"a": 1}, "should be a list of species"),
        ("categories.json", lambda c: c[:2], "is not in categories.json (2 species)"),
        ("val2018.json", lambda c: {"images": c["images"]}, "has no list 'annotations'"),
        ("val2018.json", lambda c: {**c, "annotations": []}, "has no annotation, so nobody knows its class"),
        ("val2018.json", lambda c: {**c, "images": with_other(c["images"], file_name=None)}, "lacks one of id, file"),
        ("val2018.json", lambda c: {**c, "images": with_other(c["images"], file_name="no.png")}, "exists: unpack"),
        (
            "train2018.json",
            lambda c: {**c, "annotations": c["annotations"][:2]},
            "name 'Apis mellifera' of train_val2018/Insecta/2/val0.png is in no annotation of train2018.json",
        ),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, file: str, change: object, words: str) -> None:
    root = damaged(tmp_path, file, change)
    with pytest.raises(DataError) as error:
        load_data("inaturalist", "val", root=root)
    assert words in str(error.value)


def test_two_years_in_one_folder_and_no_folder_are_refused(tmp_path: Path) -> None:
    folder(tmp_path, 2018), folder(tmp_path, 2019)
    with pytest.raises(DataError, match="holds both"):
        load_data("inaturalist", "val", root=tmp_path)
    with pytest.raises(DataError, match="give root=FOLDER"):
        load_data("inaturalist", "val")
