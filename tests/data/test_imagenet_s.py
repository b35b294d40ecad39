from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitscope.data import CONTEXT, IGNORED, OBJECT, load_data, synsets
from vitscope.data.imagenet_s import CategoryMask
from vitscope.errors import DataError
from vitscope.models.preprocessing import Preprocess

IDS = ["n01440764", "n02099601", "n15075141"]  # classes 0, 207 and 999; categories 1, 2 and 3


def colours(numbers: np.ndarray) -> Image.Image:
    """A mask as ImageNet-S stores it: class number = R + 256 G."""
    return Image.fromarray(np.stack([numbers % 256, numbers // 256, 0 * numbers], -1).astype(np.uint8))


@pytest.fixture
def root(tmp_path: Path, noise: Callable[..., Image.Image]) -> Path:
    """Three classes, two images each. In every mask the left half is class 2, the lower half is ignored."""
    numbers = np.zeros((40, 48), int)
    numbers[:, :24] = 2
    numbers[20:] = 1000
    for split in ("validation", "test"):
        for wordnet_id in IDS:
            (tmp_path / split / wordnet_id).mkdir(parents=True)
            (tmp_path / "validation-segmentation" / wordnet_id).mkdir(parents=True, exist_ok=True)
            for i in range(2):
                noise(40, 48, seed=i).save(tmp_path / split / wordnet_id / f"{i}.JPEG", format="jpeg")
                colours(numbers).save(tmp_path / "validation-segmentation" / wordnet_id / f"{i}.png")
    (tmp_path / "data/categories").mkdir(parents=True)
    (tmp_path / "data/categories/ImageNetS_categories_im3.txt").write_text("\n".join(IDS) + "\n")
    return tmp_path


def test_a_mask_shows_where_the_images_own_class_is(root: Path) -> None:
    data = load_data(root, "validation")
    assert data.labels == [0, 0, 207, 207, 999, 999]
    assert data.num_classes == 1000
    assert data.has_masks
    own, other = np.asarray(data[2].mask), np.asarray(data[0].mask)
    assert (own[20:] == IGNORED).all()
    assert (own[:20, :24] == OBJECT).all()
    assert (own[:20, 24:] == CONTEXT).all()
    assert (other[:20] == CONTEXT).all()  # class 207 in an image of class 0


def test_the_test_split_has_no_masks(root: Path) -> None:
    data = load_data(root, "test")
    assert len(data) == 6
    assert not data.has_masks
    assert data[0].mask is None
    with pytest.raises(DataError, match="has no masks"):
        load_data(root, "test", masks=True)


def test_the_folder_of_a_split_finds_its_masks_beside_it(root: Path) -> None:
    data = load_data(root / "validation")
    assert (data.has_masks, data.split, len(data)) == (True, "val", 6)
    assert data.fingerprint() == load_data("imagenet-s", "val", root=root).fingerprint()


def test_masks_can_be_left_out(root: Path) -> None:
    data = load_data(root, "val", masks=False)
    assert not data.has_masks
    assert data[0].mask is None


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("size", r"mask 1\.png is 10 x 10 pixels, the image 48 x 40"),
        ("number", "class number 4, but there are 3 categories"),
        ("grey", "mode 'L'"),
        ("truncated", r"mask 1\.png: damaged"),
    ],
)
def test_an_image_whose_mask_is_bad_is_skipped_with_a_reason(
    root: Path, small: Preprocess, damage: str, reason: str
) -> None:
    mask = root / "validation-segmentation" / IDS[1] / "1.png"
    if damage == "size":
        colours(np.zeros((10, 10), int)).save(mask)
    elif damage == "number":
        colours(np.full((40, 48), 4)).save(mask)
    elif damage == "grey":
        Image.new("L", (48, 40)).save(mask)
    else:
        mask.write_bytes(mask.read_bytes()[:60])
    data = load_data(root, "validation")
    (batch,) = data.batches(small)
    assert [s.path for s in batch.skipped] == [f"validation/{IDS[1]}/1.JPEG"]
    assert batch.masks is not None
    assert len(batch) == len(batch.masks) == 5
    with pytest.raises(DataError, match=reason):
        data[3]
    with pytest.raises(DataError, match=reason):
        list(load_data(root, "validation", strict=True).batches(small))
    assert load_data(root, "validation", masks=False)[3].mask is None


def test_without_the_categories_file_only_published_sizes_can_be_read(root: Path) -> None:
    (root / "data/categories/ImageNetS_categories_im3.txt").unlink()
    with pytest.raises(DataError, match=r"ImageNetS_categories_im3\.txt"):
        load_data(root, "validation")
    for wordnet_id in synsets.wordnet_ids()[:48]:  # 48 + two of ours that are not among them = 50
        (root / "validation" / wordnet_id).mkdir(exist_ok=True)
    data = load_data(root, "validation")
    assert data.labels == [0, 0, 207, 207, 999, 999]
    assert (np.asarray(data[0].mask)[:20] == CONTEXT).all()  # number 2 is now the second folder, a goldfish


def test_categories_that_imagenet_does_not_have_are_refused(root: Path) -> None:
    (root / "data/categories/ImageNetS_categories_im3.txt").write_text("n01440764\nn99999999\n")
    with pytest.raises(DataError, match="n99999999"):
        load_data(root, "validation")


def test_an_image_of_a_class_without_a_category_has_no_mask() -> None:
    with pytest.raises(DataError, match="none of the 1 categories"):
        CategoryMask((0,))(colours(np.zeros((2, 2), int)), 5)


def test_other_folders_are_not_imagenet_s(class_folders: Callable[..., Path]) -> None:
    root = class_folders({"val/cat": 1})
    with pytest.raises(DataError, match="this is not ImageNet-S"):
        load_data("imagenet-s", root=root)


def test_real_masks_cover_the_animal_and_not_everything(shared: Path) -> None:
    data = load_data(shared / "data/ImageNetS919", "validation", images=24)
    assert len(set(data.labels)) == 24
    for i in range(24):
        image, mask = data[i].image, data[i].mask
        assert mask is not None
        assert mask.size == image.size
        assert 0.02 < (np.asarray(mask) == OBJECT).mean() < 0.98
    assert not load_data(shared / "data/ImageNetS919", "test").has_masks


def test_an_image_without_its_mask_stays_and_is_ignored_by_what_needs_masks(root: Path, small: Preprocess) -> None:
    (root / "validation-segmentation" / IDS[1] / "1.png").unlink()
    data = load_data(root, "validation")
    bare = data.paths.index(f"validation/{IDS[1]}/1.JPEG")
    assert data.warnings == [f"1 of 6 images have no mask, e.g. {data.paths[bare]}. What needs masks leaves them out."]
    (batch,) = data.batches(small)
    assert not batch.skipped
    assert [bool((mask == IGNORED).all()) for mask in batch.masks] == [i == bare for i in range(6)]
    part = data.subset([bare])
    assert (np.asarray(part[0].mask) == IGNORED).all()
    with pytest.raises(DataError, match=r"1 of 6 images have no mask.* Leave masks=True out"):
        load_data(root, "validation", masks=True)
    with pytest.raises(DataError, match="1 of 6 images have no mask"):
        load_data(root, "validation", strict=True)
    assert not load_data(root, "validation", masks=False, strict=True).warnings
