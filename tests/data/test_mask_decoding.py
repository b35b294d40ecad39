"""Masks in the conventions that people use, and what is said of those that hold no object."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitscope.data import CONTEXT, OBJECT, load_data
from vitscope.data.batch import IGNORED
from vitscope.data.mask_decoding import DECODINGS, numbers
from vitscope.data.masks import as_mask
from vitscope.errors import DataError
from vitscope.models.preprocessing import Preprocess

HALF = np.zeros((40, 48), np.uint8)  # the left half is the object
HALF[:, :24] = 1


def palette(indices: np.ndarray, colours: list[int]) -> Image.Image:
    image = Image.fromarray(indices)
    image.putpalette(colours)
    return image


def jpeg(array: np.ndarray) -> Image.Image:
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, format="JPEG", quality=70)
    return Image.open(buffer)


def opaque(where: np.ndarray) -> Image.Image:
    """A picture that is cut out."""
    pixels = np.random.default_rng(0).integers(0, 256, (*where.shape, 4), dtype=np.uint8)
    pixels[..., 3] = 255 * where
    return Image.fromarray(pixels)


@pytest.mark.parametrize(
    "mask",
    [
        HALF,
        HALF.astype(bool),
        Image.fromarray(HALF),
        Image.fromarray(255 * HALF).convert("1"),
        Image.fromarray(np.stack([HALF] * 3, -1)),
        Image.merge("LA", [Image.fromarray(HALF), Image.new("L", (48, 40), 255)]),
        HALF[..., None],
        palette(HALF, [0, 0, 0, 255, 255, 255]),
        palette(1 - HALF, [255, 255, 255, 0, 0, 0]),  # the same picture, saved by a program that lists white first
        palette(HALF, [0, 0, 0, 128, 0, 0]),  # the colours of Pascal VOC
        palette(HALF, [255, 255, 255, 128, 0, 0]),
    ],
    ids=["array", "bool", "grey", "bit", "rgb", "grey-alpha", "channel", "palette", "swapped", "voc", "colours"],
)
def test_an_object_of_ones_is_found_however_it_is_stored(mask: object) -> None:
    assert np.array_equal(np.asarray(as_mask(mask, (48, 40), "a.png")), HALF)


def test_the_index_counts_where_a_palette_has_more_than_black_and_white() -> None:
    indices = np.array([[0, 1, 255]], np.uint8)
    assert numbers(palette(indices, [0, 0, 0, 255, 255, 255])).tolist() == [[0, 1, 255]]
    assert numbers(palette(np.array([[0, 255]], np.uint8), [*range(256)] * 3)).tolist() == [[0, 255]]


@pytest.mark.parametrize(
    ("name", "mask"),
    [
        ("nonzero", Image.fromarray(255 * HALF)),
        ("nonzero", Image.fromarray(np.stack([255 * HALF] * 3, -1))),
        ("nonzero", Image.fromarray(HALF.astype(np.uint16) * 7)),
        ("nonzero", palette(HALF, [0, 0, 0, 128, 0, 0])),
        ("nonzero", 38 * HALF),
        ("half", Image.fromarray(255 * HALF)),
        ("half", Image.fromarray(30 + 170 * HALF)),
        ("half", jpeg(255 * HALF)),
        ("half", 255 * HALF),
        ("alpha", opaque(HALF)),
        ("alpha", np.asarray(opaque(HALF))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_decoding_finds_the_object(name: str, mask: object) -> None:
    assert np.array_equal(DECODINGS[name](mask, 0), HALF == 1)


@pytest.mark.parametrize(
    ("name", "mask", "message"),
    [
        ("nonzero", jpeg(255 * HALF), "JPEG.*mask_decoding='half'"),
        ("nonzero", opaque(HALF), "partly transparent.*mask_decoding='alpha'"),
        ("alpha", Image.fromarray(HALF), "no alpha channel"),
    ],
)
def test_a_decoding_that_does_not_fit_says_which_one_does(name: str, mask: Image.Image, message: str) -> None:
    with pytest.raises(DataError, match=message):
        DECODINGS[name](mask, 0)


@pytest.fixture
def pictures(tmp_path: Path, noise: Callable[..., Image.Image]) -> Callable[..., Path]:
    """Two classes of five pictures in val/, and a mask of each in val-segmentation/."""

    def make(mask: np.ndarray, classes: tuple[str, str] = ("cat", "dog")) -> Path:
        for c in classes:
            for i in range(5):
                for folder, picture in (("val", noise(seed=i)), ("val-segmentation", Image.fromarray(mask))):
                    (tmp_path / folder / c).mkdir(parents=True, exist_ok=True)
                    picture.save(tmp_path / folder / c / f"{i}.png")
        return tmp_path

    return make


def test_black_and_white_masks_are_remarked_refused_by_strict_and_read_with_their_decoding(
    pictures: Callable[..., Path], small: Preprocess
) -> None:
    root = pictures(255 * HALF)
    data = load_data(root)
    assert set(np.unique(np.asarray(data[0].mask))) == {CONTEXT, IGNORED}
    (warning,) = data.warnings
    assert "None of the 8 masks looked at" in warning
    assert "nothing but 0 (context) and 255 (ignored)" in warning
    assert "--mask-decoding nonzero" in warning
    with pytest.raises(DataError, match="--mask-decoding nonzero"):
        load_data(root, strict=True)
    assert load_data(root, strict=True, masks=False).warnings == []
    decoded = load_data(root, strict=True, mask_decoding="nonzero")
    assert decoded.warnings == []
    assert np.array_equal(np.asarray(decoded[3].mask), HALF)
    assert decoded.describe()["mask_decoding"] == "nonzero"
    assert "mask_decoding" not in data.describe()
    for workers in (0, 1):
        batches = list(decoded.batches(small, workers=workers, context="spawn" if workers else None))
        assert {int(v) for batch in batches for v in batch.masks.unique()} == {CONTEXT, OBJECT}


def test_masks_of_wordnet_folders_that_are_black_and_white_need_no_list_of_categories(
    pictures: Callable[..., Path],
) -> None:
    root = pictures(255 * HALF, ("n01440764", "n02099601"))
    with pytest.raises(DataError, match=r"ImageNetS_categories_im2\.txt.*--mask-decoding nonzero"):
        load_data(root)
    data = load_data(root, mask_decoding="nonzero")
    assert data.labels == [0] * 5 + [207] * 5
    assert np.array_equal(np.asarray(data[9].mask), HALF)


def test_masks_beside_the_folder_itself_are_found_too(pictures: Callable[..., Path]) -> None:
    root = pictures(HALF)
    for name in ("val", "val-segmentation"):
        (root / name).rename(root / name.replace("val", "photos"))
    data = load_data(root / "photos")
    assert data.classes == ["cat", "dog"]
    assert np.array_equal(np.asarray(data[7].mask), HALF)


def test_masks_beside_class_folders_are_no_class(class_folders: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match=r"cat-segmentation/ beside cat/.* into val-segmentation/"):
        load_data(class_folders({"cat": 1, "cat-segmentation": 1, "dog": 1}))


@pytest.mark.parametrize(
    ("value", "held"), [(CONTEXT, r"0 \(context\)\."), (OBJECT, r"1 \(object\)\."), (IGNORED, r"255 \(ignored\)\.")]
)
def test_masks_of_a_single_value_are_remarked(pictures: Callable[..., Path], value: int, held: str) -> None:
    root = pictures(np.full_like(HALF, value))
    with pytest.raises(DataError, match=f"they hold nothing but {held}"):
        load_data(root, strict=True)
    doubtful = load_data(root, images=2).warnings
    assert bool(doubtful) == (value == IGNORED)  # two pictures may show nothing but an object, or none


def test_a_decoding_under_which_nothing_is_left_is_remarked(pictures: Callable[..., Path]) -> None:
    (warning,) = load_data(pictures(HALF), mask_decoding="half").warnings
    assert "0 (context) with mask_decoding='half'" in warning


def test_one_picture_with_an_object_is_enough(pictures: Callable[..., Path]) -> None:
    root = pictures(np.zeros_like(HALF))
    Image.fromarray(HALF).save(root / "val-segmentation/cat/0.png")
    assert load_data(root, strict=True).warnings == []


def test_masks_that_cannot_be_read_are_no_doubt_of_their_own(pictures: Callable[..., Path]) -> None:
    assert load_data(pictures(7 * HALF)).warnings == []  # each is skipped with its reason


def test_what_cannot_be_decoded_is_refused(pictures: Callable[..., Path], class_folders: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match=r"no mask decoding 'non-zero'\. Did you mean nonzero"):
        load_data(pictures(HALF), mask_decoding="non-zero")
    with pytest.raises(DataError, match="no masks to decode"):
        load_data(class_folders({"a": 1}), mask_decoding="nonzero")
