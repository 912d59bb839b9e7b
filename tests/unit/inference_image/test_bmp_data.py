"""BMPs whose colours lie where masks say: read whatever the order, or refused by their kind."""

import struct

import numpy as np
import pytest

from inference_image.decoding import PhotographError, decode
from tests.photograph_files import Pixels
from tests.service_harness import drawn_pixels

# Of the first header that has room for masks, with alpha too; the masks follow the one of 40 bytes.
SHORT, WITH_ALPHA, LONG = 40, 56, 124
Masks = tuple[int, int, int, int]


def picture() -> Pixels:
    # An odd width, so that rows of 16 bits are filled up.
    return np.ascontiguousarray(drawn_pixels(size_px=200)[20:130, 30:161])


def masked(
    pixels: Pixels,
    masks: Masks,
    *,
    bits: int = 32,
    header_bytes: int = LONG,
    top_down: bool = False,
    alpha: int | Pixels = 255,
) -> bytes:
    """A BMP of RGB pixels that lie below masks."""
    height, width = pixels.shape[:2]
    packed = np.zeros((height, width), np.uint64)
    channels = [*np.moveaxis(pixels, -1, 0), np.broadcast_to(alpha, (height, width))]
    for channel, mask in zip(channels, masks, strict=True):
        if mask:
            lowest = mask & -mask
            highest = mask // lowest
            packed |= (channel.astype(np.uint64) * highest + 127) // 255 * np.uint64(lowest)
    rows = packed.astype("<u2" if bits == 16 else "<u4")
    rows = np.pad(rows, ((0, 0), (0, width % 2 if bits == 16 else 0)))
    data = (rows if top_down else rows[::-1]).tobytes()
    head = struct.pack("<IiiHHI", header_bytes, width, -height if top_down else height, 1, bits, 3)
    head = head.ljust(40, b"\0") + struct.pack("<4I", *masks)
    head = head[: max(header_bytes, 52)].ljust(header_bytes, b"\0")
    start = 14 + len(head)
    return b"BM" + struct.pack("<IHHI", start + len(data), 0, 0, start) + head + data


def pixels_of(data: bytes) -> np.ndarray:
    return np.asarray(decode(data).image).astype(int)


@pytest.mark.parametrize("top_down", [False, True])
@pytest.mark.parametrize("header_bytes", [SHORT, 52, WITH_ALPHA, 108, LONG])
@pytest.mark.parametrize(
    ("masks", "bits"),
    [
        ((0xFF, 0xFF00, 0xFF0000, 0), 32),
        ((0xFF00, 0xFF0000, 0xFF000000, 0), 32),
        ((0x3FF00000, 0xFFC00, 0x3FF, 0), 32),
        ((0xFFFFF000, 0xFF0, 0xF, 0), 32),
        ((0xFF0000, 0xFF00, 0xFF, 0), 32),
        ((0xF00, 0xF0, 0xF, 0), 16),
        ((0xF, 0xF0, 0xF00, 0), 16),
        ((0x1F, 0x7E0, 0xF800, 0), 16),
        ((0xF800, 0x7E0, 0x1F, 0), 16),
    ],
    ids=lambda value: "-".join(f"{mask:X}" for mask in value) if isinstance(value, tuple) else "",
)
def test_colours_are_read_from_where_their_masks_say(
    masks: Masks, bits: int, header_bytes: int, top_down: bool
) -> None:
    photograph = picture()
    data = masked(photograph, masks, bits=bits, header_bytes=header_bytes, top_down=top_down)
    apart = np.abs(pixels_of(data) - photograph)
    for channel, mask in enumerate(masks[:3]):
        # Half a step of what so many bits can say, and one for its rounding.
        steps = 2 ** mask.bit_count() - 1
        assert apart[..., channel].max() <= 255 / steps / 2 + 1


@pytest.mark.parametrize(
    ("masks", "bits"),
    [
        ((0xFF, 0xFF00, 0xFF0000, 0xFF000000), 32),
        ((0xFF000000, 0xFF00, 0xFF0000, 0xFF), 32),
        ((0xF00, 0xF0, 0xF, 0xF000), 16),
        ((0x7C00, 0x3E0, 0x1F, 0x8000), 16),
    ],
)
def test_a_mask_of_alpha_is_applied_unless_it_is_empty_everywhere(masks: Masks, bits: int) -> None:
    photograph = picture()
    opaque = np.full(photograph.shape[:2], 255, np.uint8)
    opaque[:, :50] = 0
    got = pixels_of(masked(photograph, masks, bits=bits, alpha=opaque))
    assert got[:, :50].max() == 0
    assert np.abs(got[:, 50:] - photograph[:, 50:]).max() <= 9
    empty = pixels_of(masked(photograph, masks, bits=bits, alpha=0))
    assert np.abs(empty - photograph).max() <= 9


def test_the_usual_mask_of_alpha_needs_no_room_in_sixteen_bits() -> None:
    photograph = picture()
    data = masked(photograph, (0xF800, 0x7E0, 0x1F, 0xFF000000), bits=16, alpha=0)
    assert np.abs(pixels_of(data) - photograph).max() <= 5


@pytest.mark.parametrize(
    ("masks", "bits", "named"),
    [
        ((0xFF, 0xFF, 0xFF, 0), 32, "colour masks FF, FF, FF, 0"),
        ((0xF0F, 0xF0, 0xF000, 0), 16, "colour masks F0F, F0, F000, 0"),
        ((0xFF, 0, 0xFF00, 0), 32, "colour masks FF, 0, FF00, 0"),
        ((0xFF0000, 0xFF00, 0xFF, 0), 16, "16 bits per pixel and the colour masks"),
        ((0xFF, 0xFF00, 0xFF0000, 0), 24, "24 bits per pixel and the colour masks"),
        ((0xE0, 0x1C, 0x3, 0), 8, "8 bits per pixel and the colour masks"),
    ],
)
def test_masks_that_are_not_read_are_named_and_not_called_damaged(
    masks: Masks, bits: int, named: str
) -> None:
    data = masked(picture(), masks)
    with pytest.raises(PhotographError) as raised:
        decode(data[:28] + struct.pack("<H", bits) + data[30:])
    assert raised.value.status == 415
    assert named in raised.value.detail
    assert "accepted" in raised.value.detail


@pytest.mark.parametrize("bits", [16, 32])
def test_a_file_that_ends_before_its_pixels_is_refused(bits: int) -> None:
    data = masked(picture(), (0xF, 0xF0, 0xF00, 0), bits=bits)
    for left in (len(data) - 1, len(data) // 2, 60):
        with pytest.raises(PhotographError) as raised:
            decode(data[:left])
        assert raised.value.status == 422
