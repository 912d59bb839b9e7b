"""A photograph made smaller before it is sent, and what that does to the decision."""

import io

import pytest
from PIL import Image

from dr_experiments.payloads import shrink
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
