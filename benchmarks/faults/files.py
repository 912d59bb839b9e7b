"""Good files of every format, what mutation makes of them, and files that are made to hurt.

>>> corpus = good_files()
>>> mutant = mutated(corpus, seed=7)
>>> mutant.content_type, len(mutant.body)
"""

import base64
import functools
import io
import json
import random
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import pydicom.uid
from PIL import Image

from dr_training.drawing import draw_fundus
from tests.photograph_files import ENCODINGS, dicom, tiff

CAMERA_WIDTH_PX, CAMERA_HEIGHT_PX = 3216, 2136
_SIDE_PX: Final = 224
_MUTATED_SIDE_PX: Final = 176
_BOUNDARY: Final = "----form"
_EDGES: Final = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
# Boxes of a JPEG 2000 file, alone or in a DICOM (ISO/IEC 15444-1, annex I).
_BOXES: Final = (b"ftyp", b"jp2h", b"ihdr", b"colr", b"jp2c")
# Around what a position in a file, in memory, or in either as a signed number can be.
_WIDE_EDGES: Final = (2**32, 2**62, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1)


@dataclass(frozen=True, kw_only=True)
class Body:
    """One request body and its Content-Type."""

    name: str
    content_type: str
    body: bytes


def good_files(side_px: int = _MUTATED_SIDE_PX) -> list[Body]:
    """One drawn photograph in every encoding, and in the JSON and form shapes."""
    pixels = draw_fundus(8, 2, side_px).image
    files = [Body(name=e.name, content_type=e.media_type, body=e.write(pixels)) for e in ENCODINGS]
    jpeg = next(file.body for file in files if file.name == "image/jpeg baseline")
    png = next(file.body for file in files if file.name == "image/png rgb")
    text = base64.b64encode(jpeg).decode("ascii")
    shapes = {
        "image": {"image": text},
        "instances": {"instances": [{"b64": text}, {"b64": text[:400]}]},
        "inputs": {"inputs": f"data:image/jpeg;base64,{text}"},
    }
    files += [
        Body(name=f"JSON {name}", content_type="application/json", body=json.dumps(shape).encode())
        for name, shape in shapes.items()
    ]
    files.append(
        Body(
            name="form",
            content_type=f"multipart/form-data; boundary={_BOUNDARY}",
            body=_form([("image/jpeg", jpeg), ("image/png", png)]),
        )
    )
    return files


@functools.cache
def camera_jpeg() -> bytes:
    """A drawn photograph of a camera's size, with its noise: about a megabyte."""
    image = Image.fromarray(draw_fundus(8, 2, CAMERA_HEIGHT_PX).image)
    frame = Image.new("RGB", (CAMERA_WIDTH_PX, CAMERA_HEIGHT_PX))
    frame.paste(image, ((CAMERA_WIDTH_PX - CAMERA_HEIGHT_PX) // 2, 0))
    noise = np.random.default_rng(1).normal(0, 4, (CAMERA_HEIGHT_PX, CAMERA_WIDTH_PX, 1))
    noisy = np.clip(np.asarray(frame) + noise, 0, 255).astype(np.uint8)
    return _saved(Image.fromarray(noisy), "JPEG", quality=90)


def small_jpeg() -> bytes:
    """A drawn photograph of the model's own size."""
    image = Image.fromarray(draw_fundus(8, 2, 448).image).resize((_SIDE_PX, _SIDE_PX))
    return _saved(image, "JPEG", quality=90)


def _saved(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)  # type: ignore[arg-type]
    return buffer.getvalue()


def _form(parts: Sequence[tuple[str, bytes]]) -> bytes:
    pieces = [
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="f{index}"; filename="x"\r\n'
        f"Content-Type: {media_type}\r\n\r\n".encode("ascii")
        + data
        + b"\r\n"
        for index, (media_type, data) in enumerate(parts)
    ]
    return b"".join(pieces) + f"--{_BOUNDARY}--\r\n".encode("ascii")


# --- mutation -----------------------------------------------------------------------------


def mutated(corpus: Sequence[Body], *, seed: int) -> Body:
    """One of the files, changed in one to four ways; the same for the same seed."""
    chance = random.Random(seed)  # noqa: S311
    source = chance.choice(corpus)
    data = bytearray(source.body)
    done = []
    for _ in range(chance.choice((1, 1, 1, 2, 2, 4))):
        change = chance.choice(_CHANGES)
        done.append(change.__name__.strip("_"))
        data = change(chance, data, corpus)
    declared = source.content_type
    if chance.random() < 0.1:
        declared = chance.choice(("application/octet-stream", "application/x-image"))
    return Body(
        name=f"seed {seed}: {source.name}, {', '.join(done)}",
        content_type=declared,
        body=bytes(data),
    )


def _bit_flips(chance: random.Random, data: bytearray, _: Sequence[Body]) -> bytearray:
    for _flip in range(chance.choice((1, 1, 2, 8, 64))):
        if data:
            # Headers are where decisions are made.
            end = min(len(data), chance.choice((64, 1024, len(data))))
            data[chance.randrange(end)] ^= 1 << chance.randrange(8)
    return data


def _truncation(chance: random.Random, data: bytearray, _: Sequence[Body]) -> bytearray:
    return data[: chance.randrange(len(data) + 1)]


def _splice(chance: random.Random, data: bytearray, corpus: Sequence[Body]) -> bytearray:
    other = chance.choice(corpus).body
    return data[: chance.randrange(len(data) + 1)] + other[chance.randrange(len(other) + 1) :]


def _length_edit(chance: random.Random, data: bytearray, _: Sequence[Body]) -> bytearray:
    for _edit in range(chance.choice((1, 1, 2, 4))):
        size = chance.choice((1, 2, 4, 8))
        if len(data) <= size:
            break
        end = min(len(data) - size, chance.choice((64, 512, len(data) - size)))
        at = chance.randrange(end + 1)
        order = chance.choice(("little", "big"))
        found = int.from_bytes(data[at : at + size], order)  # type: ignore[arg-type]
        new = chance.choice((*_EDGES, found + 1, found - 1, found * 2, chance.getrandbits(32)))
        data[at : at + size] = (new % 256**size).to_bytes(size, order)  # type: ignore[arg-type]
    return data


def _wide_number(chance: random.Random, data: bytearray, _: Sequence[Body]) -> bytearray:
    """Set one of the format's 64-bit numbers, or any 8 bytes, beyond every position in a file."""
    places = _bigtiff_numbers(data) or _long_boxes(data)
    places = places or [(at, "little") for at in range(0, len(data) - 8, 2)]
    if places:
        at, order = chance.choice(places)
        if data[at - 4 : at] in _BOXES:
            # A length of 1 says that 64 bits of it follow.
            data[at - 8 : at - 4] = (1).to_bytes(4, "big")
        data[at : at + 8] = struct.pack(
            "<Q" if order == "little" else ">Q", chance.choice(_WIDE_EDGES)
        )
    return data


def _bigtiff_numbers(data: bytearray) -> list[tuple[int, str]]:
    """Where the 64-bit numbers of a BigTIFF's first directory are, and their order."""
    order = {b"II+\0": "little", b"MM\0+": "big"}.get(bytes(data[:4]))
    if order is None or len(data) < 16:
        return []
    form = "<Q" if order == "little" else ">Q"
    start = int(struct.unpack_from(form, data, 8)[0])
    if start + 8 > len(data):
        return [(8, order)]
    count = min(int(struct.unpack_from(form, data, start)[0]), 100)
    fields = [start + 8 + 20 * entry + place for entry in range(count) for place in (4, 12)]
    places = [8, start, *fields, start + 8 + 20 * count]
    return [(at, order) for at in places if at + 8 <= len(data)]


def _long_boxes(data: bytearray) -> list[tuple[int, str]]:
    """Where the boxes of a JPEG 2000 file would have their lengths of 64 bits."""
    found = [data.find(kind) for kind in _BOXES]
    return [(at + 4, "big") for at in found if at >= 4 and at + 12 <= len(data)]


def _piece_moved(chance: random.Random, data: bytearray, _: Sequence[Body]) -> bytearray:
    if len(data) < 8:
        return data
    start = chance.randrange(len(data))
    piece = data[start : start + chance.choice((1, 4, 64, 4096))]
    kind = chance.randrange(3)
    if kind != 2:
        del data[start : start + len(piece)]
    if kind:
        at = chance.randrange(len(data) + 1)
        data[at:at] = piece * chance.choice((1, 1, 2, 50))
    return data


def _noise(chance: random.Random, data: bytearray, _: Sequence[Body]) -> bytearray:
    at = chance.randrange(len(data) + 1)
    noise = chance.randbytes(chance.choice((1, 16, 1000)))
    data[at : at + chance.choice((0, len(noise)))] = noise
    return data


def _chunks(chance: random.Random, data: bytearray, _: Sequence[Body]) -> bytearray:
    """Swap, drop, repeat or change pieces of the format's own, with checksums made right."""
    split, join = _split(bytes(data))
    if len(split) < 2:
        return data
    for _edit in range(chance.choice((1, 1, 3))):
        one, two = chance.randrange(len(split)), chance.randrange(len(split))
        kind = chance.randrange(4)
        if kind == 0:
            split[one], split[two] = split[two], split[one]
        elif kind == 1 and len(split) > 2:
            del split[one]
        elif kind == 2:
            split.insert(two % (len(split) + 1), split[one % len(split)])
        else:
            piece = bytearray(split[one % len(split)])
            split[one % len(split)] = bytes(_length_edit(chance, piece, ()))
    return bytearray(join(split))


def _split(data: bytes) -> tuple[list[bytes], Callable[[list[bytes]], bytes]]:
    """The pieces of a file by its format, and what makes a file of them again."""
    if data.startswith(b"\x89PNG"):
        return _png_chunks(data), _png_of
    if data.startswith(b"RIFF"):
        return _riff_chunks(data), _riff_of
    if data.startswith(b"\xff\xd8"):
        pieces = data.split(b"\xff")
        return [b"\xff" + piece for piece in pieces[1:]], b"".join
    if data.startswith((b"{", b"[")):
        pieces = data.split(b'"')
        return pieces, b'"'.join
    if data.startswith(b"--"):
        pieces = data.split(b"\r\n")
        return pieces, b"\r\n".join
    # TIFF, BMP and DICOM are made of fields of even length, at the start or at the end.
    step, edge = 12, 2400
    ends = (
        range(0, min(edge, len(data)), step),
        range(max(edge, len(data) - edge), len(data), step),
    )
    starts = [*ends[0], *ends[1]]
    return [data[a:b] for a, b in pairwise([*starts, len(data)])], b"".join


def _png_chunks(data: bytes) -> list[bytes]:
    chunks, at = [], 8
    while at + 12 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        chunks.append(data[at + 4 : at + 8 + size])
        at += 12 + size
    return chunks


def _png_of(chunks: list[bytes]) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", max(0, len(c) - 4)) + c + struct.pack(">I", zlib.crc32(c)) for c in chunks
    )


def _riff_chunks(data: bytes) -> list[bytes]:
    chunks, at = [], 12
    while at + 8 <= len(data):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        chunks.append(data[at : at + 4] + data[at + 8 : at + 8 + size])
        at += 8 + size + size % 2
    return chunks


def _riff_of(chunks: list[bytes]) -> bytes:
    body = b"WEBP" + b"".join(
        c[:4] + struct.pack("<I", max(0, len(c) - 4)) + c[4:] + b"\0" * (len(c) % 2) for c in chunks
    )
    return b"RIFF" + struct.pack("<I", len(body)) + body


_CHANGES: Final = (
    _bit_flips,
    _bit_flips,
    _truncation,
    _splice,
    _length_edit,
    _length_edit,
    _wide_number,
    _piece_moved,
    _noise,
    _chunks,
    _chunks,
)


# --- files that are made to hurt ----------------------------------------------------------


def hostile_files() -> list[Body]:
    """Files that ask for far more than they are."""
    jpeg = camera_jpeg()
    large = 30_000
    return [
        _named("PNG header of 30000 x 30000 pixels", "image/png", png_header(large, large)),
        _named("PNG of 7000 x 7000 black pixels", "image/png", _flat_png(7_000)),
        _named("PNG with a text of 100 MB in iTXt", "image/png", _png_with(b"iTXt", _ITXT)),
        _named("PNG with a profile of 100 MB", "image/png", _png_with(b"iCCP", b"p\0\0")),
        _named("2 bytes", "image/jpeg", b"\xff\xd8"),
        _named("JPEG of 3216 x 2136 cut in half", "image/jpeg", jpeg[: len(jpeg) // 2]),
        _named("JPEG of 160 scans", "image/jpeg", _many_scans()),
        _named("JPEG header of 65500 x 65500", "image/jpeg", _large_jpeg()),
        _named("TIFF of 7000 x 7000, deflate", "image/tiff", _flat_tiff(7_000)),
        _named("TIFF of 600 x 600 whose strip holds 100 MB", "image/tiff", _tiff_bomb()),
        _named("TIFF whose pages are a ring", "image/tiff", _tiff_ring()),
        _named("WebP of 16383 x 16383, lossless", "image/webp", _flat_webp()),
        _named("BMP header of 30000 x 30000", "image/bmp", _bmp_header(large)),
        _named("DICOM of 60000 x 60000", "application/dicom", _dicom_header(60_000)),
        _named("DICOM, deflated data set of 100 MB", "application/dicom", _dicom_deflated()),
        _named("JSON of 5 million brackets", "application/json", b"[" * 5_000_000),
        _named("JSON of escapes", "application/json", b'{"image": "' + b"\\u0041" * 500_000),
        _named(
            "JSON of a data URL with 1 million parameters",
            "application/json",
            b'{"image": "data:' + b";" * 1_000_000 + b'"}',
        ),
        _named("form of 100000 parts", f"multipart/form-data; boundary={_BOUNDARY}", _many_parts()),
    ]


def _named(name: str, content_type: str, body: bytes) -> Body:
    return Body(name=name, content_type=content_type, body=body)


_EXPANDED_BYTES: Final = 100_000_000
_ITXT: Final = b"key\0\1\0\0\0"


@functools.cache
def _deflated_zeros() -> bytes:
    return zlib.compress(bytes(_EXPANDED_BYTES), 6)


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and has no pixels."""
    return _png_of([b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)])


def _flat_png(side: int) -> bytes:
    rows = zlib.compress(bytes((1 + 3 * side) * side), 6)
    head = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return _png_of([head, b"IDAT" + rows, b"IEND"])


def _png_with(kind: bytes, start: bytes) -> bytes:
    pixels = zlib.compress((b"\0" + b"\x80" * 900) * 300)
    head = b"IHDR" + struct.pack(">IIBBBBB", 300, 300, 8, 2, 0, 0, 0)
    return _png_of([head, kind + start + _deflated_zeros(), b"IDAT" + pixels, b"IEND"])


def _many_scans() -> bytes:
    image = Image.fromarray(draw_fundus(8, 2, 1200).image)
    data = _saved(image, "JPEG", quality=50, progressive=True)
    start, end = data.rfind(b"\xff\xda"), data.rfind(b"\xff\xd9")
    return data[:end] + data[start:end] * 150 + data[end:]


def _large_jpeg() -> bytes:
    data = bytearray(_saved(Image.new("RGB", (64, 64)), "JPEG"))
    at = data.find(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", 65_500, 65_500)
    return bytes(data)


def _flat_tiff(side: int) -> bytes:
    return _tiff_of(side, side, zlib.compress(bytes(3 * side * side), 6))


def _tiff_bomb() -> bytes:
    return _tiff_of(600, 600, _deflated_zeros())


def _tiff_of(width: int, height: int, strip: bytes) -> bytes:
    """A TIFF of one deflated strip, whatever that holds."""
    plain = tiff(
        np.zeros((1, 1, 3), np.uint8),
        changes={
            256: ("I", [width]),
            257: ("I", [height]),
            259: ("H", [8]),
            273: ("I", [0]),
            278: ("I", [height]),
            279: ("I", [len(strip)]),
        },
    )
    # The strip goes to the end of the file, and its offset into the directory.
    entry = struct.pack("<HHI", 273, 4, 1)
    at = plain.find(entry) + len(entry)
    return plain[:at] + struct.pack("<I", len(plain)) + plain[at + 4 :] + strip


def _tiff_ring() -> bytes:
    pixels = draw_fundus(8, 2, 224).image
    plain = tiff(pixels, next_directory=0)
    start = struct.unpack_from("<I", plain, 4)[0]
    return tiff(pixels, next_directory=start)


def _flat_webp() -> bytes:
    small = bytearray(_saved(Image.new("RGB", (16, 16)), "WEBP", lossless=True))
    at = small.find(b"VP8L") + 9
    bits = struct.unpack_from("<I", small, at)[0]
    small[at : at + 4] = struct.pack("<I", bits >> 28 << 28 | 16_382 << 14 | 16_382)
    return bytes(small)


def _bmp_header(side: int) -> bytes:
    head = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 1000, 0, 0, 54) + head + bytes(946)


def _dicom_header(side: int) -> bytes:
    return dicom(np.zeros((8, 8, 3), np.uint8), Rows=side, Columns=side)


def _dicom_deflated() -> bytes:
    plain = dicom(np.zeros((8, 8, 3), np.uint8), syntax=pydicom.uid.ExplicitVRLittleEndian)
    uid = pydicom.uid.ExplicitVRLittleEndian.encode("ascii")
    deflated = pydicom.uid.DeflatedExplicitVRLittleEndian.encode("ascii")
    at = plain.find(uid)
    meta_end = at + len(uid) + len(uid) % 2
    head = plain[: at - 2] + struct.pack("<H", len(deflated) + len(deflated) % 2)
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    return (
        head
        + deflated
        + b"\0" * (len(deflated) % 2)
        + packer.compress(plain[meta_end:] + bytes(_EXPANDED_BYTES))
        + packer.flush()
    )


def _many_parts() -> bytes:
    part = f"--{_BOUNDARY}\r\nContent-Type: image/png\r\n\r\n\r\n".encode("ascii")
    return part * 100_000 + f"--{_BOUNDARY}--\r\n".encode("ascii")
