"""PNGs whose data are damaged or too short, and metadata that a decoder would refuse."""

import io
import struct
import time
import tracemalloc
import zlib
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

from inference_image import png_headers
from inference_image.decoding import PhotographError, decode
from tests.photograph_files import Pixels, png, wide, wide_gamut_profile
from tests.service_harness import drawn_jpeg, drawn_pixels, encoded

SIDE_PX = 120


def picture() -> Pixels:
    return np.ascontiguousarray(drawn_pixels(size_px=200)[40:160, 40:160])


def refusal(data: bytes) -> PhotographError:
    with pytest.raises(PhotographError) as raised:
        decode(data)
    return raised.value


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def with_chunks(data: bytes, *chunks: bytes, late: bool = False) -> bytes:
    """The same with more chunks behind its header, or before its end."""
    at = len(data) - 12 if late else 33
    return data[:at] + b"".join(chunks) + data[at:]


def shortened(data: bytes, less: float) -> bytes:
    """A whole PNG of fewer rows than it says: by a share of its bytes, or by a number of them."""
    at = data.index(b"IDAT") - 4
    length = int.from_bytes(data[at : at + 4])
    raw = zlib.decompress(data[at + 8 : at + 8 + length])
    kept = raw[: len(raw) - less] if isinstance(less, int) else raw[: int(len(raw) * (1 - less))]
    return data[:at] + chunk(b"IDAT", zlib.compress(kept)) + data[at + 12 + length :]


def one_idat(image: Image.Image) -> bytes:
    """Pillow's PNG with its data in one chunk."""
    data = encoded(image, "PNG")
    first = data.index(b"IDAT") - 4
    position, body = first, b""
    while data[position + 4 : position + 8] == b"IDAT":
        length = int.from_bytes(data[position : position + 4])
        body += data[position + 8 : position + 8 + length]
        position += 12 + length
    return data[:first] + chunk(b"IDAT", body) + data[position:]


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize("less", [0.9, 0.5, 0.02, 1])
def test_data_that_end_before_the_last_row_are_refused(*, interlaced: bool, less: float) -> None:
    # A black end is what a decoder leaves, and what a photograph has.
    for level, depth, grey in product((0, 90), (8, 16), (False, True)):
        pixels = picture()
        pixels[SIDE_PX // 4 :] = level
        shown = pixels[..., 0] if grey else pixels
        data = png(wide(shown) if depth == 16 else shown, interlaced=interlaced)
        assert decode(data)
        assert refusal(shortened(data, less)).status == 422


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
@pytest.mark.parametrize("level", [0, 1, 90, 255])
def test_rows_that_are_missing_are_noticed_whatever_a_pixel_is(mode: str, level: int) -> None:
    flat = Image.new("RGB", (9, 9), (level,) * 3)
    image = flat.quantize(2) if mode == "P" else flat.convert(mode)
    data = one_idat(image)
    assert decode(data)
    for less in (0.5, 1):
        assert refusal(shortened(data, less)).status == 422


@given(
    seed=st.integers(0, 2**32 - 1),
    width=st.integers(1, 20),
    height=st.integers(1, 20),
    wide_samples=st.booleans(),
    interlaced=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_no_whole_picture_is_refused(
    *, seed: int, width: int, height: int, wide_samples: bool, interlaced: bool
) -> None:
    pixels = np.random.default_rng(seed).integers(0, 3, (height, width, 3), dtype=np.uint8)
    data = png(wide(pixels) if wide_samples else pixels, interlaced=interlaced)
    assert np.array_equal(np.asarray(decode(data).image), pixels)
    assert refusal(shortened(data, 1)).status == 422


def test_a_changed_byte_of_the_picture_is_noticed() -> None:
    data = encoded(Image.fromarray(picture()), "PNG", compress_level=0)
    places = np.random.default_rng(1).integers(8, len(data) - 12, 100)
    for place in places:
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        assert refusal(bytes(changed)).status == 422


# --- Metadata -----------------------------------------------------------------------------


def text(kind: bytes, name: bytes, body: bytes) -> bytes:
    packed = zlib.compress(body)
    if kind == b"zTXt":
        return chunk(kind, name + b"\0\0" + packed)
    return chunk(kind, name + b"\0\1\0\0\0" + packed)


LARGE = np.random.default_rng(1).bytes(600_000).hex().encode()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    "added",
    [
        text(b"zTXt", b"Comment", LARGE),
        text(b"zTXt", b"Raw profile type exif", LARGE),
        text(b"iTXt", b"XML:com.adobe.xmp", LARGE),
        text(b"iTXt", b"Comment", LARGE),
        chunk(b"iCCP", b"name\0\0" + zlib.compress(LARGE)),
        chunk(b"iCCP", b"name\0\0garbage"),
        chunk(b"iCCP", b"name"),
        chunk(b"zTXt", b"Comment\0\1" + zlib.compress(b"a")),
    ],
)
def test_metadata_that_are_too_large_or_damaged_are_passed_over(
    *, added: bytes, late: bool
) -> None:
    data = with_chunks(png(picture()), added, late=late)
    assert np.array_equal(np.asarray(decode(data).image), picture())


@pytest.mark.parametrize(
    "added",
    [
        chunk(b"iCCP", b"name\0\1" + zlib.compress(b"a")),
        chunk(b"zTXt", b"Raw profile type exif\0\1" + zlib.compress(b"a")),
    ],
)
def test_a_method_of_compression_that_does_not_exist_is_damage(added: bytes) -> None:
    assert refusal(with_chunks(png(picture()), added)).status == 422


def test_metadata_that_are_of_use_are_kept() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    block = exif.tobytes()
    lines = f"\nexif\n{len(block):8}\n{block.hex()}\n".encode()
    xmp = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    plain = png(picture()[:60])
    for added in (
        text(b"zTXt", b"Raw profile type exif", lines),
        text(b"iTXt", b"XML:com.adobe.xmp", xmp),
    ):
        for chunks in ((added,), (text(b"zTXt", b"Comment", LARGE), added), (added, added)):
            turned = decode(with_chunks(plain, *chunks)).image
            assert turned.size == (60, SIDE_PX)
    managed = {"icc_profile": wide_gamut_profile()}
    expected = decode(encoded(Image.fromarray(picture()), "PNG", **managed)).image
    packed = chunk(b"iCCP", b"name\0\0" + zlib.compress(wide_gamut_profile()))
    both = with_chunks(png(picture()), packed, text(b"zTXt", b"Comment", LARGE))
    assert np.array_equal(np.asarray(decode(both).image), np.asarray(expected))
    assert not np.array_equal(np.asarray(expected), picture())


def test_metadata_are_large_from_one_megabyte_on() -> None:
    profile = wide_gamut_profile()
    for size, applied in ((999_000, True), (1_100_000, False)):
        padding = np.random.default_rng(1).bytes(size - len(profile))
        packed = zlib.compress(profile + padding)
        data = with_chunks(png(picture()), chunk(b"iCCP", b"name\0\0" + packed))
        changed = not np.array_equal(np.asarray(decode(data).image), picture())
        assert changed == applied


@pytest.mark.parametrize("name", [b"Comment", b"Raw profile type exif", b"XML:com.adobe.xmp"])
def test_a_bomb_in_the_metadata_is_refused_and_costs_little(name: bytes) -> None:
    kind = b"iTXt" if name.startswith(b"XML") else b"zTXt"
    begin = b"\0\1\0\0\0" if kind == b"iTXt" else b"\0\0"
    for unpacked, count in ((bytes(50_000_000), 1), (bytes(2_000_000), 100), (LARGE, 20)):
        packed = chunk(kind, name + begin + zlib.compress(unpacked, 9))
        data = with_chunks(png(picture()), *[packed] * count)
        begun = time.process_time()
        error = refusal(data)
        assert time.process_time() - begun < 0.5
        assert error.status == 413
        assert "metadata" in error.detail
        tracemalloc.start()
        try:
            refusal(data)
            assert tracemalloc.get_traced_memory()[1] < 5_000_000
        finally:
            tracemalloc.stop()


def test_of_no_metadata_more_is_inflated_than_is_of_use() -> None:
    bomb = zlib.compress(bytes(100_000_000), 9)
    size, read = png_headers._inflated_bytes(bomb)
    assert 1_000_000 < size < 2_200_000
    assert read < len(bomb) / 20
    text = zlib.compress(LARGE)
    assert png_headers._inflated_bytes(text)[0] < len(LARGE)
    assert png_headers._inflated_bytes(zlib.compress(b"a" * 999))[0] == 999
    assert png_headers._inflated_bytes(b"damaged") == (0, 0)


def test_what_pillow_writes_is_read() -> None:
    info: Any = PngImagePlugin.PngInfo()
    info.add_text("Comment", "a" * 50, zip=True)
    info.add_itxt("Comment", "b" * 50, zip=True)
    buffer = io.BytesIO()
    Image.fromarray(picture()).save(buffer, "PNG", pnginfo=info)
    assert np.array_equal(np.asarray(decode(buffer.getvalue()).image), picture())


@pytest.mark.parametrize(
    "behind",
    [
        b"id: Room 4, OD\n",
        b"ID: ABC-123\r\n",
        bytes(16_384),
        bytes(1_000_000),
        drawn_jpeg(),
        np.random.default_rng(3).bytes(5000),
        chunk(b"IDAT", b"nothing") * 3,
        chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(50_000_000), 9)),
    ],
    ids=["text", "capitals", "zeros", "many zeros", "JPEG", "noise", "chunks", "bomb"],
)
def test_what_stands_behind_a_png_is_not_looked_at(behind: bytes) -> None:
    data = png(picture())
    begun = time.process_time()
    assert np.array_equal(np.asarray(decode(data + behind).image), picture())
    assert np.array_equal(np.asarray(decode(data + data).image), picture())
    assert time.process_time() - begun < 0.5
