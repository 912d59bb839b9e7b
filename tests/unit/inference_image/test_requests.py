"""What a caller may send as JSON, and how little a strange document costs."""

import base64
import json
import time

import pytest

from inference_image.requests import Photograph, RefusedRequestError, extract, wants_csv

IMAGE = bytes(range(256)) * 40


@pytest.mark.parametrize("line", [b"\n", b"\r\n", b" \t"])
def test_base64_in_lines_and_with_escaped_slashes_is_read(line: bytes) -> None:
    text = base64.encodebytes(IMAGE).replace(b"\n", line).decode()
    document = json.dumps({"image": text, "camera": 'a " b'}).replace("/", r"\/")
    assert extract(document.encode(), "application/json") == [
        Photograph(data=IMAGE, declared_type=None)
    ]


@pytest.mark.parametrize("count", [2, 16])
def test_as_many_images_as_allowed_are_read_and_one_more_is_not(count: int) -> None:
    text = base64.b64encode(IMAGE).decode()
    rows = [{"b64": text} for _ in range(count)]
    document = json.dumps({"instances": rows, "signature_name": "serving_default"}, indent=4)
    found = extract(document.encode(), "application/json", most=count)
    assert found == [Photograph(data=IMAGE, declared_type=None)] * count
    with pytest.raises(RefusedRequestError) as refusal:
        extract(document.encode(), "application/json", most=count - 1)
    assert refusal.value.status == 413


@pytest.mark.parametrize(
    "document",
    [
        b"[" + b"[]," * 3_000_000 + b"[]]",
        b"[" + b'"",' * 3_000_000 + b'""]',
        b"{" + b'"a":1,' * 1_500_000 + b'"b":1}',
        b'{"image":"' + b"\\u0041" * 1_500_000 + b'"}',
        b'{"image":"' + b'\\"' * 4_000_000 + b'"}',
        b"9" * 9_000_000,
        b'"' + b"a" * 9_000_000,
    ],
)
def test_what_is_not_one_long_text_is_refused_before_it_is_parsed(document: bytes) -> None:
    begun = time.process_time()
    with pytest.raises(RefusedRequestError) as refusal:
        extract(document, "application/json")
    assert refusal.value.status == 400
    assert time.process_time() - begun < 1.0


def test_an_option_inside_the_json_is_refused_and_not_passed_over() -> None:
    document = {"image": base64.b64encode(IMAGE).decode(), "operating_point": "high_specificity"}
    with pytest.raises(RefusedRequestError, match="header X-Amzn-SageMaker-Custom-Attributes"):
        extract(json.dumps(document).encode(), "application/json")


def test_json_that_is_not_utf_8_is_refused_before_it_is_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In UTF-16 a quotation mark may be half of another character, and hide millions of lists."""
    text = base64.b64encode(IMAGE).decode()
    assert extract(json.dumps({"image": text}).encode("utf-8-sig"), "application/json")
    parsed: list[object] = []
    monkeypatch.setattr("inference_image.requests.json.loads", parsed.append)
    hidden = '{"image": "\u2200", "more": [' + "[]," * 100_000 + '[]], "\u2200": ""}'
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32-le"):
        with pytest.raises(RefusedRequestError) as refusal:
            extract(hidden.encode(encoding), "application/json")
        assert refusal.value.status == 400
    assert parsed == []


@pytest.mark.parametrize("text", ["\u00e9\u00e9\u00e9\u00e9", "ab!d", "abc"])
def test_what_is_no_base64_is_refused(text: str) -> None:
    with pytest.raises(RefusedRequestError, match="base64"):
        extract(json.dumps({"image": text}).encode(), "application/json")


@pytest.mark.parametrize(
    ("accept", "csv"),
    [
        (None, False),
        ("*/*", False),
        ("text/csv", True),
        ("TEXT/CSV; q=0.1", True),
        ("text/csv;q=0, application/json", False),
        ("application/json;q=0.000, text/csv", True),
        ("text/csv;header=absent", True),
        ("text/csv;q=0.1, application/json", False),
        ("application/json;q=0.1, text/csv;q=0.9", True),
        ("application/json, text/csv", False),
        ("text/csv, application/json", True),
        ("text/csv, */*;q=0.1", True),
        ("application/json;q=0.5, */*", True),
        ("text/*;q=0.9, application/json;q=0.5", True),
        ("text/*, */*", False),
        ("*/*;q=0.1, application/json;q=0, text/csv;q=0", False),
        ("text/html, application/xml;q=0.9, */*;q=0.8", False),
        ("image/png", False),
        ("text/csv;q=2, application/json;q=0.5", True),
        ("text/csv;q=x", True),
        (";,;,=,q", False),
    ],
)
def test_accept_names_the_form_of_the_answer(accept: str | None, csv: bool) -> None:
    assert wants_csv(accept) is csv


TEXT = base64.b64encode(IMAGE).decode()


@pytest.mark.parametrize(
    ("url", "declared"),
    [
        ("data:image/png;base64,", "image/png"),
        ("DATA:IMAGE/PNG;BASE64,", "image/png"),
        (" \ndata:image/jpeg;name=a.jpg;base64,", "image/jpeg"),
        ("data:;base64,", None),
        ("data:application/octet-stream;base64,", "application/octet-stream"),
    ],
)
def test_the_type_of_a_data_url_is_what_its_sender_claims(url: str, declared: str | None) -> None:
    body = json.dumps({"image": url + TEXT}).encode()
    assert extract(body, "application/json") == [Photograph(data=IMAGE, declared_type=declared)]


@pytest.mark.parametrize(
    ("url", "status", "why"),
    [
        ("data:application/pdf;base64,", 415, "'application/pdf' is not accepted"),
        ("data:application/json;base64,", 415, "may not be application/json"),
        ("data:image/jpeg,", 400, "not base64"),
        ("data:image/jpeg;charset=x,", 400, "not base64"),
        ("data:image/jpeg;base64", 400, "not base64"),
    ],
)
def test_a_data_url_of_another_kind_is_refused(url: str, status: int, why: str) -> None:
    with pytest.raises(RefusedRequestError, match=why) as refusal:
        extract(json.dumps({"image": url + TEXT}).encode(), "application/json")
    assert refusal.value.status == status


@pytest.mark.parametrize("count", [17, 100, 10_000])
def test_too_many_images_are_413_however_many(count: int) -> None:
    for value in (TEXT, {"b64": TEXT[:200]}):
        with pytest.raises(RefusedRequestError, match=r"or more images; at most 16") as refusal:
            extract(json.dumps({"inputs": [value] * count}).encode(), "application/json", most=16)
        assert refusal.value.status == 413
