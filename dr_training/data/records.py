"""TFRecord files of `tf.train.Example`, written and read without TensorFlow.

    >>> with RecordWriter(Path("train-00000.tfrecord")) as writer:
    ...     writer.write(encode_example({"image/class/label": [2], "image/encoded": [jpeg]}))
    >>> decode_example(RecordFile(Path("train-00000.tfrecord"))[0])["image/class/label"]
    [2]

A record is its length, the masked CRC-32C of the length, the bytes, and their masked CRC-32C
(tensorflow.org/tutorials/load_data/tfrecord, checked 2026-11-28). `tf.data.TFRecordDataset`
reads these files, and this reads its own.

TensorFlow says "corrupted record at 1234" hours into a training, without a name. Here a damaged
record is named by file and index, and a key that is missing is an error, not grade 0.
"""

import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import google_crc32c

from dr_training.data.faults import DataError

_LENGTH: Final = struct.Struct("<Q")
_CRC: Final = struct.Struct("<I")
_FRAME_BYTES: Final = _LENGTH.size + 2 * _CRC.size
_MASK_DELTA: Final = 0xA282EAD8
_WORD: Final = 0xFFFFFFFF

Feature = Sequence[bytes] | Sequence[int]
Features = Mapping[str, Feature]


class RecordError(DataError):
    """A record that cannot be used, named by its file and its index."""


def masked_crc(data: bytes | memoryview) -> int:
    """CRC-32C, rotated and shifted as the format asks."""
    crc = int(google_crc32c.value(bytes(data)))
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & _WORD


class RecordWriter:
    """Writes a file under a temporary name and renames it when it is whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self._partial = path.with_name(f".{path.name}.part")
        self._stream = self._partial.open("wb")

    def write(self, record: bytes) -> int:
        """Append a record; returns its index in the file."""
        length = _LENGTH.pack(len(record))
        for part in (length, _CRC.pack(masked_crc(length)), record, _CRC.pack(masked_crc(record))):
            self._stream.write(part)
        self.count += 1
        return self.count - 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.close()
        if kind is None:
            self._partial.replace(self.path)
        else:
            self._partial.unlink()


class RecordFile(Sequence[bytes]):
    """The records of a file by index; each is checked against its checksum when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as stream:
                size = stream.seek(0, 2)
                # The mapping keeps the file open by itself.
                self._bytes: mmap.mmap | bytes = (
                    mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
                )
        except OSError as error:
            reason = (error.strerror or "unreadable").lower()
            raise RecordError(f"{path} cannot be read: {reason}") from None
        self._places = self._index()

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> bytes:  # type: ignore[override]
        start, length = self._places[index]
        record = self._bytes[start : start + length]
        (crc,) = _CRC.unpack_from(self._bytes, start + length)
        if masked_crc(record) != crc:
            raise RecordError(f"{self.path} record {index} is damaged: its checksum is another")
        return record

    def __iter__(self) -> Iterator[bytes]:
        return (self[index] for index in range(len(self)))

    def _index(self) -> list[tuple[int, int]]:
        places: list[tuple[int, int]] = []
        position = 0
        while position < len(self._bytes):
            index = len(places)
            if position + _LENGTH.size + _CRC.size > len(self._bytes):
                raise RecordError(f"{self.path} is cut off in record {index}")
            length_bytes = self._bytes[position : position + _LENGTH.size]
            (length,) = _LENGTH.unpack(length_bytes)
            (crc,) = _CRC.unpack_from(self._bytes, position + _LENGTH.size)
            if masked_crc(length_bytes) != crc:
                raise RecordError(
                    f"{self.path} record {index} is damaged: the checksum of its length is another"
                )
            if position + _FRAME_BYTES + length > len(self._bytes):
                raise RecordError(f"{self.path} is cut off in record {index}")
            places.append((position + _LENGTH.size + _CRC.size, length))
            position += _FRAME_BYTES + length
        return places


def encode_example(features: Features) -> bytes:
    """`tf.train.Example` of lists of bytes or of whole numbers, keys in alphabetical order."""
    entries = b""
    for name in sorted(features):
        values = features[name]
        if all(isinstance(value, bytes) for value in values):
            # Feature.bytes_list = 1, BytesList.value = 1
            inner = b"".join(_field(1, value) for value in values if isinstance(value, bytes))
            feature = _field(1, inner)
        else:
            # Feature.int64_list = 3, Int64List.value = 1, packed
            packed = b"".join(_varint(value) for value in values if isinstance(value, int))
            feature = _field(3, _field(1, packed))
        entries += _field(1, _field(1, name.encode()) + _field(2, feature))
    return _field(1, entries)


def decode_example(record: bytes) -> dict[str, list[bytes] | list[int]]:
    """Features of a `tf.train.Example`; lists of floats are left out.

    Raises:
        ValueError: the bytes are no such message.
    """
    features: dict[str, list[bytes] | list[int]] = {}
    for number, message in _fields(record):
        if number != 1:
            continue
        for entry_number, entry in _fields(_bytes(message)):
            if entry_number != 1:
                continue
            name, value = "", b""
            for key_number, content in _fields(_bytes(entry)):
                if key_number == 1:
                    name = _bytes(content).decode()
                elif key_number == 2:
                    value = _bytes(content)
            decoded = _feature(value)
            if decoded is not None:
                features[name] = decoded
    return features


def _feature(feature: bytes) -> list[bytes] | list[int] | None:
    for kind, content in _fields(feature):
        if kind == 1:
            return [_bytes(value) for number, value in _fields(_bytes(content)) if number == 1]
        if kind == 3:
            whole: list[int] = []
            for number, value in _fields(_bytes(content)):
                if number != 1:
                    continue
                if isinstance(value, int):
                    whole.append(_signed(value))
                    continue
                position = 0
                while position < len(value):
                    one, position = _read_varint(value, position)
                    whole.append(_signed(one))
            return whole
    return None


def _fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Number and content of each field of a protobuf message."""
    position = 0
    while position < len(message):
        tag, position = _read_varint(message, position)
        number, wire = tag >> 3, tag & 7
        if wire == 2:
            length, position = _read_varint(message, position)
            end = position + length
        elif wire in (1, 5):
            end = position + (8 if wire == 1 else 4)
        elif wire == 0:
            value, position = _read_varint(message, position)
            yield number, value
            continue
        else:
            raise ValueError(f"wire type {wire} is not one of a tf.train.Example")
        if end > len(message):
            raise ValueError("a field reaches beyond the record")
        yield number, message[position:end]
        position = end


def _bytes(content: bytes | int) -> bytes:
    if isinstance(content, int):
        raise ValueError("a number stands where a message is expected")
    return content


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise ValueError("a number is cut off")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
