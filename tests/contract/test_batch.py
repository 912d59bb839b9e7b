"""Batch Transform: one refusal fails the whole job, so what is wrong with an image is a record."""

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image

from inference_image.http_app import create_app
from inference_image.settings import Settings
from tests.contract.test_service import REFUSALS, SMALL_LIMITS
from tests.described_answers import Described
from tests.photograph_files import bigtiff_with_a_tag_at, dicom
from tests.service_harness import (
    TINY_MODEL,
    InProcess,
    Served,
    b64,
    drawn_jpeg,
    drawn_pixels,
    running,
)

ENVIRONMENT = {**SMALL_LIMITS, "SAGEMAKER_BATCH": "true"}


@pytest.fixture(scope="module", params=["application", "full"])
def service(request: pytest.FixtureRequest) -> Iterator[Any]:
    transport: Any
    if request.param == "full":
        transport = Served(TINY_MODEL, environment={**ENVIRONMENT, "DR_LAYOUT": "full"})
    else:
        settings = Settings.from_environment({**ENVIRONMENT, "DR_MODEL_DIR": str(TINY_MODEL)})
        transport = InProcess(create_app(settings))
    with running(transport) as ready:
        yield Described(ready)


def invoke(service: Any, body: bytes, content_type: str, **headers: str) -> Any:
    named = {"Content-Type": content_type, **{k.replace("_", "-"): v for k, v in headers.items()}}
    return service.request("POST", "/invocations", body, named)


def check_record(reply: Any, status: int, fragment: str = "") -> None:
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    # With AssembleWith=Line each answer is one line of the job's output.
    assert b"\n" not in reply.body
    record = reply.json()
    assert record["status"] == status
    assert record["title"]
    assert fragment in record["detail"]


def animated() -> bytes:
    frames = [Image.new("RGB", (40, 40), (shade, 0, 0)) for shade in (0, 90, 180)]
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    return buffer.getvalue()


MORE_REFUSALS = [
    ("JSON lines", lambda: b'{"image": ""}\n{"image": ""}\n', "application/jsonlines", 415, ""),
    ("two lines", lambda: b'{"image": "AA=="}\n{"image": "AA=="}', "application/json", 400, ""),
    ("CSV", lambda: b"1,2,3\n", "text/csv", 415, "accepted are"),
    ("animated GIF", animated, "image/gif", 415, "image/gif"),
    (
        "SVG",
        lambda: b'<svg xmlns="http://www.w3.org/2000/svg"/>',
        "image/svg+xml",
        415,
        "image/svg+xml",
    ),
    ("no UTF-8", lambda: b'{"image": "\xff\xfe"}', "application/json", 400, ""),
    ("DICOM cut", lambda: dicom(drawn_pixels(size_px=200))[:1500], "application/dicom", 422, ""),
    ("line feed only", lambda: b"\n", "application/x-image", 422, ""),
]


@pytest.mark.parametrize(
    ("body", "content_type", "status", "fragment"),
    [row[1:] for row in (*REFUSALS, *MORE_REFUSALS)],
    ids=[row[0] for row in (*REFUSALS, *MORE_REFUSALS)],
)
def test_what_is_wrong_with_a_request_is_a_record(
    service: Any, body: Any, content_type: str, status: int, fragment: str
) -> None:
    check_record(invoke(service, body(), content_type), status, fragment)
    row = invoke(service, body(), content_type, Accept="text/csv")
    assert (row.status, row.body) == (200, b",,,,,,,,\n")


def test_a_header_that_cannot_be_served_is_a_record(service: Any) -> None:
    for headers in (
        {"X_Amzn_SageMaker_Custom_Attributes": "explain=lime"},
        {"X_Amzn_SageMaker_Custom_Attributes": "operating_point=best"},
        {"Content_Encoding": "gzip"},
    ):
        reply = invoke(service, drawn_jpeg(), "image/jpeg", **headers)
        check_record(reply, 415 if "Content_Encoding" in headers else 400)
    asked = {"X_Amzn_SageMaker_Custom_Attributes": "explain=gradcam", "Accept": "text/csv"}
    row = invoke(service, drawn_jpeg(), "image/jpeg", **asked)
    assert (row.status, row.body) == (200, b",,,,,,,,\n")


def test_of_several_images_each_is_an_answer_or_a_record_in_its_place(service: Any) -> None:
    images = [b64(drawn_jpeg()), "@@", "", b64(drawn_jpeg()[:900]), b64(drawn_jpeg())]
    reply = invoke(service, json.dumps({"inputs": images}).encode(), "application/json")
    assert reply.status == 200
    statuses = [entry.get("status") for entry in reply.json()]
    assert statuses == [None, 400, 400, 422, None]
    images[1] = b64(bigtiff_with_a_tag_at(2**64 - 1))
    reply = invoke(service, json.dumps({"inputs": images}).encode(), "application/json")
    assert [e.get("status") for e in reply.json()] == [None, 422, 400, 422, None]
    bad = json.dumps({"inputs": ["@@", "@@"]}).encode()
    assert [e["status"] for e in invoke(service, bad, "application/json").json()] == [400, 400]


def test_the_platform_is_told_how_to_send(service: Any) -> None:
    reply = service.request("GET", "/execution-parameters")
    assert reply.status == 200
    parameters = reply.json()
    assert parameters["BatchStrategy"] == "SINGLE_RECORD"
    assert parameters["MaxConcurrentTransforms"] >= 1
    assert parameters["MaxPayloadInMB"] * 2**20 >= int(SMALL_LIMITS["DR_MAX_IMAGE_BYTES"])
    assert parameters["MaxConcurrentTransforms"] * parameters["MaxPayloadInMB"] <= 100


def test_a_good_image_is_graded_as_ever(service: Any) -> None:
    reply = invoke(service, drawn_jpeg(), "image/jpeg")
    assert reply.status == 200
    assert len(reply.json()["predictions"]) == 5
