"""Image files: what they become, and what is refused before it does harm."""

from __future__ import annotations

import io
import os
import random
import struct
import tracemalloc
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageFile

from platform.cli.models import read_image
from platform.data.dataset import FORMATS, MOST_BYTES, ImageFiles, decode
from platform.errors import ConfigError, DataError
from tests.drawn._pictures import picture, write_picture

RED, BLUE = (200, 30, 40), (10, 20, 220)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def halves(mode: str = "RGB") -> Image.Image:
    """Red on the left, blue on the right, six pixels wide and four high."""
    pixels = np.empty((4, 6, 3), np.uint8)
    pixels[:, :3], pixels[:, 3:] = RED, BLUE
    return Image.fromarray(pixels).convert(mode)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, rows: bytes, *, depth: int = 8, colour: int = 2) -> bytes:
    """A PNG file written by hand; `rows` are not yet compressed."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


@pytest.mark.parametrize("kind", FORMATS)
def test_all_formats_are_read(kind: str) -> None:
    pixels = decode(encoded(halves().resize((60, 40), Image.Resampling.NEAREST), kind), "x")
    assert pixels.shape == (40, 60, 3) and pixels.dtype == np.uint8
    # Away from the border lossy formats are near.
    np.testing.assert_allclose(pixels[20, 8], RED, atol=6)
    np.testing.assert_allclose(pixels[20, 52], BLUE, atol=6)


def test_sixteen_bits_are_scaled() -> None:
    # Pillow by itself cuts off at 255 and gives 255 for all of them but the first.
    values = (255, 256, 128 * 256 + 255, 65535)
    data = png(4, 1, b"\0" + struct.pack(">4H", *values), depth=16, colour=0)
    np.testing.assert_array_equal(decode(data, "x")[0, :, 0], [0, 1, 128, 255])
    for mode, order in (("I;16", "<u2"), ("I;16B", ">u2")):
        grey = Image.frombytes(mode, (4, 1), np.array(values, order).tobytes())
        np.testing.assert_array_equal(decode(encoded(grey, "TIFF"), "x")[0, :, 2], [0, 1, 128, 255])
    # A dark image stays dark, whatever its own least and largest value.
    dark = Image.fromarray(np.array([[0, 600]], np.uint16))
    np.testing.assert_array_equal(decode(encoded(dark, "TIFF"), "x")[0, :, 0], [0, 2])
    coloured = png(2, 1, b"\0" + struct.pack(">6H", 65535, 0, 257, 0, 65535, 0), depth=16)
    np.testing.assert_array_equal(decode(coloured, "x"), [[[255, 0, 1], [0, 255, 0]]])


def test_what_is_no_image_of_a_valid_format() -> None:
    for data in (b"", b"text where images are expected", b"\xff\xd8"):
        with pytest.raises(DataError, match=r"'a/b.jpg' is (no|a damaged) image"):
            decode(data, "a/b.jpg")
    with pytest.raises(DataError, match="valid: one of JPEG"):
        decode(encoded(halves(), "TGA"), "x")


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_cut_off_image_is_refused_whatever_another_package_asked_of_pillow(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # WeasyPrint does this when it is imported, so after a process has made a report in PDF.
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    data = encoded(Image.effect_noise((64, 64), 50.0), kind)[:-700]
    with pytest.raises(DataError, match="'x' is a damaged image"):
        decode(data, "x")
    (tmp_path / "x").write_bytes(data)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(ConfigError, match="is not a readable image"):
        read_image(tmp_path / "x")


def test_tiff_is_one_page_of_values_with_a_fixed_place_in_eight_bits() -> None:
    page = halves()
    with pytest.raises(DataError, match=r"'x' has several pages; valid: one"):
        decode(encoded(page, "TIFF", save_all=True, append_images=[page]), "x")
    for values in (np.float32, np.int32):
        odd = Image.fromarray(np.full((2, 2), 70_000, values))
        with pytest.raises(DataError, match="'x' has values of 32 bits"):
            decode(encoded(odd, "TIFF"), "x")
    grey = Image.fromarray(np.array([[0, 65535]], np.uint16))
    with pytest.raises(DataError, match="'x' has values of 16 bits"):
        decode(encoded(grey, "TIFF", tiffinfo={262: 0}), "x")
    alpha = halves("RGBA")
    alpha.putalpha(7)
    for picture_, options in ((alpha, {}), (page, {"compression": "tiff_lzw"}), (page, {})):
        pixels = decode(encoded(picture_, "TIFF", **options), "x")
        np.testing.assert_array_equal(pixels, np.asarray(page))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("width", "height"), [(10_000, 8_001), (2**31 - 1, 2**31 - 1)])
def test_bombs_are_refused_before_anything_is_allocated(width: int, height: int) -> None:
    data = png(width, height, bytes(1000))
    decode(png(1, 1, bytes(4)), "x")
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="'x' claims"):
            decode(data, "x")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_text_bombs_in_a_header() -> None:
    text = chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(80_000_000), 1))
    data = png(1, 1, bytes(4))
    with pytest.raises(DataError, match="is a damaged image"):
        decode(data[:33] + text + data[33:], "x")


def test_warnings_of_the_decoder_are_no_tracebacks() -> None:
    # An animation of no frames: Pillow warns, and shows the picture.
    odd = png(1, 1, b"\0" + bytes([9, 8, 7]))
    odd = odd[:33] + chunk(b"acTL", bytes(8)) + odd[33:]
    with pytest.raises(DataError, match=r"damaged image \(UserWarning\)"):
        decode(odd, "x")
    with warnings.catch_warnings(action="ignore"):
        np.testing.assert_array_equal(decode(odd, "x"), [[[9, 8, 7]]])


def test_damaged_bytes_never_end_in_another_error() -> None:
    rng = random.Random(5)
    files = [encoded(picture(0, 0, 20), kind) for kind in FORMATS]
    outcomes = [0, 0]
    for turn in range(900):
        data = bytearray(files[turn % len(files)])
        for _ in range(rng.choice((1, 3, 9))):
            data[rng.randrange(rng.choice((40, len(data))))] = rng.randrange(256)
        try:
            pixels: NDArray[np.uint8] | None = decode(bytes(data), "x")
        except DataError:
            pixels = None
        outcomes[pixels is not None] += 1
        assert pixels is None or pixels.ndim == 3
    assert min(outcomes) > 30


def only(path: Path, name: str) -> bytes:
    return ImageFiles(path, (name,)).bytes_of(0)


@pytest.mark.parametrize(
    "name", ["../secret.png", "a/../../secret.png", "{absolute}", "link.png", "../data-b/x.png"]
)
def test_files_outside_are_not_read(tmp_path: Path, name: str) -> None:
    root = tmp_path / "data"
    (root / "a").mkdir(parents=True)
    write_picture(tmp_path / "secret.png", 0, 0)
    write_picture(tmp_path / "data-b/x.png", 0, 0)
    (root / "link.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(DataError, match="leads out of"):
        only(root, name.format(absolute=tmp_path / "secret.png"))


def test_what_is_no_file_or_too_large(tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    for name in ("folder.png", "pipe.png"):
        with pytest.raises(DataError, match=f"{name}' is no"):
            only(tmp_path, name)
    # A hole in a file takes no room on the disk.
    (tmp_path / "a.png").touch()
    os.truncate(tmp_path / "a.png", MOST_BYTES + 1)
    with pytest.raises(DataError, match="is too large"):
        only(tmp_path, "a.png")


@pytest.mark.parametrize(("depth", "colour", "size"), [(16, 0, 2), (8, 4, 2)])
def test_of_a_large_picture_no_more_than_its_colours_is_held(depth, colour, size):
    """3,000 x 2,000 pixels are 18 MB of colours, beside what the decoder itself has."""
    value = (257 * 90).to_bytes(2, "big") if depth == 16 else bytes([90] * size)
    data = png(3000, 2000, (b"\0" + value * 3000) * 2000, depth=depth, colour=colour)
    tracemalloc.start()
    pixels = decode(data, "x")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert pixels.shape == (2000, 3000, 3) and (pixels == 90).all()
    assert peak < 18_000_000 + 12_000_000


def test_strips_of_a_picture_meet() -> None:
    """600 rows are two whole strips and a part, no row being like the next."""
    pixels = np.arange(600 * 3 * 3, dtype=np.uint16).reshape(600, 3, 3).astype(np.uint8)
    np.testing.assert_array_equal(decode(encoded(Image.fromarray(pixels), "PNG"), "x"), pixels)
