"""Files that other decoders read wrongly, or slowly, or talk about on standard error."""

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image, TiffImagePlugin

from inference_image import dicom as dicom_reader
from inference_image.decoding import PhotographError, decode
from inference_image.libtiff import silence_libtiff
from tests.photograph_files import dicom, in_wide_gamut, png, tiff, wide, wide_gamut_profile
from tests.service_harness import drawn_pixels, encoded

RAMP = np.tile(np.arange(256, dtype=np.uint8), (3, 1))


def pixels_of(data: bytes) -> np.ndarray:
    return np.asarray(decode(data).image).astype(int)


def refusal(data: bytes) -> PhotographError:
    with pytest.raises(PhotographError) as raised:
        decode(data)
    return raised.value


def small() -> np.ndarray:
    return np.ascontiguousarray(drawn_pixels(size_px=200)[40:120, 60:140])


def with_chunk(data: bytes, kind: bytes, body: bytes) -> bytes:
    """A PNG with one more chunk behind its header."""
    chunk = struct.pack(">I", len(body)) + kind + body
    chunk += struct.pack(">I", zlib.crc32(kind + body))
    return data[:33] + chunk + data[33:]


# --- samples that lie in another way -------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("16 bits", tiff(wide(RAMP), planes=True), RAMP),
        ("16 bits big-endian", tiff(wide(RAMP), order=">", planes=True), RAMP),
        ("white is zero", tiff(RAMP, planes=True, changes={262: ("H", [0])}), 255 - RAMP),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_one_plane_of_grey_is_as_no_plane(name: str, data: bytes, expected: np.ndarray) -> None:
    assert np.abs(pixels_of(data) - expected[:, :, np.newaxis]).max() <= 1, name
    assert not TiffImagePlugin.READ_LIBTIFF


@pytest.mark.parametrize("planes", [False, True])
@pytest.mark.parametrize("samples", [np.uint8, np.uint16])
@pytest.mark.parametrize("meaning", [0, 2])
def test_a_fourth_sample_is_read_in_planes_as_well(
    planes: bool, samples: type[np.unsignedinteger], meaning: int
) -> None:
    full = np.full((*small().shape[:2], 1), 255, np.uint8)
    pixels = np.concatenate([small(), full], axis=2)
    stored = wide(pixels) if samples is np.uint16 else pixels
    data = tiff(stored, planes=planes, changes={338: ("H", [meaning])})
    assert np.array_equal(pixels_of(data), small())


def test_uncompressed_ycbcr_is_as_light_as_compressed() -> None:
    picture = Image.fromarray(small()).convert("YCbCr")
    raw, packed = (encoded(picture, "TIFF", compression=kind) for kind in ("raw", "tiff_lzw"))
    assert np.array_equal(pixels_of(raw), pixels_of(packed))


def test_a_transparent_colour_of_sixteen_bits_is_black() -> None:
    picture = small()
    colour = picture[40, 40]
    key = struct.pack(">3H", *(int(level) * 257 for level in colour))
    got = pixels_of(with_chunk(png(wide(picture)), b"tRNS", key))
    hidden = (picture == colour).all(axis=-1)
    assert hidden.any()
    assert got[hidden].max() == 0
    assert np.abs(got[~hidden] - picture[~hidden]).max() <= 1


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize("grey", [False, True])
def test_of_sixteen_bits_only_the_very_value_is_transparent(
    *, grey: bool, interlaced: bool
) -> None:
    """A white that means "transparent" makes no holes into what is nearly white."""
    white = 65_535
    samples = np.full((40, 60, 3), (65_300, 65_400, 65_500), np.uint16)
    samples[:10] = white
    samples[10:20] = (white, white, white - 1)
    if grey:
        samples = np.ascontiguousarray(samples[..., 0])
        samples[10:20] = white - 1
    key = struct.pack(">H", white) * (1 if grey else 3)
    got = pixels_of(with_chunk(png(samples, interlaced=interlaced), b"tRNS", key))
    assert got[:10].max() == 0
    assert got[10:].min() >= 254


def test_a_transparent_value_of_no_pixel_changes_nothing() -> None:
    picture = wide(small())
    key = struct.pack(">3H", *(int(level) ^ 1 for level in picture[40, 40]))
    data = png(picture)
    assert np.array_equal(pixels_of(with_chunk(data, b"tRNS", key)), pixels_of(data))


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_a_transparent_grey_of_few_bits_is_black(bits: int) -> None:
    levels = np.arange(2**bits, dtype=np.uint8)
    packed = np.zeros(len(levels) * bits // 8 or 1, np.uint8)
    for place, level in enumerate(levels):
        packed[place * bits // 8] |= level << (8 - bits - place * bits % 8)
    head = struct.pack(">IIBBBBB", len(levels), 1, bits, 0, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n"
    for kind, body in (
        (b"IHDR", head),
        (b"tRNS", struct.pack(">H", 1)),
        (b"IDAT", zlib.compress(b"\0" + packed.tobytes())),
        (b"IEND", b""),
    ):
        data += struct.pack(">I", len(body)) + kind + body
        data += struct.pack(">I", zlib.crc32(kind + body))
    expected = levels.astype(int) * 255 // (2**bits - 1)
    expected[1] = 0
    assert pixels_of(data)[0, :, 0].tolist() == expected.tolist()


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_the_profile_of_a_palette_is_applied(kind: str) -> None:
    palette = in_wide_gamut(small()).quantize(64)
    options = {"icc_profile": wide_gamut_profile()}
    expected = pixels_of(encoded(palette.convert("RGB"), kind, **options))
    assert np.abs(pixels_of(encoded(palette, kind, **options)) - expected).max() == 0
    assert np.abs(np.asarray(palette.convert("RGB")).astype(int) - expected).max() > 5


# --- kinds that are not read: the refusal says which -----------------------------------------


def patched(data: bytes, find: bytes, offset: int, value: int) -> bytes:
    at = data.index(find) + offset
    return data[:at] + bytes([value]) + data[at + 1 :]


def jpeg() -> bytes:
    return encoded(Image.fromarray(small()), "JPEG")


def bmp() -> bytes:
    return encoded(Image.fromarray(small()), "BMP")


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (patched(jpeg(), b"\xff\xc0", 4, 12), "12-bit samples"),
        (patched(jpeg(), b"\xff\xc0", 4, 16), "16-bit samples"),
        (patched(jpeg(), b"\xff\xc0", 1, 0xF7), "JPEG-LS"),
        (patched(jpeg(), b"\xff\xc0", 1, 0xC9), "arithmetic-coded"),
        (patched(jpeg(), b"\xff\xc0", 1, 0xCA), "arithmetic-coded"),
        (patched(jpeg(), b"\xff\xc0", 1, 0xCB), "arithmetic-coded"),
        (patched(jpeg(), b"\xff\xc0", 1, 0xC5), "hierarchical"),
        (patched(bmp(), b"BM", 28, 2), "2 bits per pixel"),
        (patched(bmp(), b"BM", 30, 4), "compression 4"),
        (tiff(small(), changes={259: ("H", [50001])}), "compression 50001"),
        (tiff(small(), changes={259: ("H", [34712])}), "compression 34712"),
        (tiff(RAMP, changes={258: ("H", [10])}), "1 samples of 10 bits"),
        (tiff(RAMP, order=">", changes={258: ("H", [12])}), "1 samples of 12 bits"),
        (tiff(small(), changes={258: ("H", [12, 12, 12])}), "3 samples of 12 bits"),
        (tiff(wide(small()[:, :, :2])), "2 samples of 16 bits"),
        (tiff(small()[:, :, :2], planes=True), "2 samples of 8 bits in planes"),
        (tiff(small(), changes={259: ("H", [32773]), 317: ("H", [2])}), "PackBits"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_kind_that_is_not_read_is_named_and_not_called_damaged(data: bytes, named: str) -> None:
    error = refusal(data)
    assert error.status == 415
    assert named in error.detail
    assert "accepted" in error.detail


def test_a_jpeg_of_twelve_bits_inside_a_dicom_is_named() -> None:
    frame = patched(jpeg(), b"\xff\xc0", 4, 12)
    data = dicom(
        frame,
        syntax="1.2.840.10008.1.2.4.51",
        photometric="YBR_FULL_422",
        Rows=80,
        Columns=80,
    )
    error = refusal(data)
    assert (error.status, "12-bit samples" in error.detail) == (415, True)


# --- files that cost much -------------------------------------------------------------------


def counted(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, function: Callable[..., Any]
) -> list[int]:
    calls = [0]

    def wrapper(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        return function(*arguments, **options)

    monkeypatch.setattr(owner, name, wrapper)
    return calls


def test_a_dicom_of_countless_elements_before_its_data_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = counted(monkeypatch, dicom_reader, "_element", dicom_reader._element)
    error = refusal(bytes(128) + b"DICM" + b"\2\0\1\0UL\0\0" * 200_000)
    assert error.status == 422
    assert calls[0] <= 200


@pytest.mark.parametrize("as_text", [False, True], ids=["eXIf", "raw profile"])
@pytest.mark.parametrize(("entries", "turned"), [(900, True), (1001, False), (20_000, False)])
def test_an_exif_block_of_countless_entries_is_not_read(
    *, entries: int, turned: bool, as_text: bool
) -> None:
    orientation = struct.pack("<HHII", 0x0112, 3, 1, 6)
    block = b"II*\0\x08\0\0\0" + struct.pack("<H", entries) + orientation * entries + bytes(4)
    picture = png(np.zeros((30, 50, 3), np.uint8))
    if as_text:
        text = f"\nexif\n{len(block):8}\n{block.hex()}\n".encode()
        data = with_chunk(picture, b"tEXt", b"Raw profile type exif\0" + text)
    else:
        data = with_chunk(picture, b"eXIf", block)
    assert decode(data).image.size == ((30, 50) if turned else (50, 30))


def test_a_damaged_tiff_is_told_to_the_sender_and_not_to_standard_error(
    capfd: pytest.CaptureFixture[str],
) -> None:
    buffer = io.BytesIO()
    Image.fromarray(small()).save(buffer, "TIFF", compression="tiff_lzw")
    data = bytearray(buffer.getvalue())
    data[8:600] = b"\xff" * 592
    assert refusal(bytes(data)).status == 422
    assert capfd.readouterr().err == ""
    assert silence_libtiff()
