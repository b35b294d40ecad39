"""Where the files of a tar lie, from its headers alone: then any of them is one seek away, and nothing is unpacked.

The headers are walked here and not by `tarfile`, for two reasons: a tar that ends too early has to be told from a whole
one (`tarfile` ends in silence at a damaged header), and a header that lies about sizes must not lead astray. Known are
the old format, ustar, GNU's and POSIX's (pax) long names; sparse files are none of a picture's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

from vitscope.errors import DataError

_BLOCK = 512
_REGULAR = (b"0", b"\0", b"7")
_WITHOUT_DATA = (b"1", b"2", b"3", b"4", b"5", b"6")  # links, devices, folders, pipes: their size means nothing
_LONGEST_NAME = 2**20  # a header that claims more is damaged
_LARGEST_KEPT = 2**20  # a label is shorter


class Member(NamedTuple):
    """A regular file in a tar."""

    name: str
    offset: int  # of its first byte
    size: int


@dataclass
class TarIndex:
    """The regular files of a tar, in their order, and what is wrong with the rest of it."""

    members: list[Member] = field(default_factory=list)
    size: int = 0  # of the tar
    fault: str | None = None  # why it ended too early


class _Damage(Exception):
    pass


def index_tar(path: Path, keep: Callable[[str], bool] | None = None) -> tuple[TarIndex, dict[int, bytes]]:
    """The index of a tar, and the contents of those small files whose names are to be kept, by offset.

    What lies before a damage is kept, and a file that the end cuts off is listed: reading it says so.
    """
    index, contents = TarIndex(), {}
    try:
        with open(path, "rb") as file:
            index.size = file.seek(0, 2)
            file.seek(0)
            _refuse_other(file, path)
            try:
                for member in _members(file, index.size):
                    index.members.append(member)
                    if keep is not None and member.size <= _LARGEST_KEPT and keep(member.name):
                        contents[member.offset] = file.read(member.size)
            except _Damage as damage:
                index.fault = str(damage)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    return index, contents


def _refuse_other(file: BinaryIO, path: Path) -> None:
    head = file.read(_BLOCK)
    file.seek(0)
    if head[:2] == b"\x1f\x8b" or head[:3] == b"BZh" or head[:6] == b"\xfd7zXZ\0" or head[:4] == b"\x28\xb5\x2f\xfd":
        raise DataError(
            f"{path} is compressed: pictures in it cannot be reached without unpacking all that is before them. "
            "Unpack the tar itself (gunzip, unxz, zstd -d): pictures hardly shrink anyway."
        )
    if len(head) < _BLOCK or not (_is_header(head) or head == bytes(_BLOCK)):
        raise DataError(f"{path} is not a tar file ({'its first header is damaged' if head else 'it is empty'}).")


def _members(file: BinaryIO, end: int) -> Iterator[Member]:
    """All regular files. The reader may move the file's position."""
    at, long_name, long_size = 0, None, None
    while True:
        file.seek(at)
        header = file.read(_BLOCK)
        if header == bytes(_BLOCK):
            return
        if len(header) < _BLOCK:
            raise _Damage("it ends too early")
        if not _is_header(header):
            raise _Damage(f"a header is damaged at byte {at:,}")
        kind, size = header[156:157], _number(header[124:136])
        if long_size is not None and kind in _REGULAR:
            size = long_size
        if size < 0:
            raise _Damage(f"a header is damaged at byte {at:,}")
        data = at + _BLOCK
        at = data if kind in _WITHOUT_DATA else data + -(-size // _BLOCK) * _BLOCK
        if kind in (b"L", b"x"):  # the name of the next file
            if size > _LONGEST_NAME or data + size > end:
                raise _Damage("it ends too early")
            text = file.read(size)
            if kind == b"L":
                long_name = _text(text)
            else:
                name, long_size = _pax(text)
                long_name = name if name is not None else long_name
            continue
        if kind in _REGULAR:
            name = long_name if long_name is not None else _name(header)
            if not name.endswith("/"):  # how the oldest tars write a folder
                file.seek(data)
                yield Member(name, data, size)
        if kind not in (b"K", b"g"):  # those stand between a long name and its file
            long_name = long_size = None
        if at > end:
            raise _Damage("it ends too early")


def _is_header(header: bytes) -> bool:
    """Is the sum of all bytes the one it says, with the sum's own eight bytes taken for spaces?"""
    return _number(header[148:156]) == sum(header) - sum(header[148:156]) + 8 * 32


def _number(digits: bytes) -> int:
    """Octal digits, or for large numbers bytes after a first one with its highest bit set; -1 where it is neither."""
    if digits[0] & 0x80:
        return int.from_bytes(bytes([digits[0] & 0x7F]) + digits[1:], "big") if digits[0] == 0x80 else -1
    text = digits.split(b"\0", 1)[0].strip()
    try:
        return int(text, 8) if text else 0
    except ValueError:
        return -1


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _name(header: bytes) -> str:
    name, prefix = _text(header[:100]), ""
    if header[257:263] == b"ustar\0":  # GNU's own format keeps other things there
        prefix = _text(header[345:500])
    return f"{prefix}/{name}" if prefix else name


def _pax(text: bytes) -> tuple[str | None, int | None]:
    """Name and size among records '<length> <key>=<value>\\n'."""
    name, size = None, None
    while text:
        length, space, rest = text.partition(b" ")
        if not space or not length.isdigit() or not len(length) + 1 < int(length) <= len(text):
            break
        key, _, value = rest[: int(length) - len(length) - 2].partition(b"=")
        if key == b"path":
            name = value.decode("utf-8", "surrogateescape")
        elif key == b"size" and value.isdigit():
            size = int(value)
        text = text[int(length) :]
    return name, size
