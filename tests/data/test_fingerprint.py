from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from vitscope.data import ImageData, Source, load_data
from vitscope.data.source import as_source

Make = Callable[..., Path]


def of(source: Source, order: list[int] | None = None) -> str:
    complete = as_source(source, "x")
    return ImageData(complete, order or range(len(complete.images)), name="x", split="all").fingerprint()


def test_it_does_not_depend_on_place_or_time(class_folders: Make, tmp_path: Path) -> None:
    root = class_folders({"a": 2, "b": 2})
    before = load_data(root).fingerprint()
    shutil.copytree(root, tmp_path / "moved" / "deep")
    os.utime(tmp_path / "moved/deep/a/000.png", (1, 1))
    assert load_data(tmp_path / "moved" / "deep").fingerprint() == before
    assert len(before) == 32


def test_it_changes_with_names_labels_sizes_and_choice(class_folders: Make) -> None:
    root = class_folders({"a": 3, "b": 2})
    seen = {
        load_data(root).fingerprint(),
        load_data(root, images=4).fingerprint(),
        load_data(root, "train").fingerprint(),
    }
    (root / "a/000.png").rename(root / "a/zzz.png")
    seen.add(load_data(root).fingerprint())
    (root / "a/zzz.png").rename(root / "b/zzz.png")
    seen.add(load_data(root).fingerprint())
    (root / "b/zzz.png").write_bytes((root / "b/zzz.png").read_bytes() + b"x")
    seen.add(load_data(root).fingerprint())
    (root / "b/zzz.png").unlink()
    (root / "b/zzz.png").symlink_to("nowhere.png")  # broken, but no obstacle
    seen.add(load_data(root).fingerprint())
    assert len(seen) == 7


def test_pictures_in_memory_count_by_content() -> None:
    arrays = np.random.default_rng(0).integers(0, 256, (4, 5, 6), dtype=np.uint8)
    before = of(Source(arrays, [0, 0, 1, 1]))
    assert of(Source(arrays.copy(), [0, 0, 1, 1])) == before
    assert of(Source(arrays, [0, 1, 0, 1])) != before
    assert of(Source(arrays, [0, 0, 1, 1]), [0, 1, 3, 2]) != before
    changed = arrays.copy()
    changed[3, 0, 0] ^= 1
    assert of(Source(changed, [0, 0, 1, 1])) != before
    pictures = [Image.fromarray(a) for a in arrays]
    assert of(Source(pictures, [0, 0, 1, 1])) == of(Source(list(pictures), [0, 0, 1, 1]))


def test_masks_count_only_if_they_are_used() -> None:
    arrays = np.zeros((2, 4, 4), np.uint8)
    source = as_source(Source(arrays, [0, 0], masks=np.zeros((2, 4, 4), bool)), "x")
    other = as_source(Source(arrays, [0, 0], masks=np.ones((2, 4, 4), bool)), "x")

    def fingerprint(s: Source, masks: bool | None) -> str:
        return ImageData(s, [0, 1], name="x", split="all", masks=masks).fingerprint()

    assert fingerprint(source, None) != fingerprint(other, None)
    assert fingerprint(source, False) == fingerprint(other, False) != fingerprint(source, None)


def test_a_set_too_slow_to_read_may_name_its_content() -> None:
    class Slow:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, i: int) -> np.ndarray:
            raise AssertionError("read for the fingerprint")

    names = ["a", "b", "c"]
    assert of(Source(Slow(), names=names, content="v1")) != of(Source(Slow(), names=names, content="v2"))
