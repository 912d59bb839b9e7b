"""JPEGs whose data do not fit their size: a decoder would fill up the rest."""

import gc
import io
import re
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from inference_image.decoding import PhotographError, decode
from inference_image.jpeg_data import open_jpeg
from inference_image.jpeg_headers import read_jpeg
from tests.photograph_files import UID, dicom, lossless_jpeg
from tests.service_harness import REPOSITORY, drawn_jpeg, drawn_pixels, encoded

EOI = b"\xff\xd9"
SIDE_PX = 200


def jpeg(mode: str = "RGB", **options: Any) -> bytes:
    picture = Image.fromarray(drawn_pixels(size_px=SIDE_PX)).convert(mode)
    return encoded(picture, "JPEG", **{"quality": 90, **options})


def refusal(data: bytes, **options: Any) -> PhotographError:
    with pytest.raises(PhotographError) as raised:
        decode(data, **options)
    return raised.value


def in_a_dicom(frame: bytes) -> bytes:
    return dicom(
        frame,
        syntax=UID.JPEGBaseline8Bit,
        photometric="YBR_FULL_422",
        Rows=SIDE_PX,
        Columns=SIDE_PX,
    )


ONE_SCAN: list[tuple[str, Callable[[], bytes]]] = [
    ("colour", jpeg),
    ("full chroma", lambda: jpeg(subsampling=0)),
    ("optimised", lambda: jpeg(optimize=True)),
    ("grey", lambda: jpeg("L")),
    ("CMYK", lambda: jpeg("CMYK")),
    ("RGB", lambda: jpeg(keep_rgb=True)),
    ("lossless", lambda: lossless_jpeg(drawn_pixels(size_px=SIDE_PX))),
]


@pytest.mark.parametrize("whole", [row[1] for row in ONE_SCAN], ids=[row[0] for row in ONE_SCAN])
@pytest.mark.parametrize("min_side_px", [None, 50])
def test_a_picture_that_ends_early_is_refused_though_its_end_is_marked(
    whole: Callable[[], bytes], min_side_px: int | None
) -> None:
    data = whole()
    assert decode(data, min_side_px=min_side_px)
    start = data.index(b"\xff\xda") + 20
    for left in (0, 0.3, 0.6, 0.9, 0.99):
        cut = data[: start + int((len(data) - start) * left)].rstrip(b"\xff")
        for ended in (cut, cut + EOI):
            error = refusal(ended, min_side_px=min_side_px)
            assert error.status == 422
            assert "truncated or damaged" in error.detail
            assert ("fewer data than pixels" in error.detail) == ended.endswith(EOI)


@pytest.mark.parametrize("min_side_px", [None, 50])
@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.9])
def test_a_part_that_was_lost_or_doubled_is_noticed(share: float, min_side_px: int | None) -> None:
    data = jpeg(quality=99)
    start = data.index(b"\xff\xda") + 20
    place = start + 600 + int((len(data) - start - 1200) * share)
    for damaged in (data[:place] + data[place + 600 :], data[:place] + data[place - 600 :]):
        error = refusal(damaged, min_side_px=min_side_px)
        assert error.status == 422
        assert re.search("fewer data than pixels|more data than pixels", error.detail)


def test_data_behind_the_last_pixel_are_refused() -> None:
    more = drawn_jpeg()[3000:3100].replace(b"\xff", b"\1")
    assert "more data than pixels" in refusal(jpeg()[:-2] + more + EOI).detail


def test_it_is_noticed_inside_a_dicom() -> None:
    assert decode(in_a_dicom(jpeg()))
    error = refusal(in_a_dicom(jpeg()[:-500] + EOI))
    assert error.status == 422
    assert "fewer data" in error.detail


def test_a_part_that_was_overwritten_with_zeros_is_refused() -> None:
    for options in ({}, {"restart_marker_blocks": 20}):
        data = jpeg(quality=99, subsampling=0, **options)
        middle = (data.index(b"\xff\xda") + len(data)) // 2
        if options:
            # Within one interval, so that the next marker sets it right again.
            middle = data.index(b"\xff\xd3", middle) + 2
            assert b"\xff\xd4" not in data[middle : middle + 300]
        zeroed = data[:middle] + bytes(300) + data[middle + 300 :]
        assert refusal(zeroed).status == 422


@pytest.mark.parametrize("options", [{}, {"optimize": True}, {"progressive": True}])
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("level", [0, 128, 255])
def test_a_flat_picture_has_long_zeros_and_is_none_the_worse(
    options: dict[str, Any], mode: str, level: int
) -> None:
    flat = Image.new("L", (1000, 1000), level).convert(mode)
    for picture in (flat, Image.fromarray(np.pad(drawn_pixels(size_px=200)[..., 0], 400))):
        for smallest in (None, 100):
            assert decode(encoded(picture, "JPEG", **options), min_side_px=smallest)


def test_a_few_bytes_before_the_end_are_no_damage() -> None:
    data = jpeg()
    many = (b"\xff" * 70_000, bytes(4097), bytes(70_000), b"\xff\0" * 5000)
    for filled in (b"\xff" * 500, bytes(500), b"\x12\x34\x56", *many):
        assert decode(data[:-2] + filled + EOI)
    assert decode(data + bytes(1000))


@pytest.mark.parametrize("count", [1, 16, 17, 1000, 30_000])
def test_any_number_of_fill_bytes_may_stand_before_a_marker(count: int) -> None:
    # T.81 B.1.1.2. Before each of two markers, and before the tables that are looked at later.
    data = jpeg()
    plain = np.asarray(decode(data).image)
    for marker in (b"\xff\xc0", b"\xff\xc4", b"\xff\xdb"):
        at = data.index(marker)
        filled = data[:2] + b"\xff" * count + data[2:at] + b"\xff" * count + data[at:]
        assert np.array_equal(np.asarray(decode(filled).image), plain)


def test_fill_bytes_without_end_cost_no_time() -> None:
    data = jpeg()
    begun = time.process_time()
    for count in (65_000, 70_000, 5_000_000):
        with suppress(PhotographError):
            decode(data[:2] + b"\xff" * count + data[2:])
    assert time.process_time() - begun < 0.3
    with pytest.raises(PhotographError):
        decode(data[:2] + b"\xff" * 70_000 + data[2:])


@given(
    seed=st.integers(0, 2**32 - 1),
    width=st.integers(1, 90),
    height=st.integers(1, 90),
    noise=st.sampled_from([0, 3, 120]),
    mode=st.sampled_from(["L", "RGB", "CMYK"]),
    options=st.fixed_dictionaries(
        {
            "quality": st.sampled_from([1, 50, 90, 100]),
            "subsampling": st.sampled_from([0, 1, 2]),
            "optimize": st.booleans(),
            "progressive": st.booleans(),
            "restart_marker_blocks": st.sampled_from([0, 1, 3, 50]),
        }
    ),
    smallest=st.sampled_from([1, 20, None]),
)
@settings(max_examples=200, deadline=None)
def test_no_whole_picture_is_refused_or_changed(
    seed: int,
    width: int,
    height: int,
    noise: int,
    mode: str,
    options: dict[str, Any],
    smallest: int | None,
) -> None:
    levels = np.random.default_rng(seed).normal(100, noise, (height, width, 3))
    picture = Image.fromarray(levels.clip(0, 255).astype(np.uint8)).convert(mode)
    data = encoded(picture, "JPEG", **options)
    with Image.open(io.BytesIO(data)) as plain:
        if smallest is not None:
            plain.draft(plain.mode, (smallest, smallest))
        expected = np.asarray(plain.convert("RGB"))
    assert np.array_equal(np.asarray(decode(data, min_side_px=smallest).image), expected)


def test_a_file_without_its_end_is_refused() -> None:
    for data in (jpeg(), jpeg(progressive=True)):
        for less in (1, 2, 3, 10):
            assert refusal(data[:-less]).status == 422


# --- Several scans ------------------------------------------------------------------------


def scans_of(data: bytes) -> list[int]:
    return [found.start() for found in re.finditer(rb"\xff\xda", data)]


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_progressive_picture_without_all_of_its_scans_is_refused(mode: str) -> None:
    data = jpeg(mode, progressive=True)
    assert decode(data)
    starts = scans_of(data)
    assert len(starts) > 5
    for start in starts[1:]:
        for cut in (data[:start] + EOI, data[:start]):
            error = refusal(cut)
            assert error.status == 422
            assert "scans are missing" in error.detail


def test_a_progressive_picture_without_one_of_its_scans_is_refused() -> None:
    data = jpeg(progressive=True)
    for start, following in pairwise([*scans_of(data)[1:], len(data) - 2]):
        tables = data.rfind(b"\xff\xc4", start, following)
        assert refusal(data[:start] + data[tables if tables > 0 else following :]).status == 422


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize("min_side_px", [None, 100])
def test_a_scan_that_ends_early_is_noticed(mode: str, min_side_px: int | None) -> None:
    data = jpeg(mode, progressive=True)
    for start in scans_of(data):
        begin = start + 2 + int.from_bytes(data[start + 2 : start + 4])
        found = re.compile(rb"\xff[^\0]").search(data, begin)
        assert found is not None
        end = found.start()
        if end - begin > 200:
            cut = data[: (begin + end) // 2].rstrip(b"\xff") + data[end:]
            error = refusal(cut, min_side_px=min_side_px)
            assert error.status == 422
            assert "fewer data" in error.detail


def test_the_second_time_needs_no_second_picture_in_memory() -> None:
    decoded = {}
    for progressive in (False, True):
        data = encoded(Image.new("RGB", (2000, 2000)), "JPEG", progressive=progressive)
        program = (
            "import resource, sys\n"
            "from inference_image.decoding import decode\n"
            "data = sys.stdin.buffer.read()\n"
            "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
            "decode(data)\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
        )
        run = subprocess.run(
            [sys.executable, "-c", program],
            input=data,
            capture_output=True,
            check=True,
            cwd=REPOSITORY,
        )
        decoded[progressive] = int(run.stdout) / 1024
    # The coefficients, at two bytes each, and half as many of the colours.
    assert decoded[True] < decoded[False] + 2000 * 2000 * 3 / 2**20 + 6, decoded


# --- Restart markers ----------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}])
def test_a_lost_or_repeated_interval_is_noticed(mode: str, options: dict[str, Any]) -> None:
    data = jpeg(mode, restart_marker_blocks=5, **options)
    assert decode(data)
    markers = [found.start() for found in re.finditer(rb"\xff[\xd0-\xd7]", data)]
    assert len(markers) > 30
    first, second = markers[10], markers[11]
    assert refusal(data[:first] + data[second:]).status == 422
    assert refusal(data[:second] + data[first:]).status == 422


def test_one_restart_marker_more_at_the_end_is_no_damage() -> None:
    data = jpeg(restart_marker_blocks=5)
    last = list(re.finditer(rb"\xff[\xd0-\xd7]", data))[-1][0][1]
    following = bytes([0xFF, 0xD0 + (last + 1) % 8])
    assert decode(data[:-2] + following + EOI)
    assert refusal(data[:-2] + following * 2 + EOI).status == 422


# --- What it costs ------------------------------------------------------------------------


def test_the_picture_is_let_go_of_without_a_collection() -> None:
    data = drawn_jpeg()
    gc.collect()
    gc.disable()
    try:
        image = open_jpeg(data, read_jpeg(data))
        image.load()
        gone = weakref.ref(image)
        del image
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "between",
    [
        b"\xff\xc4" + (65_000).to_bytes(2) + bytes(64_998),
        b"\xff\xdd\0\4\0\1" + b"\xff\xd0\0\0" * 5000,
        bytes(20_000),
    ],
    ids=["tables", "restarts", "zeros"],
)
def test_a_hostile_file_is_looked_through_in_little_time(between: bytes) -> None:
    frame = drawn_jpeg()
    start = frame.index(b"\xff\xda")
    scan = frame[start : start + 14] + bytes(600)
    begun = time.process_time()
    with suppress(PhotographError):
        read_jpeg(frame[:start] + (between + scan) * 99 + EOI)
    assert time.process_time() - begun < 0.5
