"""Python's own tarfile is the oracle of the index."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from vitscope.data.tar_index import index_tar
from vitscope.errors import DataError

NAMES = [
    "a.png",
    "folder/b.cls",
    "x" * 99,
    "p" * 90 + "/" + "q" * 90,
    "long/" + "n" * 150 + ".jpg",
    "häßlich.png",
    "z.cls",
]


def tar_of(path: Path, format: int) -> Path:
    with tarfile.open(path, "w", format=format) as tar:
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for i, name in enumerate(NAMES):
            if format == tarfile.USTAR_FORMAT and len(name) > 150 and name.startswith("long"):
                continue  # that format cannot say it
            entry = tarfile.TarInfo(name)
            entry.size = 700 * i
            tar.addfile(entry, io.BytesIO(bytes([i]) * 700 * i))
        link = tarfile.TarInfo("link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "n" * 150
        if format != tarfile.USTAR_FORMAT:
            tar.addfile(link)
        last = tarfile.TarInfo("last.png")
        last.size = 3
        tar.addfile(last, io.BytesIO(b"end"))
    return path


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_the_index_lists_what_tarfile_lists(tmp_path: Path, format: int) -> None:
    path = tar_of(tmp_path / "a.tar", format)
    with tarfile.open(path) as tar:
        expected = [(m.name, m.offset_data, m.size) for m in tar if m.isreg()]
    index, contents = index_tar(path, lambda name: name.endswith(".cls"))
    assert index.members == expected
    assert (index.fault, index.size) == (None, path.stat().st_size)
    assert sorted(map(len, contents.values())) == [700, 4200]


def test_every_cut_through_a_tar_is_told_from_its_end(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "a.tar", tarfile.PAX_FORMAT)
    whole, _ = index_tar(path)
    raw = path.read_bytes()
    end = whole.members[-1].offset + 512
    for cut in range(512, end + 1, 256):
        path.write_bytes(raw[:cut])
        index, _ = index_tar(path)
        assert index.fault == "it ends too early"
        assert index.members == whole.members[: len(index.members)]
        assert all(m.offset <= cut for m in index.members)
    path.write_bytes(raw[: end + 512])
    assert index_tar(path)[0] == type(whole)(whole.members, end + 512, None)


@pytest.mark.parametrize("size", [b"7" * 11 + b"\0", b"\xff" * 12, b"\x80" + b"\xff" * 11, b"-0000000512\0"])
def test_a_header_that_lies_about_sizes_leads_nowhere(tmp_path: Path, size: bytes) -> None:
    path = tar_of(tmp_path / "a.tar", tarfile.GNU_FORMAT)
    raw = bytearray(path.read_bytes())
    raw[512 + 124 : 512 + 136] = size
    header = raw[512:1024]
    total = sum(header) - sum(header[148:156]) + 8 * 32
    raw[512 + 148 : 512 + 156] = b"%06o\0 " % total
    path.write_bytes(raw)
    index, _ = index_tar(path, lambda name: True)
    assert index.fault is not None
    assert len(index.members) <= 1


def test_a_damaged_header_ends_the_index(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "a.tar", tarfile.GNU_FORMAT)
    whole, _ = index_tar(path)
    raw = bytearray(path.read_bytes())
    at = whole.members[2].offset - 512
    raw[at + 3] ^= 1
    path.write_bytes(raw)
    index, _ = index_tar(path)
    assert (index.members, index.fault) == (whole.members[:2], f"a header is damaged at byte {at:,}")


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone.tar cannot be read: No such file"):
        index_tar(tmp_path / "gone.tar")
