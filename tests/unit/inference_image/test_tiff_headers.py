"""TIFFs of which strips or tiles are missing: a decoder would leave black or garbage there."""

import io
import struct
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from inference_image.decoding import PhotographError, decode, measure
from inference_image.tiff_headers import read_tiff
from tests.photograph_files import Pixels, bigtiff_with_a_tag_at, png, shared_colours, tiff, wide
from tests.service_harness import drawn_pixels, encoded

SIDE_PX = 200
OFFSETS, COUNTS, TILE_OFFSETS, TILE_COUNTS = 273, 279, 324, 325


def picture() -> Pixels:
    return drawn_pixels(size_px=SIDE_PX)


def refusal(data: bytes) -> PhotographError:
    with pytest.raises(PhotographError) as raised:
        decode(data)
    return raised.value


def values(data: bytes, tag: int) -> list[int]:
    with Image.open(io.BytesIO(data)) as opened:
        return list(opened.tag_v2[tag])  # type: ignore[attr-defined]


LAYOUTS: list[tuple[str, dict[str, Any], int, int]] = [
    ("strips", {"strip_rows": 50}, OFFSETS, COUNTS),
    ("BigTIFF", {"strip_rows": 50, "big": True}, OFFSETS, COUNTS),
    ("tiles", {"tile_px": 96}, TILE_OFFSETS, TILE_COUNTS),
    ("planes", {"planes": True}, OFFSETS, COUNTS),
]
DAMAGE: list[tuple[str, Callable[[list[int], list[int]], tuple[list[int], list[int]]]]] = [
    ("no offset", lambda o, c: ([o[0], 0, *o[2:]], c)),
    ("no bytes", lambda o, c: (o, [c[0], 0, *c[2:]])),
    ("neither", lambda o, c: ([o[0], 0, *o[2:]], [c[0], 0, *c[2:]])),
    ("outside the file", lambda o, c: ([*o[:-1], 2**31], c)),
    ("beyond the end of the file", lambda o, c: ([*o[:-1], o[-1] + 5000], c)),
    ("one byte too few", lambda o, c: (o, [c[0], c[1] - 1, *c[2:]])),
    ("one for all", lambda o, c: ([o[0]] * len(o), c)),
    ("overlapping", lambda o, c: ([o[0], o[1] - 1, *o[2:]], c)),
    ("in the header", lambda o, c: ([4, *o[1:]], c)),
    ("one too few", lambda o, c: (o[:-1], c[:-1])),
    ("one too many", lambda o, c: ([*o, o[0]], [*c, c[0]])),
    ("one size too few", lambda o, c: (o, c[:-1])),
]


@pytest.mark.parametrize(
    ("options", "offset_tag", "count_tag"),
    [row[1:] for row in LAYOUTS],
    ids=[row[0] for row in LAYOUTS],
)
@pytest.mark.parametrize("damage", [row[1] for row in DAMAGE], ids=[row[0] for row in DAMAGE])
def test_a_missing_part_is_noticed(
    options: dict[str, Any], offset_tag: int, count_tag: int, damage: Callable[..., Any]
) -> None:
    for pixels in (picture(), wide(picture())):
        whole = tiff(pixels, **options)
        assert decode(whole)
        offsets, counts = damage(values(whole, offset_tag), values(whole, count_tag))
        data = tiff(
            pixels,
            **options,
            changes={offset_tag: ("I", offsets), count_tag: ("I", counts)},
        )
        error = refusal(data)
        assert error.status == 422
        assert "missing" in error.detail


@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg"])
def test_a_compressed_part_that_is_missing_or_cut_is_noticed(compression: str) -> None:
    whole = encoded(Image.fromarray(picture()), "TIFF", compression=compression, tiffinfo={278: 48})
    assert decode(whole)
    offsets, counts = values(whole, OFFSETS), values(whole, COUNTS)
    assert len(offsets) == 5
    for before in (offsets, counts):
        packed = struct.pack("<5I", *before)
        assert whole.count(packed) == 1
        for place in range(5):
            for changed in (0, before[place] // 2):
                after = [*before[:place], changed, *before[place + 1 :]]
                data = whole.replace(packed, struct.pack("<5I", *after))
                assert refusal(data).status == 422, (place, changed)


def test_sizes_that_say_more_than_is_needed_or_nothing_are_no_damage() -> None:
    plain = np.asarray(decode(png(picture())).image)
    size = picture().nbytes
    for changes in ({COUNTS: ("I", [size + 1000])}, {278: ("I", [2**32 - 1])}):
        assert np.array_equal(np.asarray(decode(tiff(picture(), changes=changes)).image), plain)
    without = tiff(picture(), changes={COUNTS: ("I", [size])}).replace(
        struct.pack("<HHI", COUNTS, 4, 1), struct.pack("<HHI", 65_000, 4, 1)
    )
    assert np.array_equal(np.asarray(decode(without).image), plain)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("size", [(64, 48), (63, 47), (64, 2), (2, 64)])
def test_colours_that_pixels_share_are_read(order: str, size: tuple[int, int]) -> None:
    pixels = np.ascontiguousarray(picture()[60 : 60 + size[1], 60 : 60 + size[0]])
    apart = np.asarray(decode(shared_colours(pixels, order=order)).image).astype(int) - pixels
    assert np.abs(apart).mean() < 3
    cut = shared_colours(pixels, order=order)
    count = struct.pack(order + "HHI", COUNTS, 4, 1)
    at = cut.index(count) + 8
    fewer = int.from_bytes(cut[at : at + 4], "little" if order == "<" else "big") - 1
    assert refusal(cut[:at] + struct.pack(order + "I", fewer) + cut[at + 4 :]).status == 422


def test_a_layout_that_is_not_known_is_named_and_not_called_damaged() -> None:
    for changes in (
        {266: ("H", [2]), 258: ("H", [16, 16, 16])},
        {262: ("H", [5])},
        {258: ("H", [8, 8, 4])},
    ):
        pixels = wide(picture()) if 266 in changes else picture()
        error = refusal(tiff(pixels, changes=changes))
        assert error.status == 415
        assert "accepted" in error.detail


def test_countless_strips_are_refused_at_once() -> None:
    pixels = np.zeros((20_000, 16), np.uint8)
    begun = time.process_time()
    tiny = {322: ("I", [1]), 323: ("I", [1]), TILE_OFFSETS: ("I", [8] * 320_000)}
    assert refusal(tiff(pixels, tile_px=16, changes=tiny)).status == 422
    assert time.process_time() - begun < 1


def test_one_strip_whose_size_is_not_said_is_read_where_the_file_has_it() -> None:
    data = tiff(picture(), changes={COUNTS: ("I", [0])})
    assert values(data, COUNTS) == [0]
    assert np.array_equal(np.asarray(decode(data).image), picture())
    (start,) = values(data, OFFSETS)
    for offset in (start + len(data), 0, 4):
        changes = {COUNTS: ("I", [0]), OFFSETS: ("I", [offset])}
        assert refusal(tiff(picture(), changes=changes)).status == 422


@pytest.mark.parametrize("position", [293, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_tag_outside_the_file_is_damage_however_far_away(position: int) -> None:
    data = bigtiff_with_a_tag_at(position)
    for read in (decode, measure, read_tiff):
        with pytest.raises(PhotographError) as raised:
            read(data)
        assert (raised.value.status, "tag 258" in raised.value.detail) == (422, True)
