"""Colour profiles: what one does decides, not what it is called."""

import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms

from inference_image import colour
from inference_image.colour import MOST_PROFILE_BYTES, to_srgb
from inference_image.decoding import decode
from tests.photograph_files import in_wide_gamut, wide_gamut_profile
from tests.service_harness import drawn_pixels, encoded

NAMES = (b"sRGB", "sRGB".encode("utf-16-be"))


def srgb_profile() -> bytes:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def renamed(profile: bytes, name: bytes) -> bytes:
    """A profile whose description is another, of the same length."""
    before = b"Wide gamut for tests"
    assert profile.count(before) == 1
    return profile.replace(before, name.ljust(len(before)))


def photograph() -> Image.Image:
    return Image.fromarray(drawn_pixels(size_px=200))


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_that_only_mentions_srgb_is_applied(name: bytes) -> None:
    profile = renamed(wide_gamut_profile(), name)
    assert name in profile
    stored = in_wide_gamut(np.asarray(photograph()))
    apart = np.asarray(to_srgb(stored, profile)).astype(int) - np.asarray(photograph())
    assert np.abs(apart).max() <= 2
    shown = decode(encoded(stored, "PNG", icc_profile=profile)).image
    assert np.array_equal(np.asarray(shown), np.asarray(to_srgb(stored, profile)))


def test_a_profile_of_srgb_changes_nothing_whatever_it_is_called() -> None:
    profile = srgb_profile()
    for name in NAMES:
        profile = profile.replace(name, bytes(len(name)))
    assert not any(name in profile for name in NAMES)
    picture = photograph()
    for same in (srgb_profile(), profile):
        assert to_srgb(picture, same) is picture


@pytest.mark.parametrize(
    "profile",
    [
        None,
        b"",
        b"sRGB",
        wide_gamut_profile()[:200],
        wide_gamut_profile()[:128] + bytes(300),
        wide_gamut_profile().replace(b"RGB XYZ ", b"GRAYXYZ "),
        wide_gamut_profile().ljust(MOST_PROFILE_BYTES + 1, b"\0"),
    ],
)
def test_a_profile_that_cannot_be_used_is_ignored(profile: bytes | None) -> None:
    picture = photograph()
    assert to_srgb(picture, profile) is picture


def test_a_profile_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    build = ImageCms.buildTransform

    def counted(*arguments: Any, **options: Any) -> Any:
        built.append(1)
        return build(*arguments, **options)

    monkeypatch.setattr(ImageCms, "buildTransform", counted)
    colour._transform.cache_clear()
    for _ in range(3):
        for profile in (srgb_profile(), wide_gamut_profile(), wide_gamut_profile()[:200]):
            to_srgb(photograph(), profile)
    assert len(built) <= 2
    for number in range(50):
        to_srgb(photograph(), renamed(wide_gamut_profile(), str(number).encode()))
    assert colour._transform.cache_info().currsize <= 4


def test_every_version_of_a_gamma_counts_by_what_it_does() -> None:
    """A gamma of 2.2 is not the curve of sRGB: dark greys differ by several levels."""
    dark = Image.new("RGB", (4, 4), (10, 10, 10))
    shown = np.asarray(to_srgb(dark, wide_gamut_profile()))
    assert shown.max() < 10
    assert np.ptp(shown) == 0


# --- The gamma of a PNG -------------------------------------------------------------------


def linear(levels: np.ndarray) -> np.ndarray:
    """Light, from 0 to 1, of levels of sRGB."""
    share = levels / 255
    return np.where(share > 0.04045, ((share + 0.055) / 1.055) ** 2.4, share / 12.92)


def with_gamma(picture: Image.Image, gamma: int, **options: Any) -> bytes:
    data = encoded(picture, "PNG", **options)
    body = b"gAMA" + gamma.to_bytes(4)
    return data[:33] + b"\0\0\0\4" + body + zlib.crc32(body).to_bytes(4) + data[33:]


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA"])
@pytest.mark.parametrize("gamma", [55_556, 100_000])
def test_the_gamma_of_a_png_is_applied(mode: str, gamma: int) -> None:
    levels = np.asarray(photograph().convert("L"))
    stored = (linear(levels) ** (gamma / 100_000) * 255).round().astype(np.uint8)
    picture = Image.fromarray(stored)
    picture = picture.quantize(256) if mode == "P" else picture.convert(mode)
    shown = np.asarray(decode(with_gamma(picture, gamma)).image)
    apart = np.abs(shown.astype(int) - levels[..., np.newaxis])
    # The stored levels are coarse where it is dark.
    assert apart[levels > 90].max() <= 2
    assert np.abs(stored.astype(int) - levels).max() > 15


@pytest.mark.parametrize("gamma", [45_455, 45_000, 0, 1, 4_000_000_000])
def test_a_gamma_of_srgb_or_of_nothing_changes_nothing(gamma: int) -> None:
    shown = decode(with_gamma(photograph(), gamma)).image
    assert np.array_equal(np.asarray(shown), np.asarray(photograph()))


def test_a_profile_or_a_mark_of_srgb_counts_before_the_gamma() -> None:
    managed = encoded(photograph(), "PNG", icc_profile=wide_gamut_profile())
    both = with_gamma(photograph(), 100_000, icc_profile=wide_gamut_profile())
    assert np.array_equal(np.asarray(decode(both).image), np.asarray(decode(managed).image))
    body = b"sRGB\0"
    chunk = b"\0\0\0\1" + body + zlib.crc32(body).to_bytes(4)
    data = with_gamma(photograph(), 100_000)
    marked = data[:33] + chunk + data[33:]
    assert np.array_equal(np.asarray(decode(marked).image), np.asarray(photograph()))
