"""The container contract, over the application, real `serve` processes of both layouts, Lambda."""

import base64
import gzip
import io
import json
import math
import os
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks.faults.inputs import as_expected
from inference_image.contract import (
    ACCEPTED_IMAGE_TYPES,
    CUSTOM_ATTRIBUTES_HEADER,
    GRADE_LABELS,
    QUALITY_REASONS,
)
from inference_image.http_app import create_app
from inference_image.settings import Settings
from tests.described_answers import Described
from tests.lambda_harness import InLambda
from tests.photograph_files import bigtiff_with_a_tag_at
from tests.service_harness import (
    REPOSITORY,
    TINY_MODEL,
    InProcess,
    Served,
    b64,
    digest_of,
    drawn_jpeg,
    drawn_pixels,
    encoded,
    running,
)

SMALL_LIMITS = {"DR_MAX_IMAGE_BYTES": "2000000", "DR_MAX_IMAGE_PIXELS": "16000000"}


# The interpreter with TensorFlow: `make test-slow` sets it and runs the suite over that runtime.
TENSORFLOW = os.environ.get("DR_TEST_TENSORFLOW")
TRANSPORTS = ["application", "process", "full", "lambda", *(["tensorflow"] if TENSORFLOW else [])]


@pytest.fixture(scope="module", params=TRANSPORTS)
def service(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Any]:
    environment = {"DR_MODEL_DIR": str(TINY_MODEL), **SMALL_LIMITS}
    transport: Any
    if request.param == "application":
        transport = InProcess(create_app(Settings.from_environment(environment)))
    elif request.param == "lambda":
        transport = InLambda(environment=SMALL_LIMITS)
    elif request.param == "tensorflow":
        # As in its image: the runtime is set, and the layout follows.
        twin = tmp_path_factory.mktemp("twin")
        script = REPOSITORY / "tests" / "data" / "make_tiny_model.py"
        command = [str(TENSORFLOW), str(script), "--saved-model", str(twin)]
        subprocess.run(command, check=True, capture_output=True)
        environment = {**SMALL_LIMITS, "DR_RUNTIME": "tensorflow"}
        transport = Served(twin, environment=environment, python=str(TENSORFLOW))
    else:
        layout = {"DR_LAYOUT": "full" if request.param == "full" else "lean"}
        transport = Served(TINY_MODEL, environment={**SMALL_LIMITS, **layout})
    with running(transport) as ready:
        yield Described(ready)


def grade(
    service: Any, body: bytes, content_type: str | None = "image/jpeg", **headers: str
) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if content_type is not None:
        named["Content-Type"] = content_type
    return service.request("POST", "/invocations", body, named)


def png(width: int = 60_000, height: int = 60_000) -> bytes:
    """A PNG that claims a size and has no pixels."""
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\0\0\0"
    chunk = b"IHDR" + header
    return (
        b"\x89PNG\r\n\x1a\n"
        + len(header).to_bytes(4, "big")
        + chunk
        + zlib.crc32(chunk).to_bytes(4, "big")
    )


def test_ping_is_200_once_ready_and_needs_no_body(service: Any) -> None:
    reply = service.request("GET", "/ping")
    assert reply.status == 200
    assert reply.json() == {"status": "ready"}


def test_head_is_answered_like_get_without_its_body(service: Any) -> None:
    for path, status in (("/ping", 200), ("/execution-parameters", 200), ("/nowhere", 404)):
        reply = service.request("HEAD", path)
        assert (reply.status, reply.body) == (status, b"")


def test_a_photograph_is_graded_in_the_documented_shape(service: Any) -> None:
    reply = grade(service, drawn_jpeg())
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    answer = reply.json()
    assert len(answer["predictions"]) == 5
    assert math.fsum(answer["predictions"]) == pytest.approx(1.0, abs=1e-12)
    assert answer["grade"] == int(np.argmax(answer["predictions"]))
    assert answer["label"] == GRADE_LABELS[answer["grade"]]
    referable = answer["referable"]
    assert referable["probability"] == pytest.approx(sum(answer["predictions"][2:]))
    assert referable["operating_point"] == "high_sensitivity"
    assert referable["threshold"] == 0.1
    assert referable["positive"] == (referable["probability"] >= 0.1)
    assert answer["consistent"] == ((answer["grade"] >= 2) == referable["positive"])
    assert answer["quality"] == {"gradable": True, "reasons": []}
    assert answer["model"]["id"] == "tiny-test"
    assert answer["model"]["sha256"] == digest_of(getattr(service, "model_dir", TINY_MODEL))
    assert answer["model"]["notice"].startswith("Random weights")
    assert 0 < answer["predictionLatency"] <= answer["requestLatency"] < 30


def test_the_container_is_one_and_counts_its_requests(service: Any) -> None:
    first, second = (grade(service, drawn_jpeg()).json()["container"] for _ in range(2))
    assert first["start_id"] == second["start_id"]
    assert second["requests_before"] == first["requests_before"] + 1
    assert first["started_to_ready_ms"] > 0


@pytest.mark.parametrize(
    "content_type",
    [
        "image/jpeg",
        "IMAGE/JPEG",
        "image/jpeg; charset=binary",
        "image/jpg",
        "application/x-image",
        "application/octet-stream",
        None,
    ],
)
def test_each_name_of_a_jpeg_is_accepted(service: Any, content_type: str | None) -> None:
    assert grade(service, drawn_jpeg(), content_type).status == 200


@pytest.mark.parametrize(
    "document",
    [
        lambda text: {"image": text},
        lambda text: {"instances": [{"b64": text}]},
        lambda text: {"inputs": text},
        lambda text: {"inputs": [text]},
        lambda text: {"image": f"data:image/jpeg;base64,{text}"},
    ],
)
def test_each_json_shape_gives_the_answer_of_the_raw_bytes(service: Any, document: Any) -> None:
    body = json.dumps(document(b64(drawn_jpeg()))).encode()
    reply = grade(service, body, "application/json; charset=utf-8")
    assert reply.status == 200
    assert reply.json()["predictions"] == grade(service, drawn_jpeg()).json()["predictions"]


@pytest.mark.parametrize("wrap", [lambda text: json.dumps({"image": text}), lambda text: text])
def test_base64_under_an_opaque_type_is_understood(service: Any, wrap: Any) -> None:
    reply = grade(service, wrap(b64(drawn_jpeg())).encode(), "application/x-image")
    assert reply.status == 200


def test_csv_has_one_row_of_nine_columns(service: Any) -> None:
    row = grade(service, drawn_jpeg(), Accept="text/csv")
    assert row.headers["content-type"].startswith("text/csv")
    cells = row.body.decode().strip().split(",")
    answer = grade(service, drawn_jpeg()).json()
    assert [float(cell) for cell in cells[:5]] == answer["predictions"]
    assert cells[5:] == [
        str(answer["grade"]),
        json.dumps(answer["referable"]["probability"]),
        json.dumps(answer["referable"]["positive"]),
        "true",
    ]
    black = encoded(Image.new("RGB", (300, 300)), "PNG")
    ungradable = grade(service, black, "image/png", Accept="text/csv").body.decode().strip()
    assert ungradable == ",,,,,,,,false"


@pytest.mark.parametrize(
    "accept",
    ["application/json, text/csv;q=0.5", "text/csv;q=0, application/json", "text/csv; q=0.00"],
)
def test_json_wins_where_accept_prefers_it(service: Any, accept: str) -> None:
    reply = grade(service, drawn_jpeg(), Accept=accept)
    assert reply.headers["content-type"] == "application/json"


def test_a_heat_map_comes_on_request_and_only_then(service: Any) -> None:
    plain = grade(service, drawn_jpeg()).json()
    assert "explanation" not in plain
    header = {CUSTOM_ATTRIBUTES_HEADER.replace("-", "_"): "explain=gradcam"}
    answer = grade(service, drawn_jpeg(), **header).json()
    explanation = answer["explanation"]
    assert explanation["method"] == "grad-cam"
    assert (explanation["grade"], explanation["label"]) == (answer["grade"], answer["label"])
    assert (explanation["width"], explanation["height"]) == (224, 224)
    assert explanation["media_type"] == "image/jpeg"
    assert answer["predictions"] == plain["predictions"]


def test_a_heat_map_in_csv_is_refused_and_not_left_out(service: Any) -> None:
    header = {CUSTOM_ATTRIBUTES_HEADER.replace("-", "_"): "explain=gradcam"}
    check_problem(
        grade(service, drawn_jpeg(), Accept="text/csv", **header), 400, "leave out explain"
    )
    assert grade(service, drawn_jpeg(), Accept="text/csv;q=0.1, */*", **header).status == 200


@pytest.mark.parametrize(("kind", "side_px"), [("png", 32), ("png", 224), ("jpeg", 500)])
def test_a_heat_map_has_the_form_and_size_that_are_asked_for(
    service: Any, kind: str, side_px: int
) -> None:
    asked = f"explain=gradcam,explain_format={kind},explain_px={side_px}"
    header = {CUSTOM_ATTRIBUTES_HEADER.replace("-", "_"): asked}
    explanation = grade(service, drawn_jpeg(), **header).json()["explanation"]
    assert (explanation["width"], explanation["height"]) == (side_px, side_px)
    assert explanation["media_type"] == f"image/{kind}"
    picture = Image.open(io.BytesIO(base64.b64decode(explanation["image"])))
    assert (picture.format, picture.size) == (kind.upper(), (side_px, side_px))


def test_the_caller_chooses_an_operating_point(service: Any) -> None:
    header = {CUSTOM_ATTRIBUTES_HEADER.replace("-", "_"): "operating_point=high_specificity"}
    referable = grade(service, drawn_jpeg(), **header).json()["referable"]
    assert referable["operating_point"] == "high_specificity"
    assert referable["threshold"] == 0.9


@pytest.mark.parametrize(
    ("attributes", "named"),
    [
        ("explain=lime", "gradcam"),
        ("operating_point=best", "high_sensitivity, high_specificity"),
        (
            "trace=1",
            "explain=<value>, explain_format=<value>, explain_px=<value>, operating_point=<value>",
        ),
        ("explain", "explain=<value>"),
        ("explain=gradcam,explain_format=gif", "explain_format must be jpeg or png; it is 'gif'"),
        ("explain=gradcam,explain_px=31", "explain_px must be a whole number from 32 to 1024"),
        ("explain=gradcam,explain_px=1e3", "explain_px must be a whole number from 32 to 1024"),
        ("explain=gradcam,explain_px=2000", "explain_px must be a whole number from 32 to 1024"),
        ("explain_format=png", "explain_format needs explain beside it"),
    ],
)
def test_an_unknown_attribute_is_400_and_names_the_known(
    service: Any, attributes: str, named: str
) -> None:
    header = {CUSTOM_ATTRIBUTES_HEADER.replace("-", "_"): attributes}
    check_problem(grade(service, drawn_jpeg(), **header), 400, named)


def check_problem(reply: Any, status: int, fragment: str = "") -> None:
    assert reply.status == status, reply.body
    assert reply.headers["content-type"] == "application/problem+json"
    document = reply.json()
    assert document["status"] == status
    assert document["type"] == "about:blank"
    assert document["title"]
    assert fragment in document["detail"]


JPEG = drawn_jpeg
REFUSALS = [
    ("nothing", lambda: b"", "image/jpeg", 400, "0 bytes"),
    ("two bytes", lambda: b"\xff\xd8", "image/jpeg", 422, "accepted are"),
    ("text", lambda: b"This is not an image.", "image/jpeg", 422, "accepted are"),
    ("JPEG cut in half", lambda: JPEG()[: len(JPEG()) // 2], "image/jpeg", 422, "truncated"),
    ("JPEG header only", lambda: JPEG()[:20], "image/jpeg", 422, "truncated"),
    ("PNG without pixels", lambda: png(100, 100), "image/png", 422, "truncated"),
    ("huge PNG", png, "image/png", 413, "60000 x 60000"),
    ("too many bytes", lambda: JPEG() + bytes(2_000_001), "image/jpeg", 413, "2000000"),
    ("too large a body", lambda: JPEG() + bytes(4_000_000), "image/jpeg", 413, "larger than"),
    ("GIF", lambda: b"GIF89a" + bytes(30), "application/x-image", 415, "image/gif"),
    ("PDF", lambda: b"%PDF-1.7 " + bytes(30), "image/jpeg", 415, "application/pdf"),
    ("TIFF tag nowhere", lambda: bigtiff_with_a_tag_at(2**63), "image/tiff", 422, "outside"),
    ("TIFF tag at the end", lambda: bigtiff_with_a_tag_at(2**64 - 1), "image/tiff", 422, "outside"),
    ("DICOM", lambda: bytes(128) + b"DICM" + bytes(30), "image/png", 415, "application/dicom"),
    ("JPEG called PNG", JPEG, "image/png", 415, "the bytes are image/jpeg"),
    ("JPEG called JSON", JPEG, "application/json", 415, "the bytes are image/jpeg"),
    ("JPEG called a form", JPEG, "multipart/form-data; boundary=x", 415, "bytes are image/jpeg"),
    ("PNG called a form", png, "multipart/form-data", 415, "the bytes are image/png"),
    ("JPEG called text", JPEG, "text/plain", 415, "accepted are image/jpeg"),
    ("multipart cut", lambda: b"--x\r\n", "multipart/form-data; boundary=x", 400, "does not end"),
    ("multipart empty", lambda: b"--x--", "multipart/form-data; boundary=x", 400, "no image"),
    ("multipart no boundary", lambda: b"--x--", "multipart/form-data", 400, "no usable boundary"),
    ("not JSON", lambda: b"{", "application/json", 400, "not JSON"),
    ("JSON number", lambda: b"7", "application/json", 400, "base64 text"),
    ("JSON float array", lambda: b'{"instances": [[0.1, 0.2]]}', "application/json", 400, "base64"),
    ("JSON no images", lambda: b'{"inputs": []}', "application/json", 400, "empty list"),
    (
        "JSON too many",
        lambda: json.dumps({"inputs": ["a"] * 17}).encode(),
        "application/json",
        413,
        "at most 16",
    ),
    ("JSON other key", lambda: b'{"picture": ""}', "application/json", 400, "exactly one of"),
    ("JSON bad base64", lambda: b'{"image": "@@"}', "application/json", 400, "not valid base64"),
    ("JSON empty", lambda: b'{"image": ""}', "application/json", 400, "0 bytes"),
    ("JSON deep", lambda: b"[" * 200_000, "application/json", 400, "base64 text"),
    (
        "JSON of many lists",
        lambda: b"[" + b"[]," * 9_000 + b"[]]",
        "application/json",
        400,
        "base64",
    ),
]


@pytest.mark.parametrize(
    ("body", "content_type", "status", "fragment"),
    [row[1:] for row in REFUSALS],
    ids=[row[0] for row in REFUSALS],
)
def test_bad_input_is_a_problem_and_the_service_lives(
    service: Any, body: Any, content_type: str, status: int, fragment: str
) -> None:
    check_problem(grade(service, body(), content_type), status, fragment)
    assert service.request("GET", "/ping").status == 200


def test_unknown_routes_and_methods_are_problems_too(service: Any) -> None:
    check_problem(service.request("GET", "/nowhere"), 404, "POST /invocations")
    check_problem(service.request("GET", "/invocations"), 405)
    check_problem(service.request("POST", "/ping"), 405)


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (lambda: Image.new("RGB", (400, 300)), "too_dark"),
        (lambda: Image.new("RGB", (400, 300), "white"), "too_bright"),
        (lambda: Image.fromarray(drawn_pixels() // 12), "too_dark"),
        (
            lambda: Image.fromarray(
                np.random.default_rng(3).integers(0, 256, (300, 400, 3), dtype=np.uint8)
            ),
            "not_a_fundus_photograph",
        ),
    ],
)
def test_ungradable_is_an_answer_without_numbers(service: Any, image: Any, reason: str) -> None:
    reply = grade(service, encoded(image(), "PNG"), "image/png")
    assert reply.status == 200
    answer = reply.json()
    assert answer["quality"]["gradable"] is False
    assert reason in answer["quality"]["reasons"]
    assert set(answer["quality"]["reasons"]) <= set(QUALITY_REASONS)
    for name in ("predictions", "grade", "label", "consistent"):
        assert answer[name] is None
    assert answer["referable"]["probability"] is None
    assert answer["referable"]["positive"] is None
    assert answer["referable"]["operating_point"] == "high_sensitivity"


def test_every_hard_input_gets_what_its_manifest_expects(service: Any, shared_data: Path) -> None:
    folder = shared_data / "hard-inputs"
    rows = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    wrong = []
    reference = (folder / "derived" / "retina_ref.png").read_bytes()
    expected = grade(service, reference, "image/png").json()["predictions"]
    for row in rows:
        reply = grade(service, (folder / row["file"]).read_bytes(), "application/octet-stream")
        verdict = reply.json()["quality"]["gradable"] if reply.status == 200 else None
        if not as_expected(row["expect"], reply.status, verdict):
            wrong.append((row["file"], row["expect"], reply.status, verdict))
        if reply.status == 200 and row["expect"].startswith("decode to the same"):
            found = reply.json()["predictions"]
            assert np.argmax(found) == np.argmax(expected), row["file"]
            assert found == pytest.approx(expected, abs=0.05), row["file"]
    assert wrong == []
    assert len(rows) == 100


def test_the_answers_name_every_accepted_type(service: Any) -> None:
    detail = grade(service, b"GIF89a", "image/gif").json()["detail"]
    assert all(accepted in detail for accepted in ACCEPTED_IMAGE_TYPES)


def test_a_request_id_is_returned_and_a_strange_one_is_replaced(service: Any) -> None:
    for known in ("0f8fad5b-d9cb-469f-a165-70867728950e", "a1" * 16, "A1" * 32):
        given = grade(service, drawn_jpeg(), X_Request_Id=known)
        assert given.headers["x-request-id"] == known
    # A short number may be that of a patient, and the id is logged.
    for strange in ('"quoted" value', "19610304", "Marta-Example", "a1" * 33, "abc-123"):
        fresh = grade(service, drawn_jpeg(), X_Request_Id=strange).headers["x-request-id"]
        assert fresh != strange
        assert len(fresh) == 32


def test_a_caller_sees_no_more_than_100_characters_of_its_own_words(service: Any) -> None:
    name = CUSTOM_ATTRIBUTES_HEADER.replace("-", "_")
    for long in ("explain=" + "x" * 4000, "operating_point=" + "x" * 4000, "x" * 4000):
        reply = grade(service, drawn_jpeg(), **{name: long})
        check_problem(reply, 400)
        assert len(reply.json()["detail"]) < 400
    for content_type in ("image/" + "x" * 4000, "x" * 4000):
        reply = grade(service, drawn_jpeg(), content_type)
        check_problem(reply, 415)
        assert len(reply.json()["detail"]) < 400


def test_a_body_that_is_compressed_as_a_whole_is_415(service: Any) -> None:
    headers = {"Content-Type": "image/jpeg", "Content-Encoding": "gzip"}
    reply = service.request("POST", "/invocations", gzip.compress(drawn_jpeg()), headers)
    assert reply.status == 415
    assert "without compression" in reply.json()["detail"]
    headers["Content-Encoding"] = "identity"
    assert service.request("POST", "/invocations", drawn_jpeg(), headers).status == 200


@pytest.mark.parametrize("path", ["/ping/", "/invocations/", "//ping"])
def test_a_slash_too_many_is_404_and_leads_nowhere_else(service: Any, path: str) -> None:
    reply = service.request("GET", path, b"", {"Host": "elsewhere.example"})
    check_problem(reply, 404)
    assert "location" not in reply.headers
