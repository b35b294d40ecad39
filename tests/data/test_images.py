from __future__ import annotations

import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitscope.data.images import BadFileError, from_array, plain, read_image
from vitscope.errors import DataError

Noise = Callable[..., Image.Image]


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image)


def png16(path: Path, rgb: np.ndarray) -> None:
    """A 16-bit colour PNG by hand: Pillow does not write them."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    height, width, _ = rgb.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in rgb)
    head = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_ordinary_pictures_come_back_unchanged(tmp_path: Path, noise: Noise, mode: str) -> None:
    picture = noise(mode=mode)
    picture.save(tmp_path / "a.png")
    read = read_image(tmp_path / "a.png")
    assert read.mode == mode
    assert np.array_equal(pixels(read), pixels(picture))


@pytest.mark.parametrize("quality", [60, 95])
def test_a_cmyk_jpeg_looks_like_its_rgb_original(tmp_path: Path, quality: int) -> None:
    gradient = np.linspace(0, 255, 64).astype(np.uint8)
    picture = Image.fromarray(np.stack([np.tile(gradient, (64, 1))] * 3, -1))
    picture.convert("CMYK").save(tmp_path / "a.jpg", quality=quality)
    read = read_image(tmp_path / "a.jpg")
    assert read.mode == "RGB"
    assert np.abs(pixels(read).astype(int) - pixels(picture)).mean() < 4


def test_16_bit_grey_is_scaled_not_clipped(tmp_path: Path) -> None:
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    Image.fromarray(values).save(tmp_path / "a.png")
    Image.fromarray(values).save(tmp_path / "a.tif")
    expected = np.rint(values.astype(np.float64) * 255 / 65535)
    for name in ("a.png", "a.tif"):
        read = read_image(tmp_path / name)
        assert read.mode == "L"
        assert np.array_equal(pixels(read), expected)


def test_16_bit_grey_with_a_transparent_value_is_scaled_and_that_value_lies_over_white(tmp_path: Path) -> None:
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    Image.fromarray(values).save(tmp_path / "a.png", transparency=1000)
    assert b"tRNS" in (tmp_path / "a.png").read_bytes()
    expected = np.rint(values.astype(np.float64) * 255 / 65535)
    expected[values == 1000] = 255  # 999 and 1001 have the same eight bits, and are not transparent
    read = read_image(tmp_path / "a.png")
    assert read.mode == "L"
    assert np.array_equal(pixels(read), expected)


def test_16_bit_colour_is_scaled(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 65536, (8, 9, 3))
    png16(tmp_path / "a.png", values)
    assert np.abs(pixels(read_image(tmp_path / "a.png")) - values / 257).max() <= 1


def test_a_palette_picture_shows_its_colours(tmp_path: Path) -> None:
    picture = Image.new("P", (4, 2))
    picture.putpalette([10, 20, 30, 200, 100, 50])
    picture.putdata([0, 1, 0, 1, 1, 1, 0, 0])
    picture.save(tmp_path / "a.png")
    read = pixels(read_image(tmp_path / "a.png"))
    assert read[0, 0].tolist() == [10, 20, 30]
    assert read[0, 1].tolist() == [200, 100, 50]


def test_transparency_lies_over_white(tmp_path: Path) -> None:
    rgba = np.array([[[200, 0, 0, 255], [200, 0, 0, 0], [200, 0, 0, 128]]], np.uint8)
    Image.fromarray(rgba).save(tmp_path / "a.png")
    read = pixels(read_image(tmp_path / "a.png"))
    assert read[0, 0].tolist() == [200, 0, 0]
    assert read[0, 1].tolist() == [255, 255, 255]
    share = 128 / 255
    assert np.abs(read[0, 2] - np.array([200 * share + 255 * (1 - share), *[255 * (1 - share)] * 2])).max() <= 1


def test_a_transparent_colour_lies_over_white_too(tmp_path: Path) -> None:
    Image.fromarray(np.array([[[1, 2, 3], [9, 9, 9]]], np.uint8)).save(tmp_path / "a.png", transparency=(1, 2, 3))
    assert pixels(read_image(tmp_path / "a.png")).tolist() == [[[255, 255, 255], [9, 9, 9]]]
    palette = Image.new("P", (2, 1))
    palette.putpalette([1, 2, 3, 9, 9, 9])
    palette.putdata([0, 1])
    palette.save(tmp_path / "b.gif", transparency=0)
    assert pixels(read_image(tmp_path / "b.gif")).tolist() == [[[255, 255, 255], [9, 9, 9]]]


@pytest.mark.parametrize("kind", ["gif", "png", "webp", "tiff"])
def test_of_an_animation_the_first_frame_is_seen(tmp_path: Path, kind: str) -> None:
    frames = [Image.new("RGB", (20, 20), colour) for colour in ((250, 0, 0), (0, 0, 250))]
    frames[0].save(tmp_path / f"a.{kind}", save_all=True, append_images=frames[1:])
    assert np.abs(pixels(read_image(tmp_path / f"a.{kind}"))[10, 10].astype(int) - [250, 0, 0]).max() <= 8


def test_one_bit_pictures_are_black_and_white(tmp_path: Path) -> None:
    Image.fromarray(np.array([[True, False]])).save(tmp_path / "a.png")
    assert pixels(read_image(tmp_path / "a.png")).tolist() == [[255, 0]]


def test_a_truncated_jpeg_or_png_is_damaged(tmp_path: Path, noise: Noise) -> None:
    for name in ("a.jpg", "a.png", "a.gif", "a.webp"):
        noise(100, 100).save(tmp_path / name)
        raw = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(raw[: len(raw) // 2])
        with pytest.raises(BadFileError, match="damaged"):
            read_image(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty file"),
        (b"Hello, I am a text.", "not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "not an image"),  # would start another program
        (b"\xff\xd8\xff\xe0" + b"\0" * 50, "not an image|damaged"),
    ],
)
def test_a_file_that_is_no_picture_has_a_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "a.jpg").write_bytes(content)
    with pytest.raises(BadFileError, match=reason) as caught:
        read_image(tmp_path / "a.jpg")
    assert "a.jpg" in str(caught.value)


def test_a_decompression_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    side = 30_000  # 2.7 GB as RGB, some kilobytes as a file
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    body = struct.pack(">I", 13) + b"IHDR" + head + struct.pack(">I", zlib.crc32(b"IHDR" + head))
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + body + struct.pack(">I", 0) + b"IDAT" + b"\0" * 4)
    with pytest.raises(BadFileError, match="absurdly large"):
        read_image(tmp_path / "a.png")


def test_a_picture_beyond_the_limit_is_refused_and_the_limit_can_be_raised(
    tmp_path: Path, noise: Noise, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise(40, 48).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40 * 48 - 1)  # Pillow itself only warns up to twice the limit
    with pytest.raises(BadFileError, match="48 x 40 pixels"):
        read_image(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40 * 48)
    assert read_image(tmp_path / "a.png").size == (48, 40)


def test_missing_files_dangling_links_and_pipes_have_a_reason(tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match="no such file"):
        read_image(tmp_path / "a.png")
    (tmp_path / "b.png").symlink_to("nowhere.png")
    with pytest.raises(BadFileError, match="link to a file that does not exist"):
        read_image(tmp_path / "b.png")
    (tmp_path / "c.png").mkdir()
    with pytest.raises(BadFileError, match=r"c\.png"):
        read_image(tmp_path / "c.png")


def test_a_file_without_permission_has_a_reason(tmp_path: Path, noise: Noise, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*args: object) -> None:  # chmod does not stop root
        raise PermissionError(13, "Permission denied")

    noise().save(tmp_path / "a.png")
    monkeypatch.setattr("builtins.open", forbidden)
    with pytest.raises(BadFileError, match="permission"):
        read_image(tmp_path / "a.png")


def test_arrays_become_pictures_by_their_type() -> None:
    grey = np.array([[0, 100], [200, 255]], np.uint8)
    assert np.array_equal(pixels(from_array(grey)), grey)
    assert np.array_equal(pixels(from_array(grey[..., None])), grey)
    assert np.array_equal(pixels(from_array(grey.astype(np.uint16) * 257)), grey)
    assert np.array_equal(pixels(from_array(grey / 255)), grey)
    assert pixels(from_array(grey > 99)).tolist() == [[0, 255], [255, 255]]
    assert from_array(np.zeros((2, 3, 3), np.uint8)).size == (3, 2)


@pytest.mark.parametrize("bad", [np.zeros((2, 2, 2, 2)), np.zeros((3, 8, 8)), np.zeros(4), np.zeros((0, 4))])
def test_arrays_of_other_shapes_are_no_pictures(bad: np.ndarray) -> None:
    with pytest.raises(DataError, match="no picture"):
        from_array(bad)


@pytest.mark.parametrize(
    "bad", [np.full((2, 2), 1.5), np.full((2, 2), np.nan), np.full((2, 2), -1), np.full((2, 2), 10**6)]
)
def test_pixels_of_unknown_range_are_refused(bad: np.ndarray) -> None:
    with pytest.raises(DataError, match=r"outside 0\.\.1|unknown range"):
        from_array(bad)


def test_the_error_survives_the_way_between_processes() -> None:
    error = pickle.loads(pickle.dumps(BadFileError("a.png", "broken")))
    assert (str(error), error.reason) == ("a.png: broken", "broken")


def test_every_mode_of_pillow_becomes_grey_or_colour(noise: Noise) -> None:
    for mode in ("1", "L", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "LA", "PA", "RGBX", "I;16"):
        image = plain(Image.new(mode, (5, 4)))
        assert image.mode in ("L", "RGB"), mode
        assert image.size == (5, 4)
