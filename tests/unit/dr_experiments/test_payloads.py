"""A photograph made smaller before it is sent, and what that does to the decision."""

import io

import pytest
from PIL import Image

from dr_experiments.payloads import crop, prepare, shrink
from dr_experiments.targets import Payload
from tests.lambda_harness import InLambda
from tests.service_harness import REPOSITORY, drawn_jpeg

DEMO = REPOSITORY / "model_artifacts" / "mobilenet-demo"


def test_the_decision_survives_and_the_payload_shrinks() -> None:
    """Two drawn photographs of each end of the scale, under the demo model."""
    with InLambda(model_dir=DEMO) as service:
        for seed in range(2):
            for grade in (0, 4):
                large = Payload(
                    body=drawn_jpeg(seed, grade, size_px=1600), content_type="image/jpeg"
                )
                small = shrink(large, max_side_px=800)
                assert len(small.body) < 0.6 * len(large.body)
                before, after = (
                    service.request(
                        "POST", "/invocations", p.body, {"Content-Type": p.content_type}
                    ).json()
                    for p in (large, small)
                )
                assert after["quality"]["gradable"] == before["quality"]["gradable"]
                assert after["referable"]["positive"] == before["referable"]["positive"]
                moved = abs(after["referable"]["probability"] - before["referable"]["probability"])
                assert moved < 0.25


def test_orientation_is_applied_and_metadata_stays_behind() -> None:
    image = Image.new("RGB", (1200, 600), "red")
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "Jane Doe"
    out = io.BytesIO()
    image.save(out, "JPEG", exif=exif, comment=b"Jane Doe")
    small = shrink(Payload(body=out.getvalue(), content_type="image/jpeg"), max_side_px=400)
    with Image.open(io.BytesIO(small.body)) as seen:
        assert seen.size == (200, 400)
        assert not seen.getexif()
    assert b"Jane Doe" in out.getvalue()
    assert b"Jane Doe" not in small.body


def test_a_small_photograph_is_sent_as_it_is() -> None:
    payload = Payload(body=drawn_jpeg(size_px=600), content_type="image/jpeg")
    assert shrink(payload, max_side_px=600) is payload


def test_what_cannot_be_made_smaller_says_so() -> None:
    with pytest.raises(ValueError, match="cannot be made smaller"):
        shrink(Payload(body=b"no picture", content_type="image/jpeg"), max_side_px=600)
    with pytest.raises(ValueError, match="at least 300"):
        shrink(Payload(body=b"", content_type="image/jpeg"), max_side_px=10)


def bordered(width: int, height: int, *, left: int, top: int, side: int) -> Payload:
    """A bright square on black, with letters of a camera in a corner."""
    image = Image.new("RGB", (width, height), (3, 2, 2))
    image.paste((150, 70, 30), (left, top, left + side, top + side))
    image.paste((255, 255, 255), (5, 5, 25, 9))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=95, comment=b"Jane Doe")
    return Payload(body=out.getvalue(), content_type="image/jpeg", custom_attributes="a=b")


def test_the_black_border_is_cut_off_and_a_margin_stays() -> None:
    payload = bordered(2000, 1200, left=600, top=200, side=800)
    small = crop(payload)
    with Image.open(io.BytesIO(small.body)) as seen:
        # 800 pixels and 4 % of them on each side, to within the grid of the search.
        assert seen.width == pytest.approx(864, abs=8)
        assert seen.height == pytest.approx(864, abs=8)
        assert seen.getpixel((seen.width // 2, seen.height // 2))[0] > 140  # type: ignore[index]
    assert small.custom_attributes == "a=b"
    assert b"Jane Doe" not in small.body
    assert len(small.body) < len(payload.body)


def test_what_has_no_border_or_nothing_but_border_is_sent_as_it_is() -> None:
    full = bordered(800, 800, left=0, top=0, side=800)
    assert crop(full) is full
    black = bordered(800, 800, left=0, top=0, side=0)
    assert crop(black) is black
    assert prepare(full, cropped=False, max_side_px=None) is full
    with pytest.raises(ValueError, match="cannot be made smaller"):
        crop(Payload(body=b"no picture", content_type="image/jpeg"))


def test_cropped_and_shrunk_is_both() -> None:
    small = prepare(
        bordered(2000, 1200, left=600, top=200, side=800), cropped=True, max_side_px=400
    )
    with Image.open(io.BytesIO(small.body)) as seen:
        assert max(seen.size) == 400
        assert min(seen.size) >= 395


def test_cropping_that_saves_no_bytes_is_not_done() -> None:
    """A border costs a JPEG little: encoded anew at a higher quality the rest would be larger."""
    picture = Image.effect_noise((700, 700), 60).convert("RGB")
    image = Image.new("RGB", (1000, 1000))
    image.paste(picture, (150, 150))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=60)
    payload = Payload(body=out.getvalue(), content_type="image/jpeg")
    assert crop(payload) is payload
    assert len(crop(payload, quality=40).body) < len(payload.body)
