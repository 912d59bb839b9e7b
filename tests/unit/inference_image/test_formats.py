"""Every accepted encoding of one photograph, and what each format may hide."""

import json
import random
import re
import struct
import subprocess
import sys
import time
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pydicom.uid
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from benchmarks.faults.files import Body, _wide_number, mutated
from inference_image import (
    decoding,
    jpeg_headers,
    png_headers,
    requests,
    tiff_headers,
)
from inference_image import dicom as dicom_reader
from inference_image.contract import ACCEPTED_IMAGE_TYPES, MEDIA_MULTIPART
from inference_image.decoding import Limits, PhotographError, decode, measure
from inference_image.dicom import ACCEPTED_SYNTAXES, read_dicom
from inference_image.headers import read_header, sniff
from inference_image.model_spec import load_model_spec
from inference_image.preprocessing import Preparation
from tests.photograph_files import (
    ENCODINGS,
    Encoding,
    dicom,
    lossless_jpeg,
    png,
    saved,
    tiff,
    wide,
    wide_gamut_profile,
    ybr,
)
from tests.service_harness import REPOSITORY, drawn_jpeg, drawn_pixels, encoded

LOSSLESS_LEVELS = 1
LOSSY_MEAN_LEVELS, LOSSY_LEVELS = 1.0, 10
UID = pydicom.uid


def refusal(data: bytes, **options: Any) -> PhotographError:
    with pytest.raises(PhotographError) as raised:
        decode(data, **options)
    return raised.value


def small(size_px: int = 64) -> np.ndarray:
    return np.ascontiguousarray(drawn_pixels(size_px=200)[:size_px, 60 : 60 + size_px])


def pixels_of(data: bytes) -> np.ndarray:
    return np.asarray(decode(data).image).astype(int)


@pytest.fixture(scope="module")
def prepare() -> Preparation:
    return Preparation.from_spec(load_model_spec(REPOSITORY / "model_artifacts" / "mobilenet-demo"))


@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda encoding: encoding.name)
def test_every_encoding_of_a_photograph_gives_the_same_tensor(
    encoding: Encoding, prepare: Preparation
) -> None:
    photograph = drawn_pixels(size_px=600)
    expected = prepare(photograph).pixels.astype(int)
    decoded = decode(encoding.write(photograph), declared_type=encoding.media_type)
    assert decoded.media_type == encoding.media_type
    assert (decoded.source_width_px, decoded.source_height_px) == (600, 600)
    apart = np.abs(prepare(decoded.image).pixels - expected)
    if encoding.lossy:
        assert apart.mean() <= LOSSY_MEAN_LEVELS
        assert np.percentile(apart, 99.9) <= LOSSY_LEVELS
    else:
        assert apart.max() <= LOSSLESS_LEVELS


@given(
    seed=st.integers(0, 2**32 - 1),
    width=st.integers(1, 40).map(lambda half: 2 * half),
    height=st.integers(1, 80),
    encoding=st.sampled_from([row for row in ENCODINGS if not row.lossy]),
)
@settings(max_examples=120, deadline=None)
def test_lossless_encodings_of_any_size_keep_every_pixel(
    seed: int, width: int, height: int, encoding: Encoding
) -> None:
    # Black and white included, since that is where clipping shows.
    photograph = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    photograph[0, 0] = 255
    data = encoding.write(photograph)
    assert measure(data) == (width, height)
    if "wide gamut" not in encoding.name:
        # Of saturated noise, some colours lie outside what the other profile can say.
        assert np.abs(pixels_of(data) - photograph).max() <= LOSSLESS_LEVELS


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_whatever_the_format(kind: str, orientation: int) -> None:
    upright = Image.fromarray(drawn_pixels(size_px=200)).crop((0, 0, 200, 150))
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = upright.transpose(undo[orientation]) if orientation in undo else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    decoded = decode(encoded(stored, kind, exif=exif, quality=95))
    assert (decoded.source_width_px, decoded.source_height_px) == upright.size
    assert np.abs(np.asarray(decoded.image).astype(int) - np.asarray(upright)).mean() < 3


RAMP = np.tile(np.arange(256, dtype=np.uint8), (3, 1))


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("8-bit PNG", png(RAMP), RAMP),
        ("16-bit PNG", png(wide(RAMP)), RAMP),
        ("16-bit PNG interlaced", png(wide(RAMP), interlaced=True), RAMP),
        ("8-bit TIFF", tiff(RAMP), RAMP),
        ("16-bit TIFF", tiff(wide(RAMP)), RAMP),
        ("16-bit TIFF big-endian", tiff(wide(RAMP), order=">"), RAMP),
        ("TIFF white is zero", tiff(RAMP, changes={262: ("H", [0])}), 255 - RAMP),
        ("16-bit TIFF white is zero", tiff(wide(RAMP), changes={262: ("H", [0])}), 255 - RAMP),
        (
            "16-bit TIFF big-endian white is zero",
            tiff(wide(RAMP), order=">", changes={262: ("H", [0])}),
            255 - RAMP,
        ),
        ("BigTIFF big-endian", tiff(RAMP, big=True, order=">"), RAMP),
        ("16-bit BigTIFF big-endian", tiff(wide(RAMP), big=True, order=">"), RAMP),
        (
            "16-bit BigTIFF big-endian white is zero",
            tiff(wide(RAMP), big=True, order=">", changes={262: ("H", [0])}),
            255 - RAMP,
        ),
        ("BMP", saved("BMP", "L")(RAMP), RAMP),
        ("DICOM MONOCHROME2", dicom(RAMP, photometric="MONOCHROME2"), RAMP),
        ("DICOM MONOCHROME1", dicom(RAMP, photometric="MONOCHROME1"), 255 - RAMP),
        ("DICOM 16-bit MONOCHROME1", dicom(wide(RAMP), photometric="MONOCHROME1"), 255 - RAMP),
        (
            "DICOM 10-bit",
            dicom(
                (RAMP.astype(np.uint32) * 1023 // 255).astype(np.uint16),
                photometric="MONOCHROME2",
                BitsStored=10,
                HighBit=9,
            ),
            RAMP,
        ),
        (
            "DICOM signed",
            dicom(
                (wide(RAMP).astype(np.int32) - 32_768).astype(np.int16).view(np.uint16),
                photometric="MONOCHROME2",
                PixelRepresentation=1,
            ),
            RAMP,
        ),
        (
            "DICOM big-endian",
            dicom(wide(RAMP), photometric="MONOCHROME2", syntax=UID.ExplicitVRBigEndian),
            RAMP,
        ),
        (
            "DICOM JPEG 2000 of 16 bits",
            dicom(
                encoded(Image.fromarray(wide(RAMP)), "JPEG2000", no_jp2=True),
                syntax=UID.JPEG2000Lossless,
                photometric="MONOCHROME2",
                Rows=3,
                Columns=256,
                BitsAllocated=16,
                BitsStored=16,
                HighBit=15,
            ),
            RAMP,
        ),
        (
            "DICOM JPEG MONOCHROME1",
            dicom(
                encoded(Image.fromarray(RAMP), "JPEG", quality=100),
                syntax=UID.JPEGBaseline8Bit,
                photometric="MONOCHROME1",
                Rows=3,
                Columns=256,
            ),
            255 - RAMP,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_grey_is_scaled_to_its_whole_range(name: str, data: bytes, expected: np.ndarray) -> None:
    got = pixels_of(data)
    assert got.shape == (3, 256, 3), name
    assert np.abs(got - expected[:, :, np.newaxis]).max() <= LOSSLESS_LEVELS


def test_sixteen_bit_grey_with_a_transparent_value_shows_black_there() -> None:
    data = png(wide(RAMP))
    chunk = b"tRNS" + struct.pack(">H", 65_535)
    at = 8 + 12 + 13
    chunk = struct.pack(">I", 2) + chunk + struct.pack(">I", zlib.crc32(chunk))
    assert pixels_of(data[:at] + chunk + data[at:])[0, 255].tolist() == [0, 0, 0]


def test_a_bitmap_whose_fourth_byte_is_empty_is_not_transparent() -> None:
    picture = Image.fromarray(small(100)).convert("RGBA")
    picture.putalpha(0)
    data = encoded(picture, "BMP")
    assert np.abs(pixels_of(data) - small(100)).max() == 0
    # The same in WebP does hide everything.
    assert pixels_of(encoded(picture, "WEBP", lossless=True, exact=True)).max() == 0


def test_a_profile_is_applied_where_it_is_not_srgb_and_ignored_where_it_is_damaged() -> None:
    picture = Image.new("RGB", (20, 20), (180, 90, 40))
    for kind in ("PNG", "JPEG", "TIFF", "WEBP"):
        options: dict[str, Any] = {"quality": 100, "lossless": True, "subsampling": 0}
        if kind == "TIFF":
            options = {}
        plain = pixels_of(encoded(picture, kind, **options))[5, 5]
        managed = pixels_of(encoded(picture, kind, icc_profile=wide_gamut_profile(), **options))
        broken = wide_gamut_profile()[:200]
        ignored = pixels_of(encoded(picture, kind, icc_profile=broken, **options))
        assert managed[5, 5, 0] > plain[0] + 5, kind
        assert ignored[5, 5].tolist() == plain.tolist()


@pytest.mark.parametrize("kind", ["WEBP", "PNG"])
def test_of_an_animation_the_first_picture_is_taken(kind: str) -> None:
    first = Image.fromarray(small(100))
    second = Image.new("RGB", first.size, "white")
    data = encoded(first, kind, save_all=True, append_images=[second], lossless=True)
    assert np.abs(pixels_of(data) - small(100)).max() <= 1


# --- DICOM ------------------------------------------------------------------------------


def test_a_dicom_tells_pixel_size_and_laterality_and_nothing_else() -> None:
    photograph = small(100)
    decoded = decode(dicom(photograph))
    assert decoded.acquisition == {"pixel_spacing_mm": [0.0052, 0.0053], "laterality": "R"}
    silent = decode(dicom(photograph, ImageLaterality=None, PixelSpacing=None))
    assert silent.acquisition == {"pixel_spacing_mm": None, "laterality": None}
    series = decode(dicom(photograph, ImageLaterality=None, Laterality="L"))
    assert series.acquisition is not None
    assert series.acquisition["laterality"] == "L"
    assert decode(drawn_jpeg()).acquisition is None


def test_only_known_codes_leave_a_dicom() -> None:
    data = dicom(small(100), ImageLaterality="R", PixelSpacing=[1.5, 2.5])
    for wrong, right in ((b"1.5\\2.5", b"M. Example"[:7]), (b"R ", b"Z ")):
        assert data.count(wrong) >= 1
        data = data.replace(wrong, right)
    assert decode(data).acquisition == {"pixel_spacing_mm": None, "laterality": None}


def test_palette_colours_are_looked_up() -> None:
    picture = Image.fromarray(small(120)).quantize(64)
    palette = np.array(picture.getpalette(), dtype=np.uint16).reshape(-1, 3) * 257
    tables: dict[str, Any] = {}
    for index, colour in enumerate(("Red", "Green", "Blue")):
        tables[f"{colour}PaletteColorLookupTableDescriptor"] = [len(palette), 0, 16]
        tables[f"{colour}PaletteColorLookupTableData"] = palette[:, index].tobytes()
    data = dicom(np.asarray(picture), photometric="PALETTE COLOR", **tables)
    assert np.abs(pixels_of(data) - np.asarray(picture.convert("RGB"))).max() <= 1


def test_of_several_frames_the_first_is_taken() -> None:
    first, second = small(), np.full((64, 64, 3), 255, np.uint8)
    raw = dicom(np.concatenate([first, second]), Rows=64, NumberOfFrames=2)
    assert np.abs(pixels_of(raw) - first).max() == 0
    frames = [encoded(Image.fromarray(frame), "JPEG", quality=95) for frame in (first, second)]
    for offsets in (True, False):
        packed = pydicom.encaps.encapsulate(frames, has_bot=offsets)
        data = dicom(
            frames[0],
            syntax=UID.JPEGBaseline8Bit,
            photometric="YBR_FULL_422",
            Rows=64,
            Columns=64,
            NumberOfFrames=2,
            PixelData=packed,
        )
        assert np.abs(pixels_of(data) - first).mean() < 4


def test_one_frame_in_several_fragments_is_joined() -> None:
    photograph = drawn_pixels(size_px=200)
    whole = encoded(Image.fromarray(photograph), "JPEG", quality=95)
    data = dicom(
        whole,
        syntax=UID.JPEGBaseline8Bit,
        photometric="YBR_FULL_422",
        Rows=200,
        Columns=200,
        PixelData=pydicom.encaps.encapsulate([whole], fragments_per_frame=3),
    )
    assert np.abs(pixels_of(data) - photograph).mean() < 4


def test_a_camera_jpeg_inside_a_dicom_is_decoded_smaller() -> None:
    whole = encoded(Image.new("RGB", (3216, 2136), (180, 90, 60)), "JPEG")
    data = dicom(
        whole, syntax=UID.JPEGBaseline8Bit, photometric="YBR_FULL_422", Rows=2136, Columns=3216
    )
    decoded = decode(data, min_side_px=500)
    assert decoded.image.size == (804, 534)
    assert decoded.scale == 0.25
    assert (decoded.source_width_px, decoded.source_height_px) == (3216, 2136)


def test_a_lossless_jpeg_has_no_smaller_scale_and_is_decoded_whole() -> None:
    picture = drawn_pixels(size_px=200)
    data = lossless_jpeg(picture)
    size = {"Rows": 200, "Columns": 200}
    for syntax in (UID.JPEGLossless, UID.JPEGLosslessSV1):
        for file in (
            data,
            dicom(data, syntax=syntax, photometric="RGB", **size),
            dicom(lossless_jpeg(picture[..., 0]), syntax=syntax, photometric="MONOCHROME2", **size),
        ):
            decoded = decode(file, min_side_px=20)
            assert decoded.scale == 1.0
            levels = np.asarray(decoded.image).astype(int)
            assert np.abs(levels[..., 0] - picture[..., 0]).max() == 0


@pytest.mark.parametrize("names", [b"\0\1\2", b"\1\2\3", b"RGB", b"abc"])
@pytest.mark.parametrize("photometric", ["RGB", "YBR_FULL"])
def test_components_of_any_name_are_what_the_dicom_says(names: bytes, photometric: str) -> None:
    picture = drawn_pixels(size_px=200)
    samples = picture if photometric == "RGB" else ybr(picture)
    lossless = lossless_jpeg(samples, names=names)
    lossy = encoded(Image.fromarray(samples), "JPEG", quality=95, keep_rgb=True)
    marker = lossy.index(b"\xff\xee")
    lossy = lossy[:marker] + lossy[marker + 16 :]
    for before, after in zip(b"RGB", names, strict=True):
        for following in (b"\x11\0", b"\0"):
            lossy = lossy.replace(bytes([before]) + following, bytes([after]) + following)
    for frame, syntax in (
        (lossless, UID.JPEGLosslessSV1),
        (lossy, UID.JPEGBaseline8Bit),
    ):
        data = dicom(frame, syntax=syntax, photometric=photometric, Rows=200, Columns=200)
        for smallest in (None, 60):
            decoded = decode(data, min_side_px=smallest).image
            expected = Image.fromarray(picture).resize(decoded.size, Image.Resampling.BOX)
            apart = np.asarray(decoded).astype(int) - np.asarray(expected).astype(int)
            assert np.abs(apart).mean() < 2


# --- An image inside a DICOM that contradicts it ----------------------------------------------


def in_jpeg_2000(picture: Image.Image, photometric: str = "RGB", **elements: Any) -> bytes:
    data = encoded(picture, "JPEG2000", no_jp2=elements.pop("no_jp2", True))
    return dicom(
        data,
        syntax=UID.JPEG2000Lossless,
        photometric=photometric,
        Rows=picture.height,
        Columns=picture.width,
        **elements,
    )


def in_jpeg(picture: Image.Image, photometric: str) -> bytes:
    return dicom(
        encoded(picture, "JPEG"),
        syntax=UID.JPEGBaseline8Bit,
        photometric=photometric,
        Rows=picture.height,
        Columns=picture.width,
    )


COLOURS, SHADES = Image.fromarray(small()), Image.fromarray(small()[..., 0])
SIXTEEN_BITS = Image.fromarray(wide(small()[..., 0]))


@pytest.mark.parametrize(
    "data",
    [
        in_jpeg_2000(COLOURS.convert("RGBA")),
        in_jpeg_2000(SHADES.convert("LA")),
        in_jpeg_2000(SHADES),
        in_jpeg_2000(SHADES, "YBR_FULL"),
        in_jpeg_2000(SHADES, "YBR_RCT"),
        in_jpeg_2000(COLOURS, "MONOCHROME2"),
        in_jpeg_2000(SIXTEEN_BITS, "RGB", BitsAllocated=16, BitsStored=16, HighBit=15),
        in_jpeg(COLOURS.convert("CMYK"), "RGB"),
        in_jpeg(SHADES, "YBR_FULL"),
        in_jpeg(SHADES, "RGB"),
        in_jpeg(COLOURS, "MONOCHROME2"),
    ],
)
def test_another_number_of_components_than_the_dicom_says_is_refused(data: bytes) -> None:
    error = refusal(data)
    assert error.status == 422
    assert "samples per pixel" in error.detail


@pytest.mark.parametrize("stored", [8, 10, 12, 15])
def test_another_number_of_bits_than_the_dicom_says_is_refused(stored: int) -> None:
    size = {"BitsAllocated": 16, "BitsStored": stored, "HighBit": stored - 1}
    error = refusal(in_jpeg_2000(SIXTEEN_BITS, "MONOCHROME2", **size))
    assert error.status == 422
    assert f"{stored} bits" in error.detail
    sign = {"BitsAllocated": 16, "BitsStored": 16, "HighBit": 15, "PixelRepresentation": 1}
    assert refusal(in_jpeg_2000(SIXTEEN_BITS, "MONOCHROME2", **sign)).status == 422


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(("offset", "value"), [(0, 15), (0, 11), (1, 2), (2, 2)])
def test_colours_that_pillow_would_round_or_share_are_named(
    place: int, offset: int, value: int
) -> None:
    data = in_jpeg_2000(COLOURS, "YBR_RCT", BitsAllocated=16, BitsStored=16, HighBit=15)
    at = data.index(b"\xff\x4f\xff\x51") + 42 + 3 * place + offset
    error = refusal(data[:at] + bytes([value]) + data[at + 1 :])
    assert error.status == 415
    assert "colours of more than 8 bits, or shared" in error.detail


def test_the_boxes_of_a_jp2_file_do_not_say_what_the_colours_are() -> None:
    samples = Image.merge("YCbCr", Image.fromarray(ybr(small())).split())
    for no_jp2 in (True, False):
        data = in_jpeg_2000(samples, "YBR_FULL", no_jp2=no_jp2)
        assert np.abs(pixels_of(data) - small()).max() <= 2
        assert np.array_equal(pixels_of(in_jpeg_2000(COLOURS, "YBR_RCT", no_jp2=no_jp2)), small())


@pytest.mark.parametrize("no_jp2", [True, False])
def test_a_cut_codestream_is_refused(*, no_jp2: bool) -> None:
    whole = encoded(COLOURS, "JPEG2000", no_jp2=no_jp2)
    for left in (0.3, 0.6, 0.9, 0.99):
        cut = whole[: int(len(whole) * left)]
        for ended in (cut, cut + b"\xff\xd9"):
            data = dicom(
                ended, syntax=UID.JPEG2000Lossless, photometric="YBR_RCT", Rows=64, Columns=64
            )
            assert refusal(data).status == 422


def test_indices_of_a_palette_are_read_raw_only() -> None:
    tables: dict[str, Any] = {"SamplesPerPixel": 1}
    for colour in ("Red", "Green", "Blue"):
        tables[f"{colour}PaletteColorLookupTableDescriptor"] = [256, 0, 16]
        tables[f"{colour}PaletteColorLookupTableData"] = bytes(512)
    size = {"Rows": 64, "Columns": 64}
    lossless = lossless_jpeg(small()[..., 0])
    for frame, syntax in (
        (lossless, UID.JPEGLosslessSV1),
        (encoded(SHADES, "JPEG"), UID.JPEGBaseline8Bit),
        (encoded(SHADES, "JPEG2000", no_jp2=True), UID.JPEG2000Lossless),
    ):
        error = refusal(dicom(frame, syntax=syntax, photometric="PALETTE COLOR", **size, **tables))
        assert error.status == 415
        assert "PALETTE COLOR" in error.detail
    for colour in ("Red", "Green", "Blue"):
        tables[f"{colour}PaletteColorLookupTableDescriptor"] = [256, 0, 12]
    assert refusal(dicom(small()[..., 0], photometric="PALETTE COLOR", **tables)).status == 422


def test_a_data_set_that_is_implicit_against_its_word_is_read() -> None:
    photograph = small()
    data = dicom(photograph, syntax=UID.ImplicitVRLittleEndian)
    lying = data.replace(b"1.2.840.10008.1.2\0", b"1.2.840.10008.1.2.1", 1)
    at = data.index(b"1.2.840.10008.1.2\0")
    length = struct.pack("<H", 20)
    lying = data[: at - 2] + length + b"1.2.840.10008.1.2.1\0" + data[at + 18 :]
    assert np.abs(pixels_of(lying) - photograph).max() == 0


def test_sequences_of_undefined_length_are_stepped_over_however_deep() -> None:
    data = dicom(small())
    at = data.index(b"\x10\x00\x10\x00PN")
    opened = b"\x09\x00\x10\x00SQ\0\0\xff\xff\xff\xff\xfe\xff\x00\xe0\xff\xff\xff\xff"
    closed = b"\xfe\xff\x0d\xe0\0\0\0\0\xfe\xff\xdd\xe0\0\0\0\0"
    nested = opened * 2000 + closed * 2000
    assert decode(data[:at] + nested + data[at:]).image.size == (64, 64)
    assert refusal(data[:at] + opened * 100_000).status == 422


DICOM_REFUSALS: list[tuple[str, Callable[[], bytes], int]] = [
    ("CT", lambda: dicom(RAMP, photometric="MONOCHROME2", storage=UID.CTImageStorage), 415),
    (
        "tomography",
        lambda: dicom(
            RAMP, photometric="MONOCHROME2", storage=UID.OphthalmicTomographyImageStorage
        ),
        415,
    ),
    (
        "RLE",
        lambda: dicom(b"\0" * 80, syntax=UID.RLELossless, photometric="RGB", Rows=64, Columns=64),
        415,
    ),
    (
        "deflated",
        lambda: dicom(small(), syntax=UID.DeflatedExplicitVRLittleEndian),
        415,
    ),
    ("other colours", lambda: dicom(small(), photometric="HSV"), 415),
    (
        "32 bits",
        lambda: dicom(RAMP.astype(np.uint32), photometric="MONOCHROME2"),
        415,
    ),
    ("no pixels", lambda: dicom(small(), Rows=0), 422),
    ("fewer bytes than pixels", lambda: dicom(small(), Rows=65), 422),
    ("samples contradict colours", lambda: dicom(RAMP, photometric="RGB"), 422),
    ("absurd rows and columns", lambda: dicom(small(), Rows=65_535, Columns=65_535), 413),
    (
        "another size inside",
        lambda: dicom(
            drawn_jpeg(),
            syntax=UID.JPEGBaseline8Bit,
            photometric="YBR_FULL_422",
            Rows=300,
            Columns=300,
        ),
        422,
    ),
    (
        "no JPEG inside",
        lambda: dicom(
            b"hello", syntax=UID.JPEGBaseline8Bit, photometric="YBR_FULL_422", Rows=3, Columns=3
        ),
        422,
    ),
    ("no image", lambda: dicom(RAMP, photometric="MONOCHROME2")[:900], 422),
]


@pytest.mark.parametrize(
    ("data", "status"),
    [row[1:] for row in DICOM_REFUSALS],
    ids=[row[0] for row in DICOM_REFUSALS],
)
def test_a_dicom_that_is_not_accepted_is_refused_without_its_values(
    data: Callable[[], bytes], status: int
) -> None:
    refused = refusal(data(), declared_type="application/dicom")
    assert refused.status == status
    assert not re.search("Example|MRN|1961|Marta", refused.detail)


# --- Limits before decoding ---------------------------------------------------------------


def header_only(kind: str, width: int, height: int) -> bytes:
    """The start of a file that claims a size."""
    size = struct.pack(">II", width, height)
    small = struct.pack("<II", width - 1, height - 1)
    return {
        "PNG": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + size + b"\x08\x02\0\0\0" + bytes(40),
        "JPEG": b"\xff\xd8\xff\xc0\0\x11\x08" + struct.pack(">HH", height, width) + bytes(10),
        "BMP": b"BM" + bytes(12) + struct.pack("<IiiHH", 40, width, -height, 1, 24) + bytes(40),
        "WEBP": b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + small[:3] + small[4:7] + bytes(40),
        "TIFF": tiff(RAMP, changes={256: ("I", [width]), 257: ("I", [height])}),
        "BigTIFF": tiff(RAMP, big=True, changes={256: ("Q", [width]), 257: ("Q", [height])}),
        "DICOM": dicom(RAMP, photometric="MONOCHROME2", Rows=height, Columns=width),
    }[kind]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "WEBP", "TIFF", "BigTIFF", "DICOM"])
def test_a_size_beyond_the_limit_is_refused_before_a_decoder_sees_it(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def untouched(*_: Any, **__: Any) -> None:
        raise AssertionError("the decoder was asked")

    monkeypatch.setattr(decoding.Image, "open", untouched)
    data = header_only(kind, 18_000, 15_000)
    with monkeypatch.context() as patch:
        patch.setattr(decoding, "_MOST_EXPANSION", 10**9)
        assert measure(data, limits=Limits(max_pixels=270_000_000)) == (18_000, 15_000)
    tracemalloc.start()
    assert refusal(data).status == 413
    assert "18000 x 15000" in refusal(data).detail
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


@pytest.mark.parametrize("kind", ["lossy", "lossless", "alpha"])
def test_each_kind_of_webp_tells_its_size(kind: str) -> None:
    picture = Image.new("RGBA" if kind == "alpha" else "RGB", (300, 200), (1, 2, 3))
    data = encoded(picture, "WEBP", lossless=kind == "lossless")
    header = read_header(data, "image/webp")
    assert header is not None
    assert (header.width_px, header.height_px) == (300, 200)


BOMBS: list[tuple[str, Callable[[], bytes], int]] = [
    (
        "TIFF that inflates",
        lambda: encoded(Image.new("L", (7500, 7500)), "TIFF", compression="tiff_adobe_deflate"),
        413,
    ),
    ("PNG that inflates", lambda: encoded(Image.new("L", (7500, 7500)), "PNG"), 413),
    (
        "TIFF tile larger than its image",
        lambda: tiff(RAMP, tile_px=16, changes={322: ("I", [65_536]), 323: ("I", [65_536])}),
        422,
    ),
    (
        "TIFF tag beyond the file",
        lambda: tiff(RAMP, changes={65_000: ("H", [7] * 600)})[:-1150],
        422,
    ),
    (
        "BigTIFF with a million tags",
        lambda: b"II+\0\x08\0\0\0" + struct.pack("<QQ", 16, 10**6) + bytes(20 * 10**6),
        422,
    ),
    (
        "JPEG of empty segments",
        lambda: b"\xff\xd8" + b"\xff\xfe\0\2" * 2_000_000,
        422,
    ),
    ("JPEG of fill bytes", lambda: b"\xff\xd8" + b"\xff" * 8_000_000, 422),
    (
        "PNG of empty chunks",
        lambda: header_only("PNG", 10, 10)[:33] + b"\0\0\0\0tEXt\0\0\0\0" * 600_000,
        422,
    ),
    (
        "DICOM of empty elements",
        lambda: (
            dicom(RAMP, photometric="MONOCHROME2")[:400].partition(b"\x08\0\x16\0")[0]
            + b"\x08\0\x05\0CS\0\0" * 1_000_000
        ),
        422,
    ),
    (
        "negative BMP",
        lambda: encoded(Image.new("RGB", (9, 9)), "BMP").replace(b"\x09", b"\xff"),
        422,
    ),
]


@pytest.mark.parametrize(
    ("data", "status"), [row[1:] for row in BOMBS], ids=[row[0] for row in BOMBS]
)
def test_a_bomb_is_refused_with_little_time_and_memory(
    data: Callable[[], bytes], status: int
) -> None:
    written = data()
    began = time.process_time()
    assert refusal(written).status == status
    spent_s = time.process_time() - began
    # A camera's photograph takes about as long to decode and locate.
    assert spent_s < 0.2
    tracemalloc.start()
    assert refusal(written).status == status
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()


def test_a_chain_of_pages_is_cut_after_the_first() -> None:
    looping = tiff(RAMP, next_directory=16 + RAMP.nbytes)
    assert np.abs(pixels_of(looping)[:, :, 0] - RAMP).max() == 0
    began = time.process_time()
    chain = bytearray(tiff(RAMP, next_directory=5000).ljust(5000, b"\0"))
    for at in range(5000, 5000 + 6 * 300_000, 6):
        chain += struct.pack("<HI", 0, at + 6)
    assert decode(bytes(chain)).image.size == (256, 3)
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize(
    "encoding",
    [row for row in ENCODINGS if row.media_type in ("image/webp", "image/bmp")],
    ids=lambda encoding: encoding.name,
)
def test_a_cut_file_is_refused_to_its_last_byte(encoding: Encoding) -> None:
    data = encoding.write(small())
    for left in (len(data) // 3, len(data) * 9 // 10, len(data) - 1):
        assert refusal(data[:left]).status == 422


def test_a_small_blank_picture_is_no_bomb() -> None:
    for kind in ("PNG", "TIFF", "WEBP", "BMP"):
        assert decode(encoded(Image.new("RGB", (2000, 1500)), kind)).image.size == (2000, 1500)


SEEDS = [row.write(small()) for row in ENCODINGS]


@given(
    seed=st.sampled_from(SEEDS),
    cut=st.floats(0, 1),
    flips=st.lists(st.tuples(st.integers(0, 30_000), st.integers(0, 255)), max_size=12),
    head=st.booleans(),
)
@settings(max_examples=400, deadline=None)
def test_damaged_files_of_every_format_are_decoded_or_refused(
    seed: bytes, cut: float, flips: list[tuple[int, int]], head: bool
) -> None:
    data = bytearray(seed)
    for position, value in flips:
        # Half of the flips go into the header, where they do most.
        data[position % min(len(data), 700 if head else len(data))] = value
    mutated = bytes(data[: max(1, int(len(data) * (1 if cut > 0.5 else 2 * cut)))])
    status, detail = outcome(mutated)
    assert status in (200, 413, 415, 422)
    assert not re.search("Example|MRN|1961", detail)


def test_no_reader_of_headers_raises_what_only_decode_would_turn_into_a_refusal() -> None:
    """Numbers of 64 bits beyond any file, and other mutants; `decode` would hide what they find."""
    corpus = [
        Body(name=row.name, content_type=row.media_type, body=row.write(small()))
        for row in ENCODINGS
    ]
    wide_ones = [body for body in corpus if "bigtiff" in body.name or "2000" in body.name]
    assert len(wide_ones) >= 4
    refused = 0
    for seed in range(2000):
        chance = random.Random(seed)  # noqa: S311
        if seed % 2:
            data = bytes(_wide_number(chance, bytearray(chance.choice(wide_ones).body), ()))
        else:
            data = mutated(corpus, seed=seed).body
        kind = sniff(data)
        try:
            if kind == "application/dicom":
                read_dicom(data)
            elif kind is not None:
                read_header(data, kind)
        except PhotographError:
            refused += 1
    assert refused > 100


def outcome(data: bytes) -> tuple[int, str]:
    """Status that a service would answer; anything but a refusal propagates."""
    try:
        return 200, decode(data, limits=Limits(max_pixels=1_000_000)).image.mode
    except PhotographError as refused:
        return refused.status, refused.detail


# --- Documents and start ------------------------------------------------------------------


def test_the_page_of_formats_lists_what_the_code_accepts(repository: Path) -> None:
    page = (repository / "docs" / "formats.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `((?:image|application)/[a-z]+)` \|", page, flags=re.MULTILINE)
    assert tuple(rows) == ACCEPTED_IMAGE_TYPES
    assert {encoding.media_type for encoding in ENCODINGS} == set(ACCEPTED_IMAGE_TYPES)
    assert ACCEPTED_SYNTAXES in page
    assert MEDIA_MULTIPART in page
    for alias in re.findall(r"`(image/[a-z-]+)`(?:,| and the like)", page):
        assert alias in {*decoding._ALIASES, *ACCEPTED_IMAGE_TYPES}
    assert f"within {LOSSLESS_LEVELS} level of 255" in page
    assert f"at most {LOSSY_MEAN_LEVELS:g} level on average" in page
    assert f"values by at most {LOSSY_LEVELS}." in page
    assert f"{decoding._MOST_EXPANSION} times the encoded" in page
    assert f"from {decoding._EXPANSION_FROM_BYTES // 10**6} MB on" in page


def test_the_pages_state_the_bounds_that_the_code_has(repository: Path) -> None:
    page = (repository / "docs" / "formats.md").read_text(encoding="utf-8")
    fixed = (repository / "docs" / "settings.md").read_text(encoding="utf-8")
    scans, billions = jpeg_headers._MAX_SCANS, jpeg_headers._MAX_SCANNED_PIXELS / 10**9
    assert f"| scans of a JPEG | {scans}, and {billions:g} gigapixels in all scans | 422 |" in page
    assert f"| {scans}, and {billions:g} billion pixels over all scans | 422 |" in fixed
    segments, others = jpeg_headers._MAX_SEGMENTS, jpeg_headers._MAX_OTHER_BYTES
    assert f"| {jpeg_headers._MAX_FILL_BYTES // 1024} KiB; {others}; {segments} | 422 |" in fixed
    around, texts = requests._MOST_JSON_AROUND, requests._MOST_JSON_TEXTS
    more, more_texts = requests._MORE_JSON_AROUND, requests._MORE_JSON_TEXTS
    wanted = f"{around} characters and {texts} texts, and {more} and {more_texts} more for each of"
    assert wanted in fixed
    chunks = f"| {png_headers._MAX_SMALL_CHUNKS}, and one more for each KiB"
    assert chunks in page
    assert chunks in fixed
    assert f"| one side | {decoding.MAX_SIDE_PX} pixels | 413 |" in page
    elements = f"{tiff_headers._MOST_TIFF_ENTRIES}, {dicom_reader._MOST_ELEMENTS} | 422 |"
    assert f"| JPEG segments, TIFF tags, DICOM elements | {segments}, {elements}" in page
    assert f"| strips or tiles of a TIFF | {tiff_headers._MOST_BLOCKS} | 422 |" in page
    assert f"| entries of an EXIF block | {decoding._MOST_EXIF_ENTRIES} |" in page


def test_photometric_interpretations_of_the_page_are_those_of_the_refusal(
    repository: Path,
) -> None:
    page = (repository / "docs" / "formats.md").read_text(encoding="utf-8")
    detail = refusal(dicom(small(), photometric="HSV")).detail
    names = detail.rpartition("accepted are ")[2].rstrip(".").split(", ")
    assert len(names) == 8
    row = next(line for line in page.splitlines() if line.startswith("| `application/dicom`"))
    assert all(name in row for name in names)


def test_other_decoders_are_imported_when_their_first_file_arrives() -> None:
    program = (
        "import sys, json\n"
        "import inference_image.http_app\n"
        "from inference_image.decoding import decode\n"
        "decode(sys.stdin.buffer.read())\n"
        "print(json.dumps(sorted(sys.modules)))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        input=drawn_jpeg(),
        capture_output=True,
        check=True,
        cwd=REPOSITORY,
    )
    loaded = set(json.loads(run.stdout))
    late = {"inference_image.dicom", "PIL.TiffImagePlugin", "PIL.WebPImagePlugin"}
    late |= {"PIL.Jpeg2KImagePlugin", "PIL.ImageCms", "pydicom", "fastapi"}
    assert loaded & late == set()
    assert "inference_image.decoding" in loaded


def test_sniffing_tells_a_bitmap_from_a_sentence() -> None:
    assert sniff(b"BMI is a measure of body weight, not an image.") is None
    assert sniff(encoded(Image.new("RGB", (4, 4)), "BMP")) == "image/bmp"


@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda encoding: encoding.name)
def test_what_is_damaged_is_found_while_it_is_decoded_and_not_later(encoding: Encoding) -> None:
    """A decoder that puts the work off would fail where the failure is taken for our own."""
    whole = Body(
        name=encoding.name,
        content_type=encoding.media_type,
        body=encoding.write(drawn_pixels(size_px=200)),
    )
    refused = set()
    for seed in range(30):
        try:
            image = decode(mutated([whole], seed=seed).body).image
        except PhotographError as error:
            refused.add(error.status)
        else:
            assert image.copy().size == image.size
    assert refused
    assert refused <= {400, 413, 415, 422}
