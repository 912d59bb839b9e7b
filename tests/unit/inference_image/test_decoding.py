"""Encoded photographs to upright RGB: modes, orientation, limits, reduced scale."""

import re
import struct
import time
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from inference_image import decoding
from inference_image.decoding import (
    MAX_SIDE_PX,
    Limits,
    PhotographError,
    decode,
    measure,
    sniff,
)
from tests.service_harness import drawn_jpeg, drawn_pixels, encoded


def reference() -> Image.Image:
    return Image.fromarray(drawn_pixels(size_px=200))


def difference(data: bytes, expected: Image.Image | None = None) -> float:
    """Mean absolute difference in levels."""
    got = np.asarray(decode(data).image, dtype=int)
    return float(np.abs(got - np.asarray(expected or reference(), dtype=int)).mean())


def stored_as(orientation: int) -> bytes:
    """A JPEG stored so that a viewer that honours EXIF shows the reference."""
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = reference().crop((0, 0, 200, 160))
    if orientation in undo:
        picture = picture.transpose(undo[orientation])
    return encoded(picture, "JPEG", quality=98, exif=exif)


@pytest.mark.parametrize("orientation", range(9))
def test_each_exif_orientation_is_turned_upright(orientation: int) -> None:
    decoded = decode(stored_as(orientation))
    assert decoded.image.size == (200, 160)
    assert (decoded.source_width_px, decoded.source_height_px) == (200, 160)
    assert difference(stored_as(orientation), reference().crop((0, 0, 200, 160))) < 3


def test_a_broken_exif_block_is_no_reason_to_refuse() -> None:
    data = encoded(reference(), "JPEG", quality=98, exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert difference(data) < 3


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({"kind": "PNG"}, 0),
        ({"kind": "PNG", "mode": "RGBA"}, 0),
        ({"kind": "JPEG", "quality": 98}, 3),
        ({"kind": "JPEG", "quality": 98, "progressive": True}, 3),
        ({"kind": "JPEG", "mode": "CMYK", "quality": 98}, 4),
    ],
)
def test_encodings_of_one_photograph_agree(options: dict[str, Any], tolerance: float) -> None:
    chosen = dict(options)
    picture = reference().convert(chosen.pop("mode", "RGB"))
    assert difference(encoded(picture, chosen.pop("kind"), **chosen)) <= tolerance


def test_a_palette_is_resolved_and_grey_has_three_channels() -> None:
    palette = reference().quantize(64)
    assert difference(encoded(palette, "PNG"), palette.convert("RGB")) == 0
    grey = reference().convert("L")
    assert difference(encoded(grey, "PNG"), grey.convert("RGB")) == 0
    assert decode(encoded(grey, "JPEG")).image.mode == "RGB"


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparent_pixels_become_black_whatever_they_hide(mode: str) -> None:
    picture = reference().convert(mode)
    opaque = Image.new("L", picture.size, 255)
    opaque.paste(0, (0, 0, 100, 200))
    picture.putalpha(opaque)
    left = np.asarray(decode(encoded(picture, "PNG")).image)[:, :100]
    assert left.max() == 0


def test_a_transparent_palette_entry_becomes_black() -> None:
    picture = Image.new("P", (40, 40), 1)
    picture.putpalette([0, 0, 0, 255, 255, 255])
    data = encoded(picture, "PNG", transparency=1)
    assert np.asarray(decode(data).image).max() == 0


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    ramp = np.tile(np.linspace(0, 65_535, 256).round().astype(np.uint16), (32, 1))
    got = np.asarray(decode(encoded(Image.fromarray(ramp), "PNG")).image)
    assert np.abs(got[0, :, 0].astype(int) - np.arange(256)).max() <= 1


def test_every_sixteen_bit_level_is_rounded_to_the_nearest_of_256() -> None:
    levels = np.arange(65_536, dtype=np.uint16).reshape(256, 256)
    got = np.asarray(decode(encoded(Image.fromarray(levels), "PNG")).image)
    assert np.array_equal(got[:, :, 1], (levels.astype(int) + 128) // 257)


def test_sixteen_bits_need_no_copy_of_the_whole_picture() -> None:
    data = encoded(Image.fromarray(np.zeros((2000, 2000), dtype=np.uint16)), "PNG")
    decode(data)
    tracemalloc.start()
    try:
        decode(data)
        assert tracemalloc.get_traced_memory()[1] < 2000 * 2000
    finally:
        tracemalloc.stop()


def test_a_camera_jpeg_is_decoded_smaller_but_never_below_what_was_asked() -> None:
    data = encoded(Image.new("RGB", (3216, 2136), (180, 90, 60)), "JPEG")
    for asked, expected in ((500, (804, 534)), (534, (804, 534)), (535, (1608, 1068))):
        decoded = decode(data, min_side_px=asked)
        assert decoded.image.size == expected
        assert (decoded.source_width_px, decoded.source_height_px) == (3216, 2136)
        assert decoded.scale == pytest.approx(expected[0] / 3216)
    assert decode(data).scale == 1.0


def test_a_smaller_scale_shows_the_same_photograph() -> None:
    data = drawn_jpeg(size_px=900)
    small = decode(data, min_side_px=200).image
    assert small.size == (225, 225)
    full = decode(data).image.resize((225, 225), Image.Resampling.BOX)
    assert np.abs(np.asarray(small, dtype=int) - np.asarray(full, dtype=int)).mean() < 1.5


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", 400),
        (b"\xff\xd8\xff", 422),
        (b"\x89PNG\r\n\x1a\n", 422),
        (b"hello", 422),
        (b"BM" + bytes(60), 422),
        (b"BM" + bytes(12) + b"(" + bytes(60), 422),
        (b"II*\0" + bytes(60), 422),
        (b"II+\0" + bytes(60), 422),
        (b"RIFF\0\0\0\0WEBPVP8 ", 422),
        (bytes(128) + b"DICM", 422),
        (b"GIF89a" + bytes(60), 415),
        (b"\xff\x4f\xff\x51" + bytes(60), 415),
    ],
)
def test_refusals_have_the_right_status(data: bytes, status: int) -> None:
    with pytest.raises(PhotographError) as refusal:
        decode(data)
    assert refusal.value.status == status


def test_a_cut_file_is_refused_never_filled_up() -> None:
    for data in (drawn_jpeg(), encoded(reference(), "PNG")):
        for share in (0.3, 0.6, 0.9):
            with pytest.raises(PhotographError) as refusal:
                decode(data[: int(len(data) * share)])
            assert refusal.value.status == 422


def test_limits_are_checked_from_the_header() -> None:
    data = encoded(Image.new("RGB", (1000, 500)), "PNG")
    for limits in (Limits(max_bytes=len(data) - 1), Limits(max_pixels=499_999)):
        with pytest.raises(PhotographError) as refusal:
            decode(data, limits=limits)
        assert refusal.value.status == 413
    assert decode(data, limits=Limits(max_bytes=len(data), max_pixels=500_000))
    jpeg = encoded(Image.new("RGB", (1000, 500)), "JPEG")
    with pytest.raises(PhotographError) as refusal:
        decode(jpeg[:700], limits=Limits(max_pixels=499_999))
    assert refusal.value.status == 413


def test_a_strip_is_refused_however_few_pixels_it_has() -> None:
    with pytest.raises(PhotographError, match=str(MAX_SIDE_PX)) as refusal:
        decode(encoded(Image.new("L", (MAX_SIDE_PX + 1, 1)), "PNG"))
    assert refusal.value.status == 413
    assert decode(encoded(Image.new("L", (MAX_SIDE_PX, 1)), "PNG"))


def scanned_again(side_px: int, copies: int, *, between: bytes = b"") -> bytes:
    """A progressive JPEG whose last scan comes `copies` times more."""
    data = encoded(Image.new("L", (side_px, side_px), 128), "JPEG", progressive=True)
    last = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + (between + last) * copies + data[-2:]


@pytest.mark.parametrize("between", [b"", b"\xff\xfe\0\4\xff\xd9", b"\xff\xff\xff"])
def test_scans_are_counted_before_they_are_decoded(between: bytes) -> None:
    assert decode(scanned_again(16, 60, between=between))
    for data in (scanned_again(16, 101, between=between), scanned_again(5000, 45, between=between)):
        begun = time.process_time()
        with pytest.raises(PhotographError, match="scans") as refusal:
            decode(data)
        assert refusal.value.status == 422
        assert time.process_time() - begun < 1.0


def test_what_follows_the_end_of_the_picture_is_not_part_of_it() -> None:
    # Telephones append a film, viewers a thumbnail with scans of its own.
    assert decode(drawn_jpeg() + b"\xff\xda\0\2" * 2000)


@pytest.mark.parametrize(
    "header",
    [
        b"\xff" * 2_000_000,
        b"\xff\xe0\0\2" * 500_000,
        b"\xff\x01" * 500_000,
        b"\0" * 2_000_000,
        b"\xff\xda\0\2" * 500_000,
    ],
)
def test_a_header_without_end_is_refused_at_once(header: bytes) -> None:
    frame = drawn_jpeg()[2:]
    for data in (b"\xff\xd8" + header, b"\xff\xd8" + header + frame):
        begun = time.process_time()
        with pytest.raises(PhotographError) as refusal:
            decode(data)
        assert refusal.value.status == 422
        assert time.process_time() - begun < 0.5


@pytest.mark.parametrize("padding", [b"\xff" * 8, b"\0" * 8])
def test_a_little_padding_in_the_header_is_read_over(padding: bytes) -> None:
    data = drawn_jpeg()
    assert decode(data[:20] + padding + data[20:])


def test_a_png_of_countless_chunks_is_refused_at_once() -> None:
    def chunk(kind: bytes, content: bytes = b"") -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 10, 10, 8, 0, 0, 0, 0))
    data = b"\x89PNG\r\n\x1a\n" + header + chunk(b"abCd") * 200_000
    begun = time.process_time()
    with pytest.raises(PhotographError, match="chunks") as refusal:
        decode(data)
    assert refusal.value.status == 422
    assert time.process_time() - begun < 0.5


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP", "BMP"])
@pytest.mark.parametrize("error", [OverflowError, KeyError, ZeroDivisionError, RecursionError])
def test_whatever_a_reader_of_headers_raises_is_a_refusal_with_its_cause(
    kind: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise error("an accident")

    monkeypatch.setattr(decoding, "read_header", fail)
    for read in (decode, measure):
        with pytest.raises(PhotographError) as raised:
            read(encoded(reference(), kind))
        assert raised.value.status == 422
        assert raised.value.detail == f"The {kind} cannot be decoded: it is truncated or damaged."
        # Who looks for a fault of ours finds it.
        assert isinstance(raised.value.__cause__, error)


def test_whatever_the_look_at_the_first_bytes_raises_is_a_refusal_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: bytes) -> None:
        raise OverflowError("an accident")

    monkeypatch.setattr(decoding, "sniff", fail)
    for read in (decode, measure):
        with pytest.raises(PhotographError, match="The image cannot be decoded") as raised:
            read(drawn_jpeg())
        assert raised.value.status == 422


def test_the_declared_type_must_not_contradict_the_bytes() -> None:
    assert decode(drawn_jpeg(), declared_type="image/jpg")
    assert decode(drawn_jpeg(), declared_type="application/octet-stream")
    with pytest.raises(PhotographError) as refusal:
        decode(drawn_jpeg(), declared_type="image/png")
    assert refusal.value.status == 415


SVG = b"<svg xmlns='http://www.w3.org/2000/svg'/>"


@pytest.mark.parametrize(
    ("begin", "named"),
    [
        (SVG, "image/svg+xml"),
        (b"\r\n \t" + SVG, "image/svg+xml"),
        (b"\xef\xbb\xbf" + SVG, "image/svg+xml"),
        (b"<!DOCTYPE svg PUBLIC '-//W3C//DTD SVG 1.1//EN' 'svg11.dtd'>\n" + SVG, "image/svg+xml"),
        (b"<?xml version='1.0'?>\n<!-- drawn > here -->\n" + SVG, "image/svg+xml"),
        (SVG.decode().encode("utf-16"), "image/svg+xml"),
        (b"<?xml version='1.0'?><report/>", "application/xml"),
        (b"\n<!DOCTYPE report><report/>", "application/xml"),
        (b"<!--" + b"<!---->" * 140, "application/xml"),
        (b"%PDF-1.7", "application/pdf"),
        (b"\xef\xbb\xbf%PDF-1.7", "application/pdf"),
        (b"\n\n%PDF-1.7", "application/pdf"),
        *(
            (b"\0\0\0\x14ftyp" + brand + bytes(8), "image/heic")
            for brand in (
                b"heic",
                b"heix",
                b"heim",
                b"heis",
                b"hevc",
                b"hevx",
                b"mif1",
                b"msf1",
            )
        ),
        *((b"\0\0\0\x14ftyp" + brand + bytes(8), "image/avif") for brand in (b"avif", b"avis")),
        (b"\0\0\0\x1cftypmif1\0\0\0\0mif1avifmiaf", "image/avif"),
        (b"\0\0\0\x1cftypisom\0\0\0\0isomheicmiaf", "image/heic"),
        (b"\xff\xff\xff\xffftypisom\0\0\0\0isom", "video/mp4"),
    ],
)
def test_a_type_that_is_not_accepted_is_named(begin: bytes, named: str) -> None:
    begun = time.process_time()
    with pytest.raises(PhotographError, match=f"are {re.escape(named)}") as refusal:
        decode(begin + bytes(2000))
    assert refusal.value.status == 415
    assert time.process_time() - begun < 0.1


@pytest.mark.parametrize("text", [b"an <svg> in a sentence", b"<svgs>", b"< svg>", b"ftypheic"])
def test_a_text_is_not_taken_for_a_picture(text: bytes) -> None:
    assert sniff(text) is None


def test_a_dicom_file_is_not_taken_for_the_tiff_in_its_preamble() -> None:
    assert sniff(b"II*\0" + bytes(124) + b"DICM") == "application/dicom"


@given(
    cut=st.integers(0, 4000), flips=st.lists(st.tuples(st.integers(2, 8000), st.integers(0, 255)))
)
@settings(max_examples=80, deadline=None)
def test_damaged_bytes_are_decoded_or_refused_nothing_else(
    cut: int, flips: list[tuple[int, int]]
) -> None:
    data = bytearray(encoded(reference().resize((60, 60)), "JPEG"))
    for position, value in flips:
        data[position % len(data)] = value
    assert outcome(bytes(data[cut % len(data) :])) in (200, 400, 413, 415, 422)


def outcome(data: bytes) -> int:
    """The status that a service would answer; anything but a refusal propagates."""
    try:
        decode(data, limits=Limits(max_pixels=1_000_000))
    except PhotographError as refusal:
        return refusal.status
    return 200


def test_the_real_photograph_decodes(real_photograph: Path) -> None:
    decoded = decode(real_photograph.read_bytes(), declared_type="image/jpeg")
    assert decoded.image.size == (1411, 1411)
