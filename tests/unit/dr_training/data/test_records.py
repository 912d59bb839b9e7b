"""Records: what is written is read, and damage is named by file and index."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dr_training.data.records import (
    RecordError,
    RecordFile,
    RecordWriter,
    decode_example,
    encode_example,
    masked_crc,
)

FEATURES = st.dictionaries(
    st.text(max_size=20),
    st.one_of(
        st.lists(st.binary(max_size=50), min_size=1, max_size=3),
        st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=3),
    ),
    max_size=6,
)


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    with RecordWriter(tmp_path / "a.tfrecord") as writer:
        for number in range(5):
            writer.write(bytes([number]) * (10 + number))
    return tmp_path / "a.tfrecord"


def test_the_checksum_is_that_of_the_format() -> None:
    # RFC 3720, B.4: CRC-32C of 32 zero bytes is 8a9136aa; then rotated and shifted.
    crc = 0x8A9136AA
    assert masked_crc(bytes(32)) == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_records_are_found_by_index(shard: Path) -> None:
    records = RecordFile(shard)
    assert len(records) == 5
    assert records[3] == bytes([3]) * 13
    assert [record[0] for record in records] == [0, 1, 2, 3, 4]


@given(FEATURES)
def test_an_example_is_the_same_after_encoding_and_decoding(
    features: dict[str, list[bytes] | list[int]],
) -> None:
    assert decode_example(encode_example(features)) == features


def test_an_example_has_the_bytes_that_protobuf_gives() -> None:
    # Worked out by hand: Example.features {feature {key, value {int64_list {value: 2}}} …}.
    number = "0a0a" + "0a0161" + "1205" + "1a03" + "0a0102"
    text = "0a0b" + "0a0162" + "1206" + "0a04" + "0a027879"
    assert encode_example({"b": [b"xy"], "a": [2]}).hex() == "0a19" + number + text


@given(st.binary(max_size=200))
def test_any_bytes_are_an_example_or_a_value_error(data: bytes) -> None:
    try:
        features = decode_example(data)
    except ValueError:
        return
    assert all(isinstance(value, bytes | int) for one in features.values() for value in one)


def test_a_flipped_byte_is_named_by_file_and_index(shard: Path) -> None:
    data = bytearray(shard.read_bytes())
    start = sum(16 + 10 + n for n in range(2)) + 12
    data[start + 4] ^= 1
    shard.write_bytes(data)
    records = RecordFile(shard)
    assert records[1] == bytes([1]) * 11
    with pytest.raises(RecordError, match=r"a\.tfrecord record 2 is damaged"):
        _ = records[2]


def test_a_damaged_length_is_named(shard: Path) -> None:
    data = bytearray(shard.read_bytes())
    struct.pack_into("<Q", data, 26, 1 << 40)
    shard.write_bytes(data)
    with pytest.raises(RecordError, match=r"record 1 is damaged: the checksum of its length"):
        RecordFile(shard)


@pytest.mark.parametrize("cut", [5, 20, 29])
def test_a_cut_file_is_named(shard: Path, cut: int) -> None:
    shard.write_bytes(shard.read_bytes()[:-cut])
    with pytest.raises(RecordError, match=r"a\.tfrecord is cut off in record 4"):
        RecordFile(shard)


def test_an_empty_file_has_no_records_and_a_missing_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert len(RecordFile(tmp_path / "empty")) == 0
    with pytest.raises(RecordError, match="nowhere cannot be read: no such file"):
        RecordFile(tmp_path / "nowhere")


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with RecordWriter(tmp_path / "a.tfrecord") as writer:
            writer.write(b"one")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []
