from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from vitscope.data import load_data
from vitscope.data.folders import find_splits, list_images
from vitscope.errors import DataError

Make = Callable[..., Path]


def test_class_folders_directly_are_one_set_without_a_split(class_folders: Make) -> None:
    data = load_data(class_folders({"b": 2, "a": 3}))
    assert data.classes == ["a", "b"]
    assert data.labels == [0, 0, 0, 1, 1]
    assert data.paths == ["a/000.png", "a/001.png", "a/002.png", "b/000.png", "b/001.png"]
    assert (data.split, data.name, data.warnings) == ("all", "pictures", [])


def test_folders_named_by_numbers_are_labelled_in_the_order_of_the_numbers(class_folders: Make) -> None:
    root = class_folders({f"{split}/{c}": 1 for split in ("train", "val") for c in range(21)})
    for split in ("train", "val"):
        data = load_data(root, split)
        assert data.classes == [str(c) for c in range(21)]
        assert data.labels == list(range(21))
        assert [int(path.split("/")[1]) for path in data.paths] == data.labels


def test_classes_are_numbered_as_by_timm(class_folders: Make) -> None:
    from timm.data.readers.reader_image_folder import find_images_and_targets

    names = "10 9 007 100 class10 class2 Class3 Zebra apple n02084071 n01440764 x1y10 x1y9 1e3 _a a-2 a-10 é1 ٣"
    root = class_folders(dict.fromkeys(names.split(), 1))
    _, number = find_images_and_targets(str(root))
    assert load_data("folder", root=root).classes == sorted(number, key=number.__getitem__)


def test_names_that_differ_in_nothing_but_case_or_zeros_have_an_order_of_their_own(class_folders: Make) -> None:
    root = class_folders(dict.fromkeys(("a", "A", "01", "1", "1²"), 1))
    assert load_data(root).classes == ["01", "1", "1²", "A", "a"]


def test_folders_named_by_numbers_that_lack_some_say_how_to_read_them(class_folders: Make) -> None:
    data = load_data(class_folders({"3": 1, "20": 1}))
    with pytest.raises(DataError, match=r"give it as 'imagenet-v2'"):
        data.check_head(1000)


def test_a_split_is_made_for_class_folders(class_folders: Make) -> None:
    root = class_folders({"a": 20, "b": 30})
    train, test = load_data(root, "train"), load_data(root, "validation")
    assert (len(train), len(test), test.split) == (40, 10, "test")
    assert sorted(train.paths + test.paths) == sorted(load_data(root).paths)
    assert test.labels.count(0) == 4


@pytest.mark.parametrize(
    ("asked", "folder"), [(None, "val"), ("val", "val"), ("validation", "val"), ("train", "train"), ("test", "val")]
)
def test_splits_are_folders(class_folders: Make, asked: str | None, folder: str) -> None:
    root = class_folders({"train/a": 3, "train/b": 3, "val/a": 1, "val/b": 1})
    data = load_data(root, asked)
    assert data.split == folder
    assert all(p.startswith(folder + "/") for p in data.paths)


def test_the_labels_agree_between_splits_of_different_classes(class_folders: Make) -> None:
    root = class_folders({"train/a": 1, "train/b": 1, "train/c": 1, "val/c": 1, "val/d": 1})
    assert load_data(root, "train").labels == [0, 1, 2]
    assert load_data(root, "val").labels == [2, 3]
    assert load_data(root, "val").classes == ["a", "b", "c", "d"]


def test_other_folders_with_the_same_classes_are_splits_too(class_folders: Make) -> None:
    root = class_folders({"val/a": 1, "sketches/a": 2, "notes/old": 1})
    assert set(find_splits(root, [])) == {"val", "sketches"}
    assert len(load_data(root, "sketches")) == 2
    with pytest.raises(DataError, match=r"no split 'train'\. It has: sketches, val"):
        load_data(root, "train")


def test_a_class_may_be_called_train(class_folders: Make) -> None:
    assert load_data(class_folders({"train": 1, "bus": 2})).classes == ["bus", "train"]


def test_two_spellings_of_one_split_are_refused(class_folders: Make) -> None:
    with pytest.raises(DataError, match="both val/ and validation/"):
        load_data(class_folders({"val/a": 1, "validation/a": 1}))


def test_the_folder_of_a_split_may_be_given_itself(class_folders: Make) -> None:
    root = class_folders({"train/a": 3, "val/a": 2})
    assert len(load_data(root / "val")) == 2
    assert (len(load_data(root / "val", "val")), load_data(root / "val", "validation").split) == (2, "val")


def test_wordnet_folders_have_imagenets_labels(class_folders: Make) -> None:
    root = class_folders({"val/n01443537": 1, "val/n01440764": 2, "val/n15075141": 1})
    data = load_data(root)
    assert data.labels == [0, 0, 1, 999]
    assert data.num_classes == 1000
    assert data.classes[0] == "tench"
    assert data.class_ids[999] == "n15075141"
    assert len(set(data.classes)) == 1000
    assert load_data("imagenet", root=root).labels == data.labels
    assert load_data("folder", root=root).labels == [0, 0, 1, 2]  # its own classes, for a model of three


def test_a_mixture_of_wordnet_and_other_folders_is_numbered_by_folder_and_says_so(class_folders: Make) -> None:
    root = class_folders({"n01440764": 1, "n99999999": 1, "tench": 1})
    data = load_data(root)
    assert data.labels == [0, 1, 2]
    assert "1 of 3 class folders are WordNet ids" in data.warnings[0]
    with pytest.raises(DataError, match="not WordNet ids"):
        load_data("imagenet", root=root)


def test_pictures_without_class_folders_have_no_labels(class_folders: Make) -> None:
    data = load_data(class_folders({".": 3}))
    assert (data.labels, data.classes) == ([-1, -1, -1], [])
    assert "unknown (-1)" in data.warnings[0]
    root = class_folders({"train/a": 2, "train/b": 2, "test": 2}, name="other")
    assert load_data(root, "test").labels == [-1, -1]
    assert load_data(root, "test").classes == ["a", "b"]


def test_nested_folders_belong_to_their_class(class_folders: Make) -> None:
    data = load_data(class_folders({"a/x/y": 1, "a/z": 1, "b": 1}))
    assert data.paths == ["a/x/y/000.png", "a/z/000.png", "b/000.png"]
    assert data.labels == [0, 0, 1]


def test_hidden_and_other_files_are_not_pictures(class_folders: Make) -> None:
    root = class_folders({"a": 1, ".thumbnails": 2, "__MACOSX": 1})
    (root / "a" / "._000.png").write_bytes(b"x")
    (root / "a" / "notes.txt").write_text("x")
    (root / "README").write_text("x")
    assert load_data(root).paths == ["a/000.png"]


def test_pictures_beside_class_folders_and_empty_class_folders_are_remarked_on(class_folders: Make) -> None:
    root = class_folders({"a": 1, "b": 0})
    shutil.copy(root / "a/000.png", root / "preview.png")
    data = load_data(root)
    assert (len(data), data.classes) == (1, ["a", "b"])
    assert any("1 class folders hold no images: b" in w for w in data.warnings)
    assert any("1 images lie beside the class folders" in w for w in data.warnings)


def test_empty_folders_are_refused_with_what_they_hold(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No images in"):
        load_data(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match="No images in"):
        load_data(tmp_path)
    (tmp_path / "a" / "x.pdf").write_text("x")
    with pytest.raises(DataError, match=r"1 other files \(\.pdf\)"):
        load_data(tmp_path)


def test_a_path_that_is_a_file_or_missing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_text("x")
    with pytest.raises(DataError, match="is a file, not a folder"):
        load_data(tmp_path / "a.zip")
    with pytest.raises(DataError, match="no dataset and no folder"):
        load_data(tmp_path / "missing")
    with pytest.raises(DataError, match="does not exist"):
        load_data("folder", root=tmp_path / "missing")
    with pytest.raises(DataError, match="give root="):
        load_data("imagenet")


def test_symlink_loops_end_and_are_remarked_on(class_folders: Make) -> None:
    root = class_folders({"a/deep": 1, "b": 1})
    (root / "a" / "up").symlink_to("..")  # to the root: would put b's pictures into class a
    (root / "a" / "deep" / "again").symlink_to("../../a")
    (root / "loop").symlink_to(".")
    (root / "b" / "self").symlink_to("self")
    (root / "b" / "self.png").symlink_to("self.png")
    data = load_data(root)
    assert data.classes == ["a", "b"]
    assert data.paths == ["a/deep/000.png", "b/000.png", "b/self.png"]  # the last one will be listed as broken
    assert sum("not followed" in w for w in data.warnings) == 3
    with pytest.raises(DataError, match=r"self\.png"):
        data[2]


def test_links_to_elsewhere_are_followed_once(class_folders: Make, tmp_path: Path) -> None:
    root = class_folders({"a": 1})
    other = class_folders({"x/y": 2}, name="other")
    (root / "b").symlink_to(other / "x")
    (root / "a" / "l1").symlink_to(other)
    (root / "a" / "l2").symlink_to(other)
    data = load_data(root)
    assert data.paths == ["a/000.png", "a/l1/x/y/000.png", "a/l1/x/y/001.png", "b/y/000.png", "b/y/001.png"]
    assert any("l2 leads to a folder that is listed already" in w for w in data.warnings)


def test_pipes_are_not_pictures_but_dangling_links_are_listed(class_folders: Make) -> None:
    root = class_folders({"a": 1})
    os.mkfifo(root / "a" / "pipe.png")
    (root / "a" / "gone.png").symlink_to("nowhere.png")
    assert list_images(root / "a").files == ["000.png", "gone.png"]


def test_a_folder_that_cannot_be_listed_is_remarked_on(class_folders: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    root = class_folders({"a": 1, "b": 1})
    real = os.scandir

    def scandir(path: object) -> object:  # chmod does not stop root
        if str(path).endswith("/b"):
            raise PermissionError(13, "Permission denied")
        return real(path)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "scandir", scandir)
    data = load_data(root)
    assert data.paths == ["a/000.png"]
    assert any("b cannot be listed (Permission denied)" in w for w in data.warnings)


def test_every_usual_kind_of_file_is_found(tmp_path: Path) -> None:
    for name in ("a.JPEG", "b.jpg", "c.PNG", "d.webp", "e.bmp", "f.tif", "g.gif", "h.ppm"):
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    data = load_data(tmp_path)
    assert len(data) == 8
    assert all(data[i].image.size == (4, 4) for i in range(8))


def test_a_file_name_that_is_no_text_is_read_and_shown_as_text(class_folders: Make) -> None:
    root = class_folders({"a": 1})
    (root / "a/000.png").rename(root / "a" / os.fsdecode(b"caf\xe9.png"))  # Latin-1
    (root / "b").mkdir()
    shutil.copy(root / "a" / os.fsdecode(b"caf\xe9.png"), root / "b" / "café.png")
    data = load_data(root)
    assert data.paths == ["a/caf\ufffd.png", "b/café.png"]
    assert data[0].image.size == data[1].image.size == (48, 40)
    assert len(data.fingerprint()) == 32


def test_a_class_folder_whose_name_is_no_text_is_a_class_shown_as_text(class_folders: Make) -> None:
    root = class_folders({"a": 1, "b": 2})
    (root / "b").rename(root / os.fsdecode(b"caf\xe9"))
    data = load_data(root)
    assert data.classes == ["a", "caf\ufffd"]
    assert data.labels == [0, 1, 1]
    assert data[2].image.size == (48, 40)
    assert len(data.fingerprint()) == 32


def test_a_folder_of_raw_digits_says_what_to_type(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(b"x")
    with pytest.raises(DataError, match="type 'mnist' or 'fashion-mnist'"):
        load_data(tmp_path / "mnist")


def test_folders_named_by_class_number_have_the_labels_of_those_with_wordnet_names(
    shared: Path, tmp_path: Path
) -> None:
    for number, folder in enumerate(sorted((shared / "data/imagenet/val").iterdir())):
        (tmp_path / str(number)).symlink_to(folder)
    numbered, named = load_data(tmp_path), load_data(shared / "data/imagenet", "val")
    assert {Path(p).name: label for p, label in zip(numbered.paths, numbered.labels)} == {
        Path(p).name: label for p, label in zip(named.paths, named.labels)
    }


def test_the_real_pictures_have_one_label_each(shared: Path) -> None:
    data = load_data(shared / "data/imagenet")
    assert data.labels == list(range(1000))
    assert data.split == "val"
    assert data.warnings == []
