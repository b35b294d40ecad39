from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from vitscope.data import Batch, ImageData, load_data, train_batches
from vitscope.data.randomness import permutation
from vitscope.models import Preprocess
from vitscope.training.feeds import Feed
from vitscope.training.options import TrainOptions
from vitscope.training.picture_augment import PictureAugmentation

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
    pictures = Feed(data, RECIPE, limit=limit)
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
    pictures = Feed(data, RECIPE)
    assert reads == []
    for epoch in range(3):
        list(pictures.epoch(5, seed=0, epoch=epoch, rank=0, world=1, start=0))
    assert sorted(reads) == list(range(23))


def test_repeated_augmentation_shows_fewer_pictures_in_several_versions(textures: Path) -> None:
    data = load_data("texture_data:textures", "train")  # 96 pictures
    preprocess = Preprocess((1, 16, 16), (0.5,), (0.5,))
    seen: list[Batch] = []
    augment = PictureAugmentation(preprocess, TrainOptions(augment="crop", erase=0.5))
    for rank in range(2):
        pictures = Feed(data, preprocess, augment=augment, repeats=3)
        seen += pictures.epoch(8, seed=1, epoch=2, rank=rank, world=2, start=0)
    batches = sorted(seen, key=lambda batch: batch.number)
    order = permutation(96, 1, 2)
    paths = [path for batch in batches for path in batch.paths]
    assert paths == [data.paths[i] for i in order[:32] for _ in range(3)]
    assert [int(x) for batch in batches for x in batch.labels] == [data.labels[i] for i in order[:32] for _ in range(3)]
    images = torch.cat([batch.images for batch in batches]).unflatten(0, (32, 3))  # (pictures, versions, C, H, W)
    assert not any(torch.equal(versions[0], versions[1]) for versions in images)


def test_a_resumed_epoch_draws_the_same_versions(textures: Path) -> None:
    data = load_data("texture_data:textures", "train")
    preprocess = Preprocess((1, 16, 16), (0.5,), (0.5,))
    pictures = Feed(
        data, preprocess, augment=PictureAugmentation(preprocess, TrainOptions(augment="crop", erase=0.5)), repeats=3
    )
    whole = list(pictures.epoch(16, seed=0, epoch=0, rank=0, world=1, start=0))
    rest = list(pictures.epoch(16, seed=0, epoch=0, rank=0, world=1, start=4))
    assert len(rest) == len(whole) - 4
    assert all(torch.equal(a.images, b.images) for a, b in zip(whole[4:], rest))
