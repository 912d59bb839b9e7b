"""Reads the markers of a JPEG: its kind, its size, and whether its scans can be whole.

    >>> read_jpeg(data)
    JpegHeader(width_px=3216, height_px=2136, decoded_bytes=20608128, ...)

A decoder fills up what is missing, and says so to nobody: grey for the rest of a file that ends
early, a blur for scans that never came. What the markers show of that is found here, what only
decoding shows in `jpeg_data`. Nothing is decoded, and the work is bounded.

Source: ITU-T T.81 (09/92), annexes B and F to H, for markers, Huffman codes and progressions.
"""

import re
import struct
from collections import Counter
from dataclasses import dataclass
from typing import Final

from inference_image.photograph import Header, PhotographError

_SOF_MARKERS: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SOF_PROGRESSIVE, _SOF_LOSSLESS = 0xC2, 0xC3
_SOF_ACCEPTED: Final = frozenset({0xC0, 0xC1, _SOF_PROGRESSIVE, _SOF_LOSSLESS})
_SOF_ARITHMETIC: Final = frozenset(range(0xC9, 0xD0))
_JPEG_BITS: Final = 8
# JPEG-LS begins as a JPEG does, and is another compression (ITU-T T.87).
_SOF_JPEG_LS: Final = 0xF7
_DHT, _EOI, _SOS, _DRI = 0xC4, 0xD9, 0xDA, 0xDD
# Markers that no length follows: stuffing, TEM, RST0-7, SOI.
_BARE_MARKERS: Final = frozenset({0x00, 0x01, *range(0xD0, 0xD9)})
# What may follow a scan: tables, another scan, the number of lines, application data, comments.
_AFTER_A_SCAN: Final = frozenset({_DHT, _EOI, _SOS, 0xDB, 0xDC, _DRI, *range(0xE0, 0xF0), 0xFE})
# In compressed data FF is followed by 00, by a restart marker or by another FF.
_NEXT_MARKER: Final = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
_RESTARTS: Final = tuple(bytes((0xFF, marker)) for marker in range(0xD0, 0xD8))
_RESTART: Final = re.compile(rb"\xff[\xd0-\xd7]")
# Before a marker there may be any number of FF (T.81 B.1.1.2), and some writers pad with others. A
# decoder goes over them one by one, so that all together are bounded.
_FILL: Final = re.compile(rb"\xff+(?=\xff)")
_MAX_FILL_BYTES: Final = 65_536
_MAX_OTHER_BYTES: Final = 16
# Decoders look at segments one by one; a hostile file has millions of them.
_MAX_SEGMENTS: Final = 1000
# Each scan of a JPEG goes over the whole picture again, also an empty one of ten bytes. Cameras
# write one, progressive files ten; the product keeps a large picture below seconds, twice.
_MAX_SCANS: Final = 100
_MAX_SCANNED_PIXELS: Final = 750_000_000
_COEFFICIENTS: Final = 64
# Four of each kind may be in use at a time (T.81 B.2.4.2).
_MOST_TABLES: Final = 8
# The largest number of the lowest bit that is still missing (T.81 G.1.1.1.2), and one more.
_NOTHING_YET: Final = 14
# Longer than any block whose bits are all zero, and of no photograph unless zeros mean "flat".
_ZEROS: Final = bytes(256)


@dataclass(frozen=True, kw_only=True)
class JpegHeader(Header):
    """Also where the data of the picture end, and what its samples may be.

    `data_end` is the position after the data of the one scan that holds every component; None
    where there are several scans, or no scan at all; those end at `scan_ends`. A `lossless` one has
    no smaller scale.
    """

    component_ids: bytes
    lossless: bool
    data_end: int | None
    scan_ends: tuple[int, ...]


def read_jpeg(data: bytes) -> JpegHeader:
    """Kind and size of a JPEG, after looking at every scan.

    Raises:
        PhotographError: 415 for a kind that is not accepted, 422 where markers are missing,
            too many, or where none can be.
        struct.error, IndexError: the file ends within a segment.
    """
    frame, position = _start(data)
    return frame.header if position is None else _follow(data, frame, position)


class _Frame:
    """What SOF says, and what the scans have brought so far."""

    def __init__(self, data: bytes, position: int, marker: int) -> None:
        bits, height, width, count = struct.unpack_from(">BHHB", data, position + 4)
        if marker not in _SOF_ACCEPTED:
            kind = "arithmetic-coded" if marker in _SOF_ARITHMETIC else "hierarchical"
            raise PhotographError(
                415,
                f"The JPEG is {kind}, which is not accepted; send a baseline or progressive one.",
            )
        if bits != _JPEG_BITS:
            raise PhotographError(
                415, f"The JPEG has {bits}-bit samples; accepted are those of 8 bits."
            )
        self.size = (width, height)
        self.marker = marker
        # Identifier and sampling factors of each component.
        parts = data[position + 10 : position + 10 + 3 * count]
        self.component_ids, self._samplings = parts[::3], parts[1::3]
        self.data_end: int | None = None
        self.scan_ends: list[int] = []
        # Units of data between two restart markers; 0 where there are none.
        self.restart = 0
        self._absent = set(self.component_ids)
        # Of each coefficient of a component, the lowest bit that has come (T.81 G.1.1.1).
        self._missing: dict[int, list[int]] = {}
        if marker == _SOF_PROGRESSIVE:
            self._missing = {name: [_NOTHING_YET] * _COEFFICIENTS for name in self._absent}

    @property
    def header(self) -> JpegHeader:
        width, height = self.size
        return JpegHeader(
            width_px=width,
            height_px=height,
            decoded_bytes=3 * width * height,
            component_ids=self.component_ids,
            lossless=self.marker == _SOF_LOSSLESS,
            data_end=self.data_end,
            scan_ends=tuple(self.scan_ends) if self.data_end is None else (),
        )

    @property
    def is_whole(self) -> bool:
        """Whether every scan has come."""
        return not self._absent and not any(map(any, self._missing.values()))

    def add(self, scan: "_Scan") -> None:
        """Note what a scan brings; raise where one before it is missing."""
        for name in scan.names:
            if name not in self.component_ids:
                raise _damaged()
            self._absent.discard(name)
            if self._missing:
                missing, band = self._missing[name], slice(scan.first, scan.last + 1)
                if scan.high and max(missing[band], default=0) > scan.high:
                    raise _damaged()
                missing[band] = [scan.low] * len(missing[band])

    def units(self, scan: "_Scan") -> int:
        """How many units of data the scan has between its restart markers (T.81 A.2)."""
        width, height = self.size
        factors = [divmod(both, 16) for both in self._samplings]
        most_across = max(across for across, _ in factors)
        most_down = max(down for _, down in factors)
        if min(map(min, factors)) < 1:
            raise _damaged()
        block = 1 if self.marker == _SOF_LOSSLESS else 8
        if len(scan.names) > 1:
            return int(-(-width // (block * most_across)) * -(-height // (block * most_down)))
        across, down = factors[self.component_ids.index(scan.names[0])]
        wide, high = -(-width * across // most_across), -(-height * down // most_down)
        return int(-(-wide // block) * -(-high // block))


class _Scan:
    """A SOS segment (T.81 B.2.3)."""

    def __init__(self, data: bytes, position: int) -> None:
        after = position + 5 + 2 * data[position + 4]
        # Pairs of a component's name and its tables.
        self.names, self.tables = data[position + 5 : after : 2], data[position + 6 : after : 2]
        self.first, self.last = data[after], data[after + 1]
        self.high, self.low = data[after + 2] >> 4, data[after + 2] & 15
        if not self.names:
            raise _damaged()


class _Codes:
    """What the code of zeros only means in each Huffman table (T.81 C.2), read when asked."""

    def __init__(self, data: bytes, first_scan: int, later: list[tuple[int, int]]) -> None:
        self._data = data
        self._first_scan: int | None = first_scan
        # Position and length of the segments behind a scan, to which the caller adds.
        self._unread = later
        self._symbols: dict[int, int] = {}

    def symbols(self) -> dict[int, int]:
        """By destination: 0 to 3 direct, 16 to 19 alternating."""
        data = self._data
        if self._first_scan is not None:
            self._unread[:0] = _segments(data, self._first_scan, _DHT)
            self._first_scan = None
        for position, length in self._unread:
            at = position + 4
            for _ in range(_MOST_TABLES):
                if at + 17 >= position + 2 + length:
                    break
                self._symbols[data[at]] = data[at + 17]
                at += 17 + sum(data[at + 1 : at + 17])
        self._unread.clear()
        return self._symbols


def _follow(data: bytes, frame: _Frame, position: int) -> JpegHeader:
    """Go from the first SOS marker to EOI, or to the end of the file."""
    width, height = frame.size
    codes: _Codes | None = None
    tables: list[tuple[int, int]] = []
    first_scan, restart = position, frame.restart
    scans = segments = 0
    while True:
        # At a SOS marker or another one after it.
        marker = data[position + 1]
        if marker == _SOS:
            scans += 1
            if scans > _MAX_SCANS or scans * width * height > _MAX_SCANNED_PIXELS:
                raise PhotographError(
                    422, f"The JPEG cannot be decoded: it has {scans} scans or more, too many."
                )
        if marker == _EOI or position + 4 > len(data):
            break
        begin = position
        if marker in _BARE_MARKERS:
            position += 2
        else:
            position += 2 + (data[position + 2] << 8 | data[position + 3])
        found = _NEXT_MARKER.search(data, position)
        segments += 1
        if segments > _MAX_SEGMENTS:
            raise _damaged()
        end = len(data) if found is None else found.start()
        if marker == _SOS:
            scan = _Scan(data, begin)
            frame.add(scan)
            if restart:
                _check_restarts(data, frame, scan, restart, position, end)
            zeros = data.find(_ZEROS, position, end)
            # At the end they only fill up.
            if zeros >= 0 and data[zeros:end].strip(b"\xff\0"):
                codes = codes or _Codes(data, first_scan, tables)
                if not _zeros_are_flat(frame, scan, codes.symbols()):
                    raise _damaged()
            frame.scan_ends.append(end)
            if scans == 1 and len(scan.names) == len(frame.component_ids):
                frame.data_end = None if frame.marker == _SOF_PROGRESSIVE else end
            if found is not None and data[end + 1] not in _AFTER_A_SCAN:
                raise _damaged()
        elif marker == _DRI:
            restart = int(struct.unpack_from(">H", data, begin + 4)[0])
        elif marker == _DHT:
            tables.append((begin, position - begin - 2))
        if found is None:
            break
        position = end
    if not frame.is_whole:
        raise PhotographError(
            422, "The JPEG cannot be decoded: scans are missing, it is truncated or damaged."
        )
    return frame.header


def _check_restarts(
    data: bytes, frame: _Frame, scan: _Scan, restart: int, start: int, end: int
) -> None:
    """Raise where restart markers are missing in the data of a scan, or too many."""
    # One between two intervals; some encoders write one more at the end.
    markers = -(-frame.units(scan) // restart) - 1
    found = Counter(_RESTART.findall(data, start, end))
    counts = [found[marker] for marker in _RESTARTS]
    if counts not in (
        [(total + 7 - place) // 8 for place in range(8)] for total in (markers, markers + 1)
    ):
        raise _damaged()


def _zeros_are_flat(frame: _Frame, scan: _Scan, symbols: dict[int, int]) -> bool:
    """Whether a scan may have zeros without end: where they say "as before" and "end of block"."""
    progressive = frame.marker == _SOF_PROGRESSIVE
    if progressive and scan.first == 0 and scan.high:
        # One bit for each block, and nothing else.
        return True
    direct = not progressive or scan.first == 0
    alternating = frame.marker != _SOF_LOSSLESS and not (progressive and direct)
    for tables in scan.tables:
        if direct and symbols.get(tables >> 4, 0):
            return False
        run, size = divmod(symbols.get(16 + tables % 16, 0), 16)
        if alternating and (size or (run and not progressive)):
            return False
    return True


def _segments(data: bytes, end: int, wanted: int) -> list[tuple[int, int]]:
    """Position and length of the segments of one kind before the first scan, at `end`."""
    found: list[tuple[int, int]] = []
    position = data.find(b"\xff", 2, end)
    while position >= 0 and position + 4 <= end:
        marker = data[position + 1]
        if marker == 0xFF:
            position = _last_fill(data, position)
        elif marker in _BARE_MARKERS:
            position += 2
        else:
            length = int(struct.unpack_from(">H", data, position + 2)[0])
            if marker == wanted:
                found.append((position, length))
            position += 2 + length
        position = data.find(b"\xff", position, end)
    return found


def _last_fill(data: bytes, position: int) -> int:
    """Where the last one of a row of FF is, from the first on."""
    fill = _FILL.match(data, position)
    return position if fill is None else fill.end()


def _start(data: bytes) -> tuple[_Frame, int | None]:
    """The frame, and where the first scan begins; None where the file ends before it."""
    frame: _Frame | None = None
    position, restart, filled = 2, 0, 0
    for _ in range(_MAX_SEGMENTS):
        if data[position : position + 1] != b"\xff" or data[position + 1 : position + 2] == b"\xff":
            if position + 4 > len(data):
                break
            begun = position
            position = data.find(b"\xff", position, position + _MAX_OTHER_BYTES + 1)
            if position < 0:
                raise _damaged()
            position = _last_fill(data, position)
            filled += position - begun
            if filled > _MAX_FILL_BYTES:
                raise _damaged()
        if position + 4 > len(data):
            break
        marker = data[position + 1]
        if marker == _SOS and frame is not None:
            frame.restart = restart
            return frame, position
        if marker == _SOF_JPEG_LS:
            raise PhotographError(415, "The JPEG is a JPEG-LS, which is not accepted; send a JPEG.")
        if marker in _SOF_MARKERS and position + 10 <= len(data):
            frame = _Frame(data, position, marker)
        elif marker == _DRI:
            restart = int(struct.unpack_from(">H", data, position + 4)[0])
        if marker in _BARE_MARKERS:
            position += 2
        else:
            position += 2 + (data[position + 2] << 8 | data[position + 3])
    else:
        raise _damaged()
    if frame is None:
        raise _damaged()
    return frame, None


def _damaged() -> PhotographError:
    return PhotographError(422, "The JPEG cannot be decoded: it is truncated or damaged.")
