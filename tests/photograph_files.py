"""Writes one photograph in every encoding that the service accepts.

What Pillow does not write (interlaced and 16-bit PNG, tiled and 16-bit TIFF) is written here;
DICOM comes from pydicom, so that our own reader is held to another's files.
"""

import io
import struct
import warnings
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pydicom.uid
from PIL import Image, ImageCms
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate

from tests.service_harness import encoded

OPHTHALMIC_8_BIT = "1.2.840.10008.5.1.4.1.1.77.1.5.1"
PATIENT = "Example^Marta"
# No part that a test looks for can stand in a random id or a digest by chance.
PATIENT_ID = "MRN-Wxyz"
Pixels = np.ndarray


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """How a photograph is written, its media type, and whether that loses anything."""

    name: str
    media_type: str
    write: Callable[[Pixels], bytes]
    lossy: bool = False


def png(pixels: Pixels, *, interlaced: bool = False) -> bytes:
    """An RGB or grey PNG of 8 or 16 bits."""
    height, width = pixels.shape[:2]
    bits = 8 * pixels.dtype.itemsize
    colour = 2 if pixels.ndim == 3 else 0
    passes = [(0, 0, 1, 1)]
    if interlaced:
        passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4)]
        passes += [(2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    rows = b"".join(
        b"\0" + row.tobytes()
        for top, left, down, right in passes
        for row in pixels.astype(pixels.dtype.newbyteorder(">"))[top::down, left::right]
        if row.size
    )
    head = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, int(interlaced))
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )


def lossless_jpeg(pixels: Pixels, *, names: bytes = b"\1\2\3") -> bytes:
    """A lossless JPEG of 8 bits: each sample is predicted by the one before it (T.81, annex H)."""
    samples = pixels.reshape(*pixels.shape[:2], -1).astype(int)
    height, width, count = samples.shape
    before = np.full_like(samples, 128)
    before[:, 1:], before[1:, 0] = samples[:, :-1], samples[:-1, 0]
    differences = (samples - before).ravel()
    sizes = np.frexp(np.abs(differences))[1]
    # A code of four bits for the size, and as many bits as it says.
    words = (sizes << sizes) + np.where(differences < 0, differences + 2**sizes - 1, differences)
    places = np.arange(12)
    lengths = 4 + sizes
    bits = (words << (12 - lengths))[:, np.newaxis] >> (11 - places) & 1
    stream = bits[places < lengths[:, np.newaxis]]
    stream = np.append(stream, np.ones(-len(stream) % 8, int))
    segments = (
        (0xC4, b"\0" + bytes([0, 0, 0, 9, *bytes(12)]) + bytes(range(9))),
        (
            0xC3,
            struct.pack(">BHHB", 8, height, width, count)
            + b"".join(bytes([name, 0x11, 0]) for name in names[:count]),
        ),
        (0xDA, bytes([count]) + b"".join(bytes([name, 0]) for name in names[:count]) + b"\1\0\0"),
    )
    return (
        b"\xff\xd8"
        + b"".join(
            b"\xff" + bytes([kind]) + struct.pack(">H", 2 + len(body)) + body
            for kind, body in segments
        )
        + np.packbits(stream.astype(np.uint8)).tobytes().replace(b"\xff", b"\xff\0")
        + b"\xff\xd9"
    )


def tiff(
    pixels: Pixels,
    *,
    order: str = "<",
    big: bool = False,
    tile_px: int | None = None,
    strip_rows: int | None = None,
    planes: bool = False,
    changes: Mapping[int, tuple[str, list[int]]] | None = None,
    next_directory: int = 0,
) -> bytes:
    """An uncompressed TIFF of one page; `changes` replaces tags, to make a strange one.

    With `strip_rows` each strip has as many rows; otherwise one strip has all.
    """
    height, width = pixels.shape[:2]
    samples = 1 if pixels.ndim == 2 else pixels.shape[2]
    stored = pixels.astype(pixels.dtype.newbyteorder(order))
    if planes:
        blocks = [plane.tobytes() for plane in stored.reshape(height, width, -1).transpose(2, 0, 1)]
    elif tile_px is None:
        rows = strip_rows or height
        blocks = [stored[top : top + rows].tobytes() for top in range(0, height, rows)]
    else:
        across, down = -(-width // tile_px), -(-height // tile_px)
        padded = np.zeros((down * tile_px, across * tile_px, *pixels.shape[2:]), stored.dtype)
        padded[:height, :width] = stored
        blocks = [
            padded[y : y + tile_px, x : x + tile_px].tobytes()
            for y in range(0, down * tile_px, tile_px)
            for x in range(0, across * tile_px, tile_px)
        ]
    start = 16
    offsets = [start + sum(map(len, blocks[:index])) for index in range(len(blocks))]
    tags: dict[int, tuple[str, list[int]]] = {
        256: ("I", [width]),
        257: ("I", [height]),
        258: ("H", [8 * pixels.dtype.itemsize] * samples),
        259: ("H", [1]),
        262: ("H", [2 if samples >= 3 else 1]),
        277: ("H", [samples]),
    }
    counts = [len(block) for block in blocks]
    if tile_px is None:
        tags |= {273: ("I", offsets), 278: ("I", [strip_rows or height]), 279: ("I", counts)}
    else:
        tags |= {322: ("I", [tile_px]), 323: ("I", [tile_px])}
        tags |= {324: ("I", offsets), 325: ("I", counts)}
    if planes:
        tags |= {284: ("H", [2])}
    tags |= changes or {}
    body = b"".join(blocks)
    body += b"\0" * (len(body) % 2)
    pointer, room = ("Q", 8) if big else ("I", 4)
    directory = start + len(body)
    after = directory + (8 if big else 2) + len(tags) * (20 if big else 12) + room
    entries, extra = b"", b""
    for tag, (kind, values) in sorted(tags.items()):
        data = struct.pack(f"{order}{len(values)}{kind}", *values)
        code = {"B": 1, "H": 3, "I": 4, "Q": 16}[kind]
        entries += struct.pack(f"{order}HH{pointer}", tag, code, len(values))
        if len(data) > room:
            entries += struct.pack(order + pointer, after + len(extra))
            extra += data + b"\0" * (len(data) % 2)
        else:
            entries += data.ljust(room, b"\0")
    mark = b"II" if order == "<" else b"MM"
    head = mark + (
        struct.pack(order + "HHHQ", 43, 8, 0, directory)
        if big
        else struct.pack(order + "HI", 42, directory).ljust(start - 2, b"\0")
    )
    count = struct.pack(order + ("Q" if big else "H"), len(tags))
    return head + body + count + entries + struct.pack(order + pointer, next_directory) + extra


def bigtiff_with_a_tag_at(position: int) -> bytes:
    """A BigTIFF of 292 bytes that says of one tag that it lies at a position."""
    entries = [(256, 4, 1, 100), (257, 4, 1, 100), (258, 3, 40, position)]
    directory = struct.pack("<Q", len(entries)) + b"".join(
        struct.pack("<HHQQ", *entry) for entry in entries
    )
    return b"II+\0\x08\0\0\0" + struct.pack("<Q", 16) + directory + bytes(208)


def dicom(
    pixels: Pixels | bytes,
    *,
    syntax: str = pydicom.uid.ExplicitVRLittleEndian,
    photometric: str = "RGB",
    storage: str = OPHTHALMIC_8_BIT,
    **elements: Any,
) -> bytes:
    """A DICOM ophthalmic photograph with (made-up) patient data, written by pydicom.

    `pixels` are samples, or an encoded image, whose `Rows` and `Columns` must then be given.
    """
    dataset = Dataset()
    dataset.SOPClassUID = storage
    dataset.SOPInstanceUID = "1.2.826.0.1.3680043.8.498.1"
    dataset.PatientName = PATIENT
    dataset.PatientID = PATIENT_ID
    dataset.PatientBirthDate = "19610304"
    dataset.InstitutionName = "Example Eye Clinic"
    dataset.Modality = "OP"
    code = Dataset()
    code.CodeValue, code.CodingSchemeDesignator, code.CodeMeaning = "T-AA610", "SRT", "Retina"
    dataset.AnatomicRegionSequence = [code]
    dataset.ImageLaterality = "R"
    dataset.PixelSpacing = [0.0052, 0.0053]
    dataset.PhotometricInterpretation = photometric
    dataset.BitsAllocated = 8
    if isinstance(pixels, bytes):
        dataset.PixelData = encapsulate([pixels])
        dataset["PixelData"].VR = "OB"
        dataset["PixelData"].is_undefined_length = True
        dataset.SamplesPerPixel = 1 if photometric.startswith("MONO") else 3
    else:
        big = syntax == pydicom.uid.ExplicitVRBigEndian
        stored = pixels.astype(pixels.dtype.newbyteorder(">" if big else "<"))
        dataset.PixelData = stored.tobytes() + b"\0" * (stored.nbytes % 2)
        dataset["PixelData"].VR = "OW" if pixels.dtype.itemsize == 2 else "OB"
        dataset.Rows, dataset.Columns = pixels.shape[:2]
        dataset.SamplesPerPixel = 1 if pixels.ndim == 2 else pixels.shape[2]
        dataset.BitsAllocated = 8 * pixels.dtype.itemsize
    dataset.BitsStored = dataset.BitsAllocated
    dataset.HighBit = dataset.BitsStored - 1
    dataset.PixelRepresentation = 0
    if dataset.SamplesPerPixel == 3:
        dataset.PlanarConfiguration = 0
    for name, value in elements.items():
        setattr(dataset, name, value)
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = syntax
    meta.MediaStorageSOPClassUID = storage
    meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
    dataset.file_meta = meta
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pydicom.dcmwrite(buffer, dataset, enforce_file_format=True)
    return buffer.getvalue()


def wide_gamut_profile() -> bytes:
    """An ICC matrix profile with Display P3's primaries and a gamma of 2.2."""

    def fixed(*values: float) -> bytes:
        return b"".join(struct.pack(">i", round(value * 65_536)) for value in values)

    def xyz(*values: float) -> bytes:
        return b"XYZ \0\0\0\0" + fixed(*values)

    text = b"Wide gamut for tests"
    curve = b"curv\0\0\0\0" + struct.pack(">IH", 1, round(2.2 * 256)) + b"\0\0"
    described = b"desc\0\0\0\0" + struct.pack(">I", len(text) + 1) + text + b"\0" + bytes(78)
    tags = {
        b"desc": described + bytes(-len(described) % 4),
        b"cprt": b"text\0\0\0\0CC0\0",
        b"wtpt": xyz(0.9642, 1.0, 0.8249),
        b"rXYZ": xyz(0.51512, 0.24120, -0.00105),
        b"gXYZ": xyz(0.29198, 0.69225, 0.04189),
        b"bXYZ": xyz(0.15710, 0.06657, 0.78407),
        b"rTRC": curve,
        b"gTRC": curve,
        b"bTRC": curve,
    }
    offset = 128 + 4 + 12 * len(tags)
    table, body = struct.pack(">I", len(tags)), b""
    for name, data in tags.items():
        table += name + struct.pack(">II", offset + len(body), len(data))
        body += data
    head = struct.pack(
        ">I4sI4s4s4s", offset + len(body), b"lcms", 0x02400000, b"mntr", b"RGB ", b"XYZ "
    )
    head += bytes(12) + b"acsp" + bytes(28) + fixed(0.9642, 1.0, 0.8249)
    return head.ljust(128, b"\0") + table + body


def in_wide_gamut(pixels: Pixels) -> Image.Image:
    """The same colours as other numbers."""
    converted = ImageCms.profileToProfile(
        Image.fromarray(pixels),
        ImageCms.createProfile("sRGB"),
        ImageCms.ImageCmsProfile(io.BytesIO(wide_gamut_profile())),
        renderingIntent=ImageCms.Intent.RELATIVE_COLORIMETRIC,
        outputMode="RGB",
    )
    assert converted is not None
    return converted


def ybr(pixels: Pixels) -> Pixels:
    red, green, blue = np.moveaxis(pixels.astype(float), -1, 0)
    luminance = 0.299 * red + 0.587 * green + 0.114 * blue
    both = (128 + 0.564334 * (blue - luminance), 128 + 0.713267 * (red - luminance))
    return np.clip(np.rint(np.stack([luminance, *both], axis=-1)), 0, 255).astype(np.uint8)


def shared_colours(pixels: Pixels, *, order: str = "<") -> bytes:
    """An uncompressed YCbCr TIFF, of which 2 x 2 pixels share a pair of colour differences."""
    height, width = pixels.shape[:2]
    whole = ybr(np.pad(pixels, ((0, height % 2), (0, width % 2), (0, 0)), "edge"))
    units = whole.reshape(-(-height // 2), 2, -(-width // 2), 2, 3).transpose(0, 2, 1, 3, 4)
    units = units.reshape(-1, 4, 3)
    both = np.rint(units[..., 1:].mean(axis=1)).astype(np.uint8)
    packed = np.concatenate([units[..., 0], both], axis=1).reshape(1, -1)
    tags: dict[int, tuple[str, list[int]]] = {
        256: ("I", [width]),
        257: ("I", [height]),
        258: ("H", [8, 8, 8]),
        262: ("H", [6]),
        277: ("H", [3]),
        278: ("I", [height]),
        530: ("H", [2, 2]),
    }
    return tiff(packed, order=order, changes=tags)


def ybr_422(pixels: Pixels) -> Pixels:
    """Two luminances, then the colour differences that they share."""
    whole = ybr(pixels)
    pairs = whole.reshape(whole.shape[0], -1, 2, 3)
    shared = np.rint(pairs[..., 1:].mean(axis=2)).astype(np.uint8)
    packed = np.concatenate([pairs[..., 0], shared], axis=-1)
    return packed.reshape(*whole.shape[:2], 2)


def saved(kind: str, mode: str = "RGB", **options: Any) -> Callable[[Pixels], bytes]:
    return lambda pixels: encoded(Image.fromarray(pixels).convert(mode), kind, **options)


def wide(pixels: Pixels) -> Pixels:
    return pixels.astype(np.uint16) * 257


def in_dicom(kind: str, syntax: str, photometric: str, **options: Any) -> Callable[[Pixels], bytes]:
    def write(pixels: Pixels) -> bytes:
        rows, columns = pixels.shape[:2]
        data = encoded(Image.fromarray(pixels), kind, **options)
        return dicom(data, syntax=syntax, photometric=photometric, Rows=rows, Columns=columns)

    return write


def all_of(media_type: str, **writers: Any) -> list[Encoding]:
    return [
        Encoding(name=f"{media_type} {name}".replace("_", " "), media_type=media_type, **fields)
        for name, fields in writers.items()
    ]


def lossless(write: Callable[[Pixels], bytes]) -> dict[str, Any]:
    return {"write": write}


def lossy(write: Callable[[Pixels], bytes]) -> dict[str, Any]:
    return {"write": write, "lossy": True}


def _in_planes(pixels: Pixels) -> bytes:
    planes = np.ascontiguousarray(pixels.transpose(2, 0, 1))
    rows, columns = pixels.shape[:2]
    return dicom(planes, Rows=rows, Columns=columns, SamplesPerPixel=3, PlanarConfiguration=1)


def _in_words(pixels: Pixels) -> bytes:
    """Big-endian, as OW: of the two samples in each word the second comes first."""
    data = pixels.tobytes() + b"\0" * (pixels.size % 2)
    swapped = np.frombuffer(data, np.uint16).byteswap().tobytes()
    written = dicom(pixels, syntax=UID.ExplicitVRBigEndian, PixelData=swapped)
    before, after = b"\x7f\xe0\x00\x10OB", b"\x7f\xe0\x00\x10OW"
    assert written.count(before) == 1
    return written.replace(before, after)


def _in_lossless_jpeg(pixels: Pixels, photometric: str = "RGB") -> bytes:
    rows, columns = pixels.shape[:2]
    data = lossless_jpeg(pixels)
    return dicom(
        data, syntax=UID.JPEGLosslessSV1, photometric=photometric, Rows=rows, Columns=columns
    )


def _named_rgb(pixels: Pixels) -> bytes:
    """RGB in a JPEG without a marker that says so: its components are named R, G and B."""
    rows, columns = pixels.shape[:2]
    data = encoded(Image.fromarray(pixels), "JPEG", quality=95, keep_rgb=True)
    at = data.index(b"\xff\xee")
    data = data[:at] + data[at + 2 + int.from_bytes(data[at + 2 : at + 4]) :]
    assert b"Adobe" not in data
    assert b"R\x11\0G\x11\0B\x11\0" in data
    return dicom(data, syntax=UID.JPEGBaseline8Bit, photometric="RGB", Rows=rows, Columns=columns)


UID = pydicom.uid
ENCODINGS = [
    *all_of(
        "image/png",
        rgb=lossless(saved("PNG")),
        rgba=lossless(saved("PNG", "RGBA")),
        interlaced=lossless(lambda p: png(p, interlaced=True)),
        sixteen_bit=lossless(lambda p: png(wide(p))),
        sixteen_bit_interlaced=lossless(lambda p: png(wide(p), interlaced=True)),
        wide_gamut=lossless(
            lambda p: encoded(in_wide_gamut(p), "PNG", icc_profile=wide_gamut_profile())
        ),
    ),
    *all_of(
        "image/jpeg",
        baseline=lossy(saved("JPEG", quality=95)),
        progressive=lossy(saved("JPEG", quality=95, progressive=True)),
        full_chroma=lossy(saved("JPEG", quality=95, subsampling=0)),
        cmyk=lossy(saved("JPEG", "CMYK", quality=95)),
        restarted=lossy(saved("JPEG", quality=95, restart_marker_blocks=7)),
        lossless=lossless(lossless_jpeg),
    ),
    *all_of(
        "image/tiff",
        uncompressed=lossless(saved("TIFF")),
        lzw=lossless(saved("TIFF", compression="tiff_lzw")),
        deflate=lossless(saved("TIFF", compression="tiff_adobe_deflate")),
        jpeg=lossy(saved("TIFF", compression="jpeg", quality=95)),
        cmyk=lossless(saved("TIFF", "CMYK")),
        rgba=lossless(saved("TIFF", "RGBA")),
        tiled=lossless(lambda p: tiff(p, tile_px=64)),
        big_endian=lossless(lambda p: tiff(p, order=">")),
        bigtiff=lossless(lambda p: tiff(p, big=True)),
        bigtiff_big_endian=lossless(lambda p: tiff(p, big=True, order=">", strip_rows=50)),
        strips=lossless(lambda p: tiff(p, strip_rows=7)),
        shared_colours=lossy(shared_colours),
        sixteen_bit=lossless(lambda p: tiff(wide(p))),
        sixteen_bit_big_endian_tiled=lossless(lambda p: tiff(wide(p), order=">", tile_px=128)),
        planes=lossless(lambda p: tiff(p, planes=True)),
        sixteen_bit_planes=lossless(lambda p: tiff(wide(p), planes=True)),
        sixteen_bit_planes_big_endian=lossless(lambda p: tiff(wide(p), order=">", planes=True)),
        two_pages=lossless(
            lambda p: encoded(
                Image.fromarray(p),
                "TIFF",
                save_all=True,
                append_images=[Image.new("RGB", (80, 60), "white")],
            )
        ),
    ),
    *all_of(
        "image/webp",
        lossless=lossless(saved("WEBP", lossless=True)),
        lossy=lossy(saved("WEBP", quality=95)),
        rgba=lossless(saved("WEBP", "RGBA", lossless=True)),
    ),
    *all_of("image/bmp", rgb=lossless(saved("BMP")), rgba=lossless(saved("BMP", "RGBA"))),
    *all_of(
        "application/dicom",
        explicit=lossless(dicom),
        implicit=lossless(lambda p: dicom(p, syntax=UID.ImplicitVRLittleEndian)),
        planes=lossless(_in_planes),
        sixteen_bit=lossless(lambda p: dicom(wide(p))),
        twelve_bit=lossless(
            lambda p: dicom(
                (p.astype(np.uint32) * 4095 // 255).astype(np.uint16), BitsStored=12, HighBit=11
            )
        ),
        big_endian=lossless(lambda p: dicom(p, syntax=UID.ExplicitVRBigEndian)),
        big_endian_in_words=lossless(_in_words),
        wide_gamut=lossless(
            lambda p: dicom(np.asarray(in_wide_gamut(p)), ICCProfile=wide_gamut_profile())
        ),
        ybr_full=lossless(lambda p: dicom(ybr(p), photometric="YBR_FULL")),
        ybr_full_422=lossy(
            lambda p: dicom(ybr_422(p), photometric="YBR_FULL_422", SamplesPerPixel=3)
        ),
        jpeg=lossy(in_dicom("JPEG", UID.JPEGBaseline8Bit, "YBR_FULL_422", quality=95)),
        jpeg_rgb=lossy(in_dicom("JPEG", UID.JPEGBaseline8Bit, "RGB", quality=95, keep_rgb=True)),
        jpeg_rgb_by_its_names=lossy(_named_rgb),
        jpeg_lossless=lossless(_in_lossless_jpeg),
        jpeg_lossless_ybr=lossless(lambda p: _in_lossless_jpeg(ybr(p), "YBR_FULL")),
        jpeg_2000=lossless(in_dicom("JPEG2000", UID.JPEG2000Lossless, "YBR_RCT", no_jp2=True)),
        jpeg_2000_lossy=lossy(
            in_dicom(
                "JPEG2000",
                UID.JPEG2000,
                "YBR_ICT",
                no_jp2=True,
                irreversible=True,
                quality_mode="dB",
                quality_layers=[45],
            ),
        ),
    ),
]
