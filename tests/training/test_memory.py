from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from vitscope.data import Batch, ImageData, load_data, train_batches
from vitscope.models import Preprocess
from vitscope.training.memory import Pictures

RECIPE = Preprocess((1, 8, 8), (0.5,), (0.5,))


@pytest.fixture
def data(tmp_path: Path) -> ImageData:
    """23 pictures of two classes, of which one cannot be read."""
    for i in range(23):
        folder = tmp_path / f"class{i % 2}"
        folder.mkdir(exist_ok=True)
        Image.effect_noise((8, 8), 10 + i).save(folder / f"{i:02d}.png")
    broken = tmp_path / "class1" / "05.png"
    broken.write_bytes(broken.read_bytes()[:30])
    return load_data(tmp_path, "all")


def same(a: Batch, b: Batch) -> bool:
    return (
        torch.equal(a.images, b.images)
        and torch.equal(a.labels, b.labels)
        and torch.equal(a.indices, b.indices)
        and (a.paths, a.number, a.skipped) == (b.paths, b.number, b.skipped)
    )


@pytest.mark.parametrize("limit", [0, 10**9])
@pytest.mark.parametrize("world", [1, 2])
def test_batches_from_memory_are_those_that_are_read(data: ImageData, limit: int, world: int) -> None:
    pictures = Pictures(data, RECIPE, limit=limit)
    assert pictures.small == (limit > 0)
    skipped = 0
    for rank in range(world):
        where = {"rank": rank, "world": world}
        for epoch, start in ((0, 0), (1, 1)):
            got = list(pictures.epoch(4, seed=7, epoch=epoch, start=start, **where))
            expected = list(train_batches(data, RECIPE, 4, seed=7, epoch=epoch, start=start, **where))
            assert len(got) == len(expected) > 0
            assert all(map(same, got, expected))
        got, expected = list(pictures.once(4, **where)), list(data.batches(RECIPE, 4, **where))
        assert len(got) == len(expected) > 0
        assert all(map(same, got, expected))
        skipped += sum(len(batch.skipped) for batch in got)
    assert skipped == 1


def test_a_picture_is_decoded_once(data: ImageData, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    real = ImageData.read

    def counting(self: ImageData, i: int, masks: bool = True) -> object:
        reads.append(i)
        return real(self, i, masks)

    monkeypatch.setattr(ImageData, "read", counting)
    pictures = Pictures(data, RECIPE)
    assert reads == []
    for epoch in range(3):
        list(pictures.epoch(5, seed=0, epoch=epoch, rank=0, world=1, start=0))
    assert sorted(reads) == list(range(23))
