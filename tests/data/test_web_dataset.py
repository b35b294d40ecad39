"""The embedded digits as a WebDataset of tar files: the same pictures, labels and tables as the digits themselves."""

from __future__ import annotations

import io
import json
import signal
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import launch
from vitscope.data import ImageData, load_data
from vitscope.data.web_dataset import TarPictures
from vitscope.errors import DataError
from vitscope.models.preprocessing import Preprocess
from vitscope.runs import Run
from vitscope.runs.tables import read_csv

LENGTHS = {"digits-test-00.tar": 300, "digits-test-01.tar": 250, "digits-test-02.tar": 250, "digits-test-03.tar": 200}


def write_tar(path: Path, files: dict[str, bytes], format: int = tarfile.PAX_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=format) as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


@pytest.fixture(scope="session")
def digits() -> ImageData:
    return load_data("mnist5k", "test", masks=False)


@pytest.fixture(scope="session")
def shards(digits: ImageData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test digits, written by webdataset itself, with the info file that timm reads."""
    webdataset = pytest.importorskip("webdataset")
    root = tmp_path_factory.mktemp("digits")
    numbers = iter(range(len(digits)))
    for file, length in LENGTHS.items():
        with webdataset.TarWriter(str(root / file)) as sink:
            for i in (next(numbers) for _ in range(length)):
                sink.write({"__key__": f"{i:05d}", "png": encoded(digits[i].image), "cls": digits.labels[i]})
    split = {"name": "test", "num_samples": 1000, "filenames": [*LENGTHS], "shard_lengths": [*LENGTHS.values()]}
    (root / "_info.json").write_text(json.dumps({"splits": {"test": split}}))
    return root


@pytest.fixture
def samples(noise: Callable[..., Image.Image]) -> Callable[..., dict[str, bytes]]:
    """Files of `n` samples: png and cls, classes 0, 1, 2, 0, ..."""

    def make(n: int, first: int = 0) -> dict[str, bytes]:
        files = {}
        for i in range(first, first + n):
            files |= {f"{i:04d}.png": encoded(noise(seed=i)), f"{i:04d}.cls": str(i % 3).encode()}
        return files

    return make


def test_the_shards_hold_the_digits(digits: ImageData, shards: Path) -> None:
    data = load_data("wds/digits", "test", root=shards)
    assert (len(data), data.split, data.name) == (1000, "test", "wds/digits")
    assert (data.labels, data.classes, data.warnings) == (digits.labels, digits.classes, [])
    assert data.paths[300] == "digits-test-01.tar/00300.png"
    assert all(np.array_equal(data[i].image, digits[i].image) for i in range(0, 1000, 7))


def test_timm_reads_the_same_pictures_and_labels(shards: Path) -> None:
    from timm.data import create_dataset

    data = load_data("wds/digits", "test", root=shards)
    theirs = create_dataset("wds/digits", root=str(shards), split="test")
    count = 0
    for i, (picture, label) in enumerate(theirs):
        assert label == data.labels[i]
        assert i % 50 or np.array_equal(picture, data[i].image.convert("RGB"))
        count += 1
    assert count == len(data)


def test_choices_of_pictures_work_as_with_any_data(shards: Path) -> None:
    data = load_data("wds/", "test", root=shards, per_class=3)
    assert sorted(data.labels) == sorted([*range(10)] * 3)
    assert load_data("wds/", "test", root=shards, images=10).paths == data.paths[:10]
    every = load_data("wds", "test", root=shards, every=100)
    assert every.paths == [f"digits-test-0{s}.tar/{i:05d}.png" for s, i in zip("0001112233", range(0, 1000, 100))]
    assert every.shards == [0, 3, 6, 8]  # still one after the other
    assert data.shards == []  # chosen to and fro


def test_some_of_the_shards_are_a_split_by_their_pattern(shards: Path) -> None:
    data = load_data("wds/digits", "digits-test-{01..02}.tar|500", root=shards)
    assert (len(data), data.paths[0], data.shards) == (500, "digits-test-01.tar/00300.png", [0, 250])
    with pytest.raises(DataError, match=r"2 of the 3 shards .* not in .*digits-test-04.tar"):
        load_data("wds/digits", "digits-test-{03..05}.tar", root=shards)


def test_without_an_info_file_names_tell_the_splits(tmp_path: Path, samples: Any) -> None:
    write_tar(tmp_path / "a-train-0.tar", samples(6))
    write_tar(tmp_path / "validation/0.tar", samples(3))
    assert len(load_data("wds/a", "train", root=tmp_path)) == 6
    held_out = load_data("wds/a", root=tmp_path)
    assert (len(held_out), held_out.split) == (3, "val")
    with pytest.raises(DataError, match=r"no split 'extra'.*train, val"):
        load_data("wds/a", "extra", root=tmp_path)
    write_tar(tmp_path / "more.tar", samples(1))
    assert load_data("wds/a", root=tmp_path).warnings == [
        "1 tar files belong to no split and are left out, e.g. more.tar."
    ]


def test_tars_without_a_split_are_split_by_vitscope(tmp_path: Path, samples: Any) -> None:
    write_tar(tmp_path / "sets/mine/0.tar", samples(30))
    assert len(load_data("wds/mine", root=tmp_path / "sets")) == 30
    assert [len(load_data("wds/mine", s, root=tmp_path / "sets")) for s in ("train", "test")] == [24, 6]


def test_the_fingerprint_is_that_of_the_shards_wherever_they_lie(tmp_path: Path, samples: Any) -> None:
    for place, files in (("a", samples(4)), ("b", samples(4)), ("c", samples(4) | {"x.txt": b"more"})):
        write_tar(tmp_path / place / "0.tar", files)
    a, b, c = (load_data("wds", root=tmp_path / place).fingerprint() for place in "abc")
    assert a == b != c
    chosen = load_data("wds", root=tmp_path / "a", images=2)
    assert chosen.fingerprint() == load_data("wds", root=tmp_path / "b", images=2).fingerprint() != a


def test_class_names_and_labels_by_name_come_from_timms_class_map(tmp_path: Path, samples: Any) -> None:
    files = samples(3) | {"9.png": samples(1)["0000.png"], "9.cls": b"dog\n"}
    write_tar(tmp_path / "0.tar", files)
    (tmp_path / "class_map.txt").write_text("cat\ncow\nhen\ndog\n")
    data = load_data("wds", root=tmp_path)
    assert (data.classes, data.labels) == (["cat", "cow", "hen", "dog"], [0, 1, 2, 3])


def test_labels_of_json_files_where_the_info_file_says_so(tmp_path: Path, samples: Any) -> None:
    picture = samples(1)["0000.png"]
    files = {}
    for i, label in enumerate([4, -1, 2]):  # timm leaves out what is negative
        files |= {f"{i}.png": picture, f"{i}.cls": b"0", f"{i}.json": json.dumps({"real": label}).encode()}
    write_tar(tmp_path / "0.tar", files)
    split = {"name": "val", "num_samples": 3, "filenames": ["0.tar"], "shard_lengths": [3], "alt_label": "real"}
    (tmp_path / "info.yaml").write_text(json.dumps({"splits": {"validation": split}}))
    data = load_data("wds", root=tmp_path)
    assert (data.labels, data.paths, data.split) == ([4, 2], ["0.tar/0.png", "0.tar/2.png"], "val")


def test_a_truncated_tar_is_remarked_and_its_last_picture_skipped(
    tmp_path: Path, samples: Any, small: Preprocess
) -> None:
    path = write_tar(tmp_path / "0.tar", {name: c for name, c in samples(5).items() if name.endswith("png")})
    with tarfile.open(path) as tar:
        last = tar.getmembers()[3]
    path.write_bytes(path.read_bytes()[: last.offset_data + 700])
    data = load_data("wds", root=tmp_path)
    assert data.warnings[0] == "0.tar is damaged (it ends too early): only 4 pictures of it are known."
    (batch,) = data.batches(small, 8)
    assert (len(batch), [s.index for s in batch.skipped]) == (3, [3])
    assert batch.skipped[0].reason == "0.tar ends before the picture does: fetch it again"
    with pytest.raises(DataError, match=r"0\.tar is damaged"):
        load_data("wds", root=tmp_path, strict=True)


def test_what_is_missing_in_samples_is_remarked(tmp_path: Path, samples: Any, small: Preprocess) -> None:
    files = samples(6) | {"7.txt": b"no picture", "7.cls": b"1", "8.jpg": b"no picture", "8.cls": b"1"}
    del files["0004.cls"]
    files["0005.cls"] = b"?"
    write_tar(tmp_path / "0.tar", files)
    write_tar(tmp_path / "1.tar", {"readme.txt": b"nothing here"})
    data = load_data("wds", root=tmp_path)
    assert data.labels == [0, 1, 2, 0, -1, -1, 1]
    assert data.warnings == [
        "1.tar has no pictures (jpg, png, webp, ...).",
        "1 samples have no picture and are left out, e.g. 0.tar/7.",
        "2 samples have no class number in a .cls file: their labels are unknown, e.g. 0004.png.",
    ]
    (batch,) = data.batches(small, 8)
    assert [(s.path, s.reason) for s in batch.skipped] == [("0.tar/8.jpg", "not an image, or damaged at its beginning")]


def test_tars_without_labels_are_data_without_labels(tmp_path: Path, samples: Any) -> None:
    write_tar(tmp_path / "0.tar", {name: c for name, c in samples(2).items() if name.endswith("png")})
    data = load_data("wds", root=tmp_path, strict=True)
    assert data.labels == [-1, -1]
    assert data.warnings == ["No sample has a class number in a .cls file: labels are unknown."]


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({}, r"has no tar files: expected shards such as"),
        ({"0.tar.gz": b"\x1f\x8b"}, r"has no tar files.* 0.tar.gz is compressed"),
        ({"0.tar": b""}, r"0.tar is not a tar file \(it is empty\)"),
        ({"0.tar": b"version https://git-lfs" * 99}, r"0.tar is not a tar file \(its first header is damaged\)"),
        ({"0.tar": b"\x1f\x8b\x08" + bytes(600)}, r"0.tar is compressed: .*gunzip"),
        ({"0.tar": bytes(1024)}, r"no pictures in the 1 tar files .*0.tar has no pictures"),
        ({"_info.json": b"{"}, r"_info.json cannot be read"),
        ({"_info.json": b"[1]"}, r"does not say which splits there are"),
        ({"info.json": b'{"splits": {"val": {}}}'}, r"expected 'filenames', a list of tar files"),
        ({"info.json": b'{"splits": {"val": {"filenames": ["pipe:true"]}}}'}, r"'pipe:true'.*Nothing is fetched"),
        ({"info.json": b'{"splits": {"val": {"filenames": ["../a.tar"]}}}'}, r"only tar files below"),
        ({"info.json": b'{"splits": {"val": {"filenames": ["7.tar"]}}}'}, r"1 of the 1 shards .* e.g. 7.tar"),
    ],
)
def test_folders_that_are_no_set_are_answered_in_words(tmp_path: Path, contents: Any, message: str) -> None:
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_data("wds/a", "val", root=tmp_path)


def test_the_folder_has_to_be_given() -> None:
    with pytest.raises(DataError, match=r"--root FOLDER"):
        load_data("wds/digits", "test")


def test_pictures_are_read_one_by_one_and_not_kept(tmp_path: Path, noise: Any, small: Preprocess) -> None:
    pictures = {f"{i}.bmp": encoded(noise(192, 192, seed=i), "BMP") for i in range(4)}
    for s in range(4):
        write_tar(tmp_path / f"{s}.tar", {f"{s}{i:02d}.bmp": pictures[f"{i % 4}.bmp"] for i in range(40)})
    total = sum(file.stat().st_size for file in tmp_path.iterdir())
    tracemalloc.start()
    try:
        data = load_data("wds", root=tmp_path)
        assert sum(len(batch) for batch in data.batches(small, 16)) == 160
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total > 17e6
    assert peak < total / 8


SCRIPT = """
import os, signal, sys
from vitscope.analyses import analyze, Analysis, register_analysis
from vitscope.data import load_data
from vitscope.data.web_dataset import TarPictures
from vitscope.models import open_model

folder, out, *jobs = sys.argv[1:]
read = TarPictures.__getitem__
reaped = None

def noted(self, i):
    with open(f"{seen}.{os.environ.get('RANK', 0)}", "a") as file:
        file.write(f"{i}\\n")
    if i == reaped:
        os.kill(os.getpid(), signal.SIGKILL)
    return read(self, i)

TarPictures.__getitem__ = noted
small = dict(img_size=28, patch_size=7, in_chans=1, embed_dim=32, depth=2, num_heads=2, num_classes=10)
model = open_model("vit_tiny_patch16_224", "random", **small)
data = load_data("wds/digits", "test", root=folder)

def look(name):
    analyze(model, data, ["accuracy", "attention"], f"{out}/{name}", batch_size=64, save_every=0, progress=False,
            report=False)

for job in jobs:
    name, _, at = job.partition(":")
    seen, reaped = f"{out}/{name}.seen", int(at) if at else None
    if len(jobs) == 1:
        look(name)
    elif not (child := os.fork()):
        look(name)
        os._exit(0)
    else:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("script") / "look.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(scope="module")
def runs(script: Path, shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run, and one that was killed at its 700th picture and started again."""
    out = tmp_path_factory.mktemp("runs")
    result = launch.run(script, shards, out, "straight", "killed:700", "killed")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["0", str(-signal.SIGKILL), "0"], result.stderr
    return out


def tables(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "tables").glob("*.csv"))}


def reads(out: Path, name: str, rank: int = 0) -> list[int]:
    return [int(line) for line in (out / f"{name}.seen.{rank}").read_text().split()]


def test_a_killed_run_goes_on_at_its_picture_and_ends_with_the_same_bytes(runs: Path) -> None:
    assert tables(runs / "killed") == tables(runs / "straight")
    batch = 700 // 64 * 64
    assert reads(runs, "killed") == [*range(701), *range(batch, 1000)]


def test_the_tables_are_those_of_the_digits_themselves(runs: Path, digits: ImageData, tmp_path: Path) -> None:
    import torch

    from vitscope.analyses import analyze
    from vitscope.models import open_model

    small = {"img_size": 28, "patch_size": 7, "in_chans": 1, "embed_dim": 32, "depth": 2, "num_heads": 2}
    model = open_model("vit_tiny_patch16_224", "random", num_classes=10, **small)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        how: dict[str, Any] = {"batch_size": 64, "progress": False, "report": False}
        run = analyze(model, digits, ["accuracy", "attention"], tmp_path / "own", **how)
    finally:
        torch.set_num_threads(threads)
    assert isinstance(run, Run)
    ours, theirs = tables(run.path), tables(runs / "straight")
    assert {"accuracy.csv", "attention.csv"} <= ours.keys() == theirs.keys()
    named = [name for name in ours if b"mnist5k[" in ours[name]]  # tables that name the pictures
    assert {name: ours[name] for name in ours if name not in named} == {n: theirs[n] for n in ours if n not in named}


def test_two_processes_are_dealt_out_whole_shards(runs: Path, script: Path, shards: Path, tmp_path: Path) -> None:
    result = launch.run(script, shards, tmp_path, "pair", world=2)
    assert result.returncode == 0, result.stderr
    first, second = reads(tmp_path, "pair", 0), reads(tmp_path, "pair", 1)
    cut = -(-550 // 64) * 64  # the first batch that begins in the third shard
    assert (first, second) == ([*range(cut)], [*range(cut, 1000)])
    pair = Run.open(tmp_path / "pair")
    assert pair.summary["accuracy.top1"]["n"] == 1000
    for file in sorted((runs / "straight" / "tables").glob("*.csv")):
        pd.testing.assert_frame_equal(pair.table(file.stem), read_csv(file), rtol=1e-6, atol=1e-6)


def test_pictures_travel_to_worker_processes(shards: Path) -> None:
    data = load_data("wds/digits", "test", root=shards, every=50)
    assert isinstance(data._source.images, TarPictures)
    preprocess = Preprocess((1, 28, 28), (0.5,), (0.5,), "bilinear", 1.0)
    here = [batch.images for batch in data.batches(preprocess, 8)]
    there = [batch.images for batch in data.batches(preprocess, 8, workers=1)]
    assert len(here) == 3
    assert all(a.equal(b) for a, b in zip(here, there, strict=True))
