"""How far a WebP may expand: with loss as far as it likes, without loss no further than others."""

import io
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from inference_image.decoding import Limits, PhotographError, decode, measure
from inference_image.headers import read_header
from inference_image.sizing import _BYTES_PER_PIXEL
from inference_image.webp_headers import WebpHeader
from tests.service_harness import REPOSITORY, encoded

# More than the size from which on an expansion is looked at.
LARGE = (4096, 4096)


def webp(image: Image.Image, **options: Any) -> bytes:
    return encoded(image, "WEBP", method=0, **options)


def animated(*frames: Image.Image, **options: Any) -> bytes:
    buffer = io.BytesIO()
    frames[0].save(buffer, "WEBP", save_all=True, append_images=frames[1:], method=0, **options)
    return buffer.getvalue()


def blank(mode: str = "RGB", size: tuple[int, int] = LARGE) -> Image.Image:
    return Image.new(mode, size, (90, 40, 20, 200)[: len(mode)])


def is_lossy(data: bytes) -> bool:
    header = read_header(data, "image/webp")
    assert isinstance(header, WebpHeader)
    return header.lossy


def refusal(data: bytes, **options: Any) -> PhotographError:
    with pytest.raises(PhotographError) as raised:
        decode(data, **options)
    return raised.value


def test_a_large_lossy_photograph_is_no_bomb(shared_data: Path) -> None:
    """Black corners and a smooth retina: 257 times smaller than its pixels."""
    with Image.open(shared_data / "fundus" / "retina_normal_cc0.jpg") as opened:
        disc = opened.convert("RGB").resize((3386, 3386))
    frame = Image.new("RGB", (5184, 3456))
    frame.paste(disc, ((5184 - 3386) // 2, (3456 - 3386) // 2))
    noise = np.random.default_rng(0).normal(0, 1.5, (3456, 5184, 1))
    noisy = np.clip(np.asarray(frame) + noise, 0, 255).astype(np.uint8)
    data = encoded(Image.fromarray(noisy), "WEBP", quality=50, method=2)
    assert 250 * len(data) < 3 * 5184 * 3456
    assert measure(data) == (5184, 3456)
    assert decode(data).image.size == (5184, 3456)


@pytest.mark.parametrize(
    "data",
    [
        webp(blank(), quality=50),
        webp(blank(), quality=50, icc_profile=b"\0" * 5000),
        webp(blank("RGBA"), quality=50),
        animated(blank(), Image.new("RGB", LARGE, "white"), quality=50),
    ],
    ids=["plain", "with a profile", "with alpha", "animated"],
)
def test_a_lossy_picture_may_expand_and_is_bounded_by_its_pixels(data: bytes) -> None:
    assert is_lossy(data)
    assert decode(data).image.size == LARGE
    error = refusal(data, limits=Limits(max_pixels=LARGE[0] * LARGE[1] - 1))
    assert (error.status, "pixels" in error.detail) == (413, True)


@pytest.mark.parametrize(
    "data",
    [
        webp(blank(), lossless=True),
        webp(blank("RGBA"), lossless=True, icc_profile=b"\0" * 5000),
        animated(blank(), Image.new("RGB", LARGE, "white"), lossless=True),
    ],
    ids=["plain", "with a profile", "animated"],
)
def test_a_lossless_picture_that_expands_as_no_photograph_does_is_refused(data: bytes) -> None:
    assert not is_lossy(data)
    error = refusal(data)
    assert (error.status, "no photograph does" in error.detail) == (413, True)


def test_a_small_lossy_frame_on_a_large_canvas_is_a_bomb_all_the_same() -> None:
    small = animated(blank(size=(16, 16)), Image.new("RGB", (16, 16), "white"), quality=50)
    at = small.index(b"VP8X") + 12
    canvas = b"".join(struct.pack("<I", side - 1)[:3] for side in LARGE)
    data = small[:at] + canvas + small[at + 6 :]
    assert not is_lossy(data)
    assert refusal(data).status == 413


def test_a_header_of_countless_chunks_is_not_read_to_its_end() -> None:
    head = b"VP8X" + struct.pack("<II", 10, 0) + bytes(6)
    body = b"WEBP" + head + b"JUNK\0\0\0\0" * 200 + webp(blank(size=(1, 1)))[12:]
    assert not is_lossy(b"RIFF" + struct.pack("<I", len(body)) + body)


def test_a_picture_turned_upright_takes_no_more_memory_than_workers_are_sized_for() -> None:
    side = 3000
    exif = Image.Exif()
    exif[0x0112] = 6
    program = (
        "import resource, sys\n"
        "from inference_image.decoding import decode\n"
        "small, large = (open(path, 'rb').read() for path in sys.argv[1:])\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n"
        "decode(small)\n"
        "before = peak()\n"
        "decode(large)\n"
        "print(peak() - before)\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("small", "large")]
        paths[0].write_bytes(webp(blank("RGBA", (64, 64)), exif=exif))
        paths[1].write_bytes(webp(blank("RGBA", (side, side)), exif=exif))
        run = subprocess.run(
            [sys.executable, "-c", program, *map(str, paths)],
            capture_output=True,
            check=True,
            cwd=REPOSITORY,
        )
    assert int(run.stdout) < (_BYTES_PER_PIXEL + 0.5) * side * side
