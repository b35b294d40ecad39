from __future__ import annotations

import multiprocessing
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitscope.data import Batch, ImageData, Source, load_data, steps_per_epoch, train_batches
from vitscope.data.source import as_source
from vitscope.data.transforms import build_transform
from vitscope.errors import DataError
from vitscope.models.preprocessing import Preprocess

Make = Callable[..., Path]
START_METHODS = [m for m in ("fork", "spawn") if m in multiprocessing.get_all_start_methods()]


def same(a: list[Batch], b: list[Batch]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x.images, y.images)
        and torch.equal(x.labels, y.labels)
        and torch.equal(x.indices, y.indices)
        and (x.paths, x.number, x.skipped) == (y.paths, y.number, y.skipped)
        and (x.masks is None) == (y.masks is None)
        and (x.masks is None or y.masks is None or torch.equal(x.masks, y.masks))
        for x, y in zip(a, b)
    )


@pytest.fixture
def memory() -> ImageData:
    """23 pictures with masks."""
    images = np.random.default_rng(0).integers(0, 256, (23, 40, 44, 3), dtype=np.uint8)
    source = Source(images, [i % 3 for i in range(23)], masks=images[..., 0] > 127)
    return ImageData(as_source(source, "mem"), range(23), name="mem", split="all")


@pytest.fixture
def partly_broken(class_folders: Make) -> ImageData:
    """Ten pictures; 2, 4, 5, 6 and 7 cannot be read."""
    root = class_folders({"a": 10})
    (root / "a/002.png").write_bytes(b"")
    for i in (4, 5, 6, 7):
        (root / f"a/00{i}.png").write_bytes((root / f"a/00{i}.png").read_bytes()[:100])
    return load_data(root)


def test_a_batch_holds_the_preprocessed_pictures_in_order(memory: ImageData, small: Preprocess) -> None:
    batches = list(memory.batches(small, 10))
    assert [len(b) for b in batches] == [10, 10, 3]
    assert [b.number for b in batches] == [0, 1, 2]
    assert torch.cat([b.indices for b in batches]).tolist() == list(range(23))
    assert torch.cat([b.labels for b in batches]).tolist() == memory.labels
    transform = build_transform(small)
    for batch in batches:
        assert batch.masks is not None
        assert batch.images.dtype == torch.float32
        assert batch.masks.dtype == torch.uint8
        for row, index in enumerate(batch.indices.tolist()):
            image, mask = transform(memory[index].image, memory[index].mask)
            assert torch.equal(batch.images[row], image)
            assert mask is not None
            assert torch.equal(batch.masks[row], mask)
            assert batch.paths[row] == memory.paths[index]


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("start", [0, 1, 4, 9])
def test_ranks_and_resumes_see_the_batches_of_one_straight_run(
    memory: ImageData, small: Preprocess, world: int, start: int
) -> None:
    straight = list(memory.batches(small, 5))
    for rank in range(world):
        part = list(memory.batches(small, 5, rank=rank, world=world, start=start))
        assert same(part, [b for b in straight if b.number % world == rank and b.number >= start])


@pytest.mark.parametrize("context", START_METHODS)
def test_workers_bring_the_same_batches(
    memory: ImageData, partly_broken: ImageData, small: Preprocess, context: str
) -> None:
    workers = 2 if context == "fork" else 1  # starting a process afresh takes seconds
    assert same(list(memory.batches(small, 5, workers=workers, context=context)), list(memory.batches(small, 5)))
    if context == "fork":
        assert same(list(partly_broken.batches(small, 4, workers=2)), list(partly_broken.batches(small, 4)))


def test_no_global_generator_is_touched(memory: ImageData, small: Preprocess) -> None:
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    list(memory.batches(small, 5))
    list(memory.batches(small, 5, workers=1))
    list(train_batches(memory, small, 5, seed=0, epoch=0, augment=jitter))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]


def test_broken_pictures_are_skipped_and_listed_and_boundaries_stay(
    partly_broken: ImageData, small: Preprocess
) -> None:
    batches = list(partly_broken.batches(small, 4))
    assert [b.indices.tolist() for b in batches] == [[0, 1, 3], [], [8, 9]]
    assert [[s.index for s in b.skipped] for b in batches] == [[2], [4, 5, 6, 7], []]
    assert batches[0].skipped[0].path == "a/002.png"
    assert batches[0].skipped[0].reason == "empty file (0 bytes)"
    assert batches[1].images.shape == (0, 3, 32, 32)
    assert batches[1].labels.shape == (0,)


@pytest.mark.parametrize("workers", [0, 1])
def test_strict_stops_at_the_first_broken_picture_and_names_it(
    partly_broken: ImageData, small: Preprocess, workers: int
) -> None:
    partly_broken.strict = True
    assert partly_broken.root is not None
    with pytest.raises(DataError) as caught:
        list(partly_broken.batches(small, 4, workers=workers))
    assert str(caught.value) == f"{partly_broken.root / 'a/002.png'}: empty file (0 bytes)"


def test_every_bad_kind_of_picture_is_skipped_or_seen(class_folders: Make, small: Preprocess) -> None:
    root = class_folders({"a": 1})
    (root / "a/b_text.png").write_text("I am not a picture.")
    (root / "a/c_zero.jpg").write_bytes(b"")
    (root / "a/d_link.png").symlink_to("nowhere.png")
    Image.new("CMYK", (40, 40)).save(root / "a/e_cmyk.jpg")
    Image.fromarray(np.zeros((40, 40), np.uint16)).save(root / "a/f_16bit.png")
    Image.new("P", (40, 40)).save(root / "a/g_palette.png")
    Image.new("RGBA", (40, 40)).save(root / "a/h_alpha.png")
    Image.new("RGB", (40, 40)).save(root / "a/i.gif", save_all=True, append_images=[Image.new("RGB", (40, 40))])
    Image.new("1", (9_500, 9_500)).save(root / "a/k_huge.png")  # 90 million pixels in some kilobytes
    (batch,) = load_data(root).batches(small)
    seen = ["a/000.png", "a/e_cmyk.jpg", "a/f_16bit.png", "a/g_palette.png", "a/h_alpha.png", "a/i.gif"]
    assert batch.paths == seen
    reasons = {Path(s.path).stem: s.reason for s in batch.skipped}
    assert set(reasons) == {"b_text", "c_zero", "d_link", "k_huge"}
    assert "absurdly large" in reasons["k_huge"]


@pytest.mark.parametrize(
    "options", [{"batch_size": 0}, {"rank": 2, "world": 2}, {"rank": -1}, {"start": -1}, {"workers": -1}]
)
def test_impossible_requests_are_refused_at_once(memory: ImageData, small: Preprocess, options: dict[str, int]) -> None:
    with pytest.raises(DataError):
        memory.batches(small, **options)  # type: ignore[arg-type]


class Deadly:
    """The third picture ends the process that reads it."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> np.ndarray:
        if i == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.zeros((40, 40), np.uint8)


def test_a_worker_that_dies_is_a_clear_error(small: Preprocess) -> None:
    names = list("abcd")
    data = ImageData(as_source(Source(Deadly(), names=names), "x"), range(4), name="x", split="all")
    with pytest.raises(DataError, match=r"A process that reads images died.*workers=0"):
        list(data.batches(small, 1, workers=1))


def jitter(image: Image.Image, generator: torch.Generator) -> Image.Image:
    """Draws from everything there is."""
    draw = random.random() + np.random.rand() + float(torch.rand(())) + float(torch.rand((), generator=generator))
    return image.point(lambda v: int(v * draw / 4))


def epoch(data: ImageData, preprocess: Preprocess, **changes: object) -> list[Batch]:
    options: dict[str, object] = {"batch_size": 4, "seed": 0, "epoch": 0, "augment": jitter, **changes}
    return list(train_batches(data, preprocess, **options))  # type: ignore[arg-type]


def by_index(batches: list[Batch]) -> dict[int, torch.Tensor]:
    return {i: x for b in batches for i, x in zip(b.indices.tolist(), b.images)}


def test_an_epoch_is_a_function_of_seed_and_epoch(memory: ImageData, small: Preprocess) -> None:
    first = epoch(memory, small)
    random.seed(1)
    torch.rand(1)
    assert same(epoch(memory, small), first)
    assert [len(b) for b in first] == [4] * 5  # 23 pictures: three wait for another epoch
    assert all(b.masks is None for b in first)
    for changes in ({"seed": 1}, {"epoch": 1}):
        other = epoch(memory, small, **changes)
        assert [b.paths for b in other] != [b.paths for b in first]
        pictures, others = by_index(first), by_index(other)
        assert all(not torch.equal(pictures[i], others[i]) for i in pictures.keys() & others.keys())


def test_augmentation_does_not_depend_on_batch_size_workers_or_resume(memory: ImageData, small: Preprocess) -> None:
    straight = epoch(memory, small)
    assert same(epoch(memory, small, workers=2), straight)
    assert same(epoch(memory, small, start=2), straight[2:])
    pictures, others = by_index(straight), by_index(epoch(memory, small, batch_size=7))
    assert len(pictures.keys() & others.keys()) > 15
    assert all(torch.equal(pictures[i], others[i]) for i in pictures.keys() & others.keys())


@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_an_epoch_in_equally_many_equal_steps(memory: ImageData, small: Preprocess, world: int) -> None:
    ranks = [epoch(memory, small, rank=r, world=world) for r in range(world)]
    assert {len(r) for r in ranks} == {steps_per_epoch(23, 4, world)} == {23 // (4 * world)}
    indices = [i for r in ranks for b in r for i in b.indices.tolist()]
    assert len(indices) == len(set(indices)) == world * 4 * len(ranks[0])
    merged = sorted((b for r in ranks for b in r), key=lambda b: b.number)
    assert same(merged, epoch(memory, small)[: len(merged)])  # the same batches as one process would see


def test_a_set_smaller_than_a_batch_is_one_smaller_step(memory: ImageData, small: Preprocess) -> None:
    (batch,) = epoch(memory, small, batch_size=100)
    assert sorted(batch.indices.tolist()) == list(range(23))
    halves = [epoch(memory, small, batch_size=100, rank=r, world=2) for r in range(2)]
    assert [len(h[0]) for h in halves] == [11, 11]
    with pytest.raises(DataError, match="too few"):
        epoch(memory.subset([0]), small, world=2)


def test_without_augmentation_pictures_are_only_preprocessed(memory: ImageData, small: Preprocess) -> None:
    plain = by_index(epoch(memory, small, augment=None))
    straight = by_index(list(memory.batches(small)))
    assert all(torch.equal(plain[i], straight[i]) for i in plain)


def test_timms_augmentation_becomes_deterministic(memory: ImageData, small: Preprocess) -> None:
    timm_data = pytest.importorskip("timm.data")
    recipe = timm_data.create_transform((3, 32, 32), is_training=True, auto_augment="rand-m9-mstd0.5", re_prob=0.5)

    def augment(image: Image.Image, generator: torch.Generator) -> torch.Tensor:
        return recipe(image)

    first = epoch(memory, small, augment=augment)
    assert same(epoch(memory, small, augment=augment), first)
    pictures, others = by_index(first), by_index(epoch(memory, small, augment=augment, epoch=1))
    assert any(not torch.equal(pictures[i], others[i]) for i in pictures.keys() & others.keys())


def test_an_augmentation_of_another_size_is_a_mistake_not_a_broken_picture(
    memory: ImageData, small: Preprocess
) -> None:
    with pytest.raises(ValueError, match=r"shape \(3, 5, 5\): the model takes \(3, 32, 32\)"):
        epoch(memory, small, augment=lambda image, generator: torch.zeros(3, 5, 5))


def test_training_on_nothing_but_broken_pictures_stops(partly_broken: ImageData, small: Preprocess) -> None:
    with pytest.raises(DataError, match="None of the 4 images of a batch can be read"):
        epoch(partly_broken.subset([4, 5, 6, 7]), small)


def test_pictures_are_read_once_per_batch_and_not_before(memory: ImageData, small: Preprocess) -> None:
    iterator = memory.batches(small, 4)
    assert next(iter(iterator)).number == 0
    assert [b.number for b in iterator] == [1, 2, 3, 4, 5]
