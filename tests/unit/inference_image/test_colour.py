"""Colour profiles: what one does decides, not what it is called."""

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
