"""Every format, several images, forms and Batch Transform, over both transports."""

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from inference_image.contract import ACCEPTED_CONTENT_TYPES, CUSTOM_ATTRIBUTES_HEADER
from inference_image.http_app import create_app
from inference_image.log import JsonLog
from inference_image.settings import Settings
from tests.described_answers import Described
from tests.photograph_files import (
    ENCODINGS,
    PATIENT,
    PATIENT_ID,
    Encoding,
    bigtiff_with_a_tag_at,
    dicom,
    png,
)
from tests.service_harness import (
    TINY_MODEL,
    InProcess,
    Served,
    b64,
    drawn_jpeg,
    drawn_pixels,
    encoded,
    running,
    wait_until,
)

MEDIA_JSON = "application/json"
LIMITS = {
    "DR_MAX_IMAGES": "5",
    "DR_MAX_REQUEST_PIXELS": "2000000",
    "DR_MAX_IMAGE_PIXELS": "4000000",
}


class Lines:
    """Collects what the application in this process logs."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


@pytest.fixture(scope="module", params=["application", "process"])
def service(request: pytest.FixtureRequest) -> Iterator[Any]:
    transport: Any
    if request.param == "application":
        lines = Lines()
        settings = Settings.from_environment({"DR_MODEL_DIR": str(TINY_MODEL), **LIMITS})
        log = JsonLog(level="debug", stream=lines)  # type: ignore[arg-type]
        transport = InProcess(create_app(settings, log=log))
        transport.logged = lambda: lines.text
    else:
        served = Served(TINY_MODEL, environment={**LIMITS, "DR_LOG_LEVEL": "debug"})
        served.logged = lambda: json.dumps(served.events) + served.errors  # type: ignore[attr-defined]
        transport = served
    with running(transport) as ready:
        yield Described(ready)


def post(service: Any, body: bytes, content_type: str, **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return service.request("POST", "/invocations", body, {"Content-Type": content_type, **named})


def form(*parts: tuple[bytes, str], boundary: str = "----x7MA4YWxk") -> tuple[bytes, str]:
    """A form with one file for each (bytes, content type); the type may be empty."""
    body = b""
    for index, (data, kind) in enumerate(parts):
        body += f"--{boundary}\r\n".encode()
        body += (
            f'Content-Disposition: form-data; name="file{index}"; filename="Marta {index}.jpg"\r\n'
        ).encode()
        body += f"Content-Type: {kind}\r\n".encode() if kind else b""
        body += b"\r\n" + data + b"\r\n"
    return body + f"--{boundary}--\r\n".encode(), f'multipart/form-data; boundary="{boundary}"'


def eye(seed: int, grade: int = 2) -> bytes:
    return drawn_jpeg(seed, grade, 400)


@pytest.fixture(scope="module")
def alone(service: Any) -> Any:
    """What each picture is answered when it is sent alone."""
    return lambda data: post(service, data, "application/x-image").json()["predictions"]


@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda encoding: encoding.name)
def test_each_encoding_is_graded_alike(service: Any, encoding: Encoding) -> None:
    photograph = drawn_pixels(size_px=400)
    reply = post(service, encoding.write(photograph), encoding.media_type)
    assert reply.status == 200
    answer = reply.json()
    reference = post(service, png(photograph), "image/png").json()
    assert answer["quality"] == {"gradable": True, "reasons": []}
    assert answer["predictions"] == pytest.approx(reference["predictions"], abs=0.02)
    assert ("acquisition" in answer) == (encoding.media_type == "application/dicom")


@pytest.mark.parametrize("encoding", ENCODINGS[::4], ids=lambda encoding: encoding.name)
def test_a_contradicting_type_is_415_for_every_format(service: Any, encoding: Encoding) -> None:
    wrong = "image/png" if encoding.media_type != "image/png" else "image/tiff"
    reply = post(service, encoding.write(drawn_pixels(size_px=200)), wrong)
    assert reply.status == 415
    assert f"the bytes are {encoding.media_type}" in reply.json()["detail"]


def test_a_dicom_is_answered_with_pixel_size_and_laterality(service: Any) -> None:
    answer = post(service, dicom(drawn_pixels(size_px=400)), "application/dicom").json()
    assert answer["acquisition"] == {"pixel_spacing_mm": [0.0052, 0.0053], "laterality": "R"}


def test_nothing_about_the_patient_reaches_an_answer_or_the_log(service: Any) -> None:
    whole = dicom(drawn_pixels(size_px=400))
    personal = re.compile("Marta|Example|MRN|Wxyz|19610304")
    assert all(personal.search(text) for text in (PATIENT, PATIENT_ID))
    bodies = [whole, whole[: len(whole) // 2], whole.replace(b"RGB ", b"XYZ ")]
    bodies += [dicom(drawn_pixels(size_px=400), storage="1.2.840.10008.5.1.4.1.1.2")]
    several, content_type = form(*((data, "application/dicom") for data in bodies))
    replies = [post(service, data, "application/dicom") for data in bodies]
    replies += [post(service, several, content_type), post(service, several[:900], content_type)]
    assert [reply.status for reply in replies] == [200, 422, 415, 415, 200, 400]
    for reply in replies:
        assert not personal.search(reply.body.decode())
        assert not personal.search(json.dumps(dict(reply.headers)))
    wait_until(lambda: service.logged().count('"status": 415') >= 2)
    assert not personal.search(service.logged())


@pytest.mark.parametrize(
    "document",
    [
        lambda texts: {"image": texts},
        lambda texts: {"instances": [{"b64": text} for text in texts]},
        lambda texts: {"instances": texts},
        lambda texts: {"inputs": texts},
        lambda texts: {"inputs": [{"image": text} for text in texts]},
    ],
)
def test_several_images_in_json_are_answered_in_order(
    service: Any, alone: Any, document: Any
) -> None:
    pictures = [eye(5), eye(6, 4), eye(7, 0)]
    reply = post(service, json.dumps(document(list(map(b64, pictures)))).encode(), MEDIA_JSON)
    assert reply.status == 200
    answers = reply.json()
    assert [answer["predictions"] for answer in answers] == list(map(alone, pictures))
    before = [answer["container"]["requests_before"] for answer in answers]
    assert before == [before[0], before[0] + 1, before[0] + 2]


def test_several_files_of_a_form_are_answered_in_order(service: Any, alone: Any) -> None:
    tif = encoded(Image.fromarray(drawn_pixels(9, 3, 400)), "TIFF")
    body, content_type = form((eye(5), "image/jpeg"), (tif, ""), (eye(6, 4), "image/jpg"))
    reply = post(service, body, content_type)
    assert reply.status == 200
    assert [answer["predictions"] for answer in reply.json()] == list(
        map(alone, (eye(5), tif, eye(6, 4)))
    )


def test_a_form_of_one_file_is_answered_with_an_object(service: Any, alone: Any) -> None:
    for preamble in (b"", b"preamble to ignore\r\n"):
        body, content_type = form((eye(5), "image/jpeg"))
        assert post(service, preamble + body, content_type).json()["predictions"] == alone(eye(5))
    coded, content_type = form((b64(eye(5)).encode(), "image/jpeg"))
    coded = coded.replace(b"\r\n\r\n", b"\r\nContent-Transfer-Encoding: base64\r\n\r\n", 1)
    assert post(service, coded, content_type).json()["predictions"] == alone(eye(5))


def test_each_of_several_is_a_result_or_a_problem_of_its_own(service: Any, alone: Any) -> None:
    gif, cut = b"GIF89a" + bytes(40), eye(5)[:900]
    black = encoded(Image.new("RGB", (300, 300)), "PNG")
    texts = [b64(eye(5)), b64(gif), "@@", b64(cut), b64(black)]
    answers = post(service, json.dumps({"inputs": texts}).encode(), MEDIA_JSON).json()
    assert [answer.get("status") for answer in answers] == [None, 415, 400, 422, None]
    assert answers[0]["predictions"] == alone(eye(5))
    assert answers[4]["quality"]["gradable"] is False
    for problem in answers[1:4]:
        assert set(problem) == {"type", "title", "status", "detail"}
    parts = ((eye(5), "image/png"), (eye(5), "image/jpeg"), (b"{}", MEDIA_JSON), (b"", ""))
    body, content_type = form(*parts)
    answers = post(service, body, content_type).json()
    assert [answer.get("status") for answer in answers] == [415, None, 415, 400]


def test_an_image_whose_numbers_lead_nowhere_is_a_problem_in_its_place(
    service: Any, alone: Any
) -> None:
    nowhere = bigtiff_with_a_tag_at(2**63)
    pictures = [eye(5), nowhere, eye(6, 4)]
    body = json.dumps({"inputs": list(map(b64, pictures))}).encode()
    parts = form(*((picture, "") for picture in pictures))
    for reply in (post(service, body, MEDIA_JSON), post(service, *parts)):
        assert reply.status == 200
        first, problem, last = reply.json()
        assert (problem["status"], "damaged" in problem["detail"]) == (422, True)
        assert first["predictions"] == alone(eye(5))
        assert last["predictions"] == alone(eye(6, 4))


def test_the_csv_of_several_has_one_row_each(service: Any) -> None:
    black = encoded(Image.new("RGB", (300, 300)), "PNG")
    texts = list(map(b64, [eye(5), b"nothing", black]))
    body = json.dumps({"inputs": texts}).encode()
    reply = post(service, body, MEDIA_JSON, Accept="text/csv")
    assert reply.headers["content-type"].startswith("text/csv")
    rows = reply.body.decode().splitlines()
    answer = post(service, body, MEDIA_JSON).json()[0]
    assert [float(cell) for cell in rows[0].split(",")[:5]] == answer["predictions"]
    assert rows[0].endswith(",true")
    assert rows[1:] == [",,,,,,,,", ",,,,,,,,false"]


def test_options_hold_for_every_image_and_an_unknown_one_refuses_all(service: Any) -> None:
    body = json.dumps({"inputs": [b64(eye(5)), b64(eye(6))]}).encode()
    header = {CUSTOM_ATTRIBUTES_HEADER: "explain=gradcam,operating_point=high_specificity"}
    answers = post(service, body, MEDIA_JSON, **header).json()
    assert all("explanation" in answer for answer in answers)
    assert {answer["referable"]["operating_point"] for answer in answers} == {"high_specificity"}
    refused = post(service, body, MEDIA_JSON, **{CUSTOM_ATTRIBUTES_HEADER: "operating_point=best"})
    assert refused.status == 400


@pytest.mark.parametrize("as_form", [False, True])
def test_more_images_than_allowed_are_413(service: Any, as_form: bool) -> None:
    body, content_type = json.dumps({"inputs": ["a"] * 6}).encode(), MEDIA_JSON
    if as_form:
        body, content_type = form(*[(b"a", "")] * 6)
    reply = post(service, body, content_type)
    assert reply.status == 413
    assert "at most 5" in reply.json()["detail"]


def test_the_pixels_of_all_images_are_bounded(service: Any) -> None:
    large = png(np.zeros((1000, 1500, 3), np.uint8))
    texts = list(map(b64, [large, large, eye(5)]))
    answers = post(service, json.dumps({"inputs": texts}).encode(), MEDIA_JSON).json()
    assert [answer.get("status") for answer in answers] == [None, 413, None]
    assert "500000 are left of the 2000000" in answers[1]["detail"]
    assert post(service, large, "image/png").status == 200


@pytest.mark.parametrize(
    ("body", "fragment"),
    [
        (b"--x\r\n\r\nno headers", "does not end"),
        (b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\nhigh\r\n--x--', "no image"),
        (b'--x\r\nContent-Disposition: form-data; name="explain"\r\n\r\n1\r\n--x--', "'explain'"),
        (b"--x\r\nContent-Type: image/png\r\n--x--", "end of its headers"),
        (b"", "does not end"),
        (b"--y--", "does not end"),
    ],
)
def test_a_malformed_form_is_400(service: Any, body: bytes, fragment: str) -> None:
    reply = post(service, body, "multipart/form-data; boundary=x")
    assert reply.status == 400
    assert fragment in reply.json()["detail"]


def test_the_log_of_several_counts_outcomes(service: Any) -> None:
    texts = [b64(eye(5)), b64(b"GIF89a" + bytes(30))]
    reply = post(service, json.dumps({"inputs": texts}).encode(), MEDIA_JSON)
    assert reply.status == 200
    # Lines are written behind the answers.
    wait_until(lambda: '"outcomes": ["graded", "refused 415"]' in service.logged())


def test_every_accepted_content_type_is_used_here() -> None:
    used = {encoding.media_type for encoding in ENCODINGS} | {MEDIA_JSON, "multipart/form-data"}
    assert used | {"application/x-image", "application/octet-stream"} == set(ACCEPTED_CONTENT_TYPES)
