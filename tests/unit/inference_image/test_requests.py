"""What a caller may send as JSON, and how little a strange document costs."""

import base64
import json
import time
import tracemalloc
from typing import Any

import pytest
from PIL import Image

from inference_image.contract import CUSTOM_ATTRIBUTES_HEADER
from inference_image.requests import (
    ATTRIBUTES,
    Photograph,
    RefusedRequestError,
    extract,
    parse_attributes,
    wants_csv,
)
from tests.photograph_files import dicom
from tests.service_harness import drawn_pixels, encoded

IMAGE = bytes(range(256)) * 40


@pytest.mark.parametrize("line", [b"\n", b"\r\n", b" \t"])
def test_base64_in_lines_and_with_escaped_slashes_is_read(line: bytes) -> None:
    text = base64.encodebytes(IMAGE).replace(b"\n", line).decode()
    document = json.dumps({"image": text, "camera": 'a " b'}).replace("/", r"\/")
    assert extract(document.encode(), "application/json") == [
        Photograph(data=IMAGE, declared_type=None)
    ]


@pytest.mark.parametrize(
    "document",
    [
        '{"image": "%s", "image": "AAAA"}',
        '{"instances": [{"b64": "%s"}, {"b64": "%s", "b64": "AAAA"}]}',
        '{"inputs": "%s", "note": 1, "note": 2}',
    ],
)
def test_a_name_that_stands_twice_is_refused_and_no_image_lost(document: str) -> None:
    text = base64.b64encode(IMAGE).decode()
    with pytest.raises(RefusedRequestError, match="twice in one object") as refusal:
        extract(document.replace("%s", text).encode(), "application/json", most=2)
    assert refusal.value.status == 400


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("space", [b"", b"\r\n" + b" " * 40])
@pytest.mark.parametrize("mode", ["JPEG", "PNG", "TIFF", "WEBP", "BMP", "DICOM"])
def test_under_an_opaque_type_json_and_base64_are_read_as_such(
    mode: str, space: bytes, mark: bytes
) -> None:
    pixels = drawn_pixels(size_px=128)
    image = dicom(pixels) if mode == "DICOM" else encoded(Image.fromarray(pixels), mode)
    text = base64.b64encode(image)
    for body, count in (
        (b'{"image": "%b"}' % text, 1),
        (b'"%b"' % text, 1),
        (b'["%b", {"b64": "%b"}]' % (text, text), 2),
        (text, 1),
        (base64.encodebytes(image), 1),
        (b"data:;base64," + text, 1),
    ):
        found = extract(mark + space + body, "application/x-image", most=2)
        assert found == [Photograph(data=image, declared_type=None)] * count
    assert extract(image, "application/x-image") == [Photograph(data=image, declared_type=None)]


@pytest.mark.parametrize("separator", [",", ";"])
def test_an_option_that_is_given_twice_must_say_the_same(separator: str) -> None:
    same = separator.join(["operating_point=a", "explain=gradcam", "operating_point=a"])
    assert parse_attributes(same).operating_point == "a"
    with pytest.raises(RefusedRequestError, match="sent twice, as 'a' and 'b'") as refusal:
        parse_attributes(f"operating_point=a{separator}operating_point=b")
    assert refusal.value.status == 400


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


@pytest.mark.parametrize("count", [1, 16])
@pytest.mark.parametrize("name", ["b64", "image"])
@pytest.mark.parametrize("around", ["instances", "inputs", "image", None])
def test_other_keys_beside_an_image_are_the_callers_own(
    around: str | None, name: str, count: int
) -> None:
    text = base64.b64encode(IMAGE).decode()
    rows = [{name: text, "id": f"patient {n}", "eye": "left"} for n in range(count)]
    document = rows if around is None else {around: rows}
    found = extract(json.dumps(document, indent=2).encode(), "application/json", most=16)
    assert found == [Photograph(data=IMAGE, declared_type=None)] * count


@pytest.mark.parametrize("option", ATTRIBUTES)
@pytest.mark.parametrize(
    "shape",
    [
        lambda one: {"instances": [one]},
        lambda one: {"inputs": ["AAAA", one]},
        lambda one: {"image": one},
        lambda one: [one],
    ],
)
def test_an_option_beside_an_image_is_refused_by_name(shape: Any, option: str) -> None:
    body = json.dumps(shape({"b64": base64.b64encode(IMAGE).decode(), option: "gradcam"})).encode()
    with pytest.raises(RefusedRequestError, match=f"has '{option}', which is an option") as refusal:
        extract(body, "application/json", most=4)
    assert refusal.value.status == 400
    assert f"{CUSTOM_ATTRIBUTES_HEADER}, as {option}=<value>" in refusal.value.detail


@pytest.mark.parametrize("entry", [{"id": "x"}, {"b64": "AAAA", "image": "AAAA"}, {}])
def test_an_object_without_one_image_is_told_so(entry: dict[str, str]) -> None:
    with pytest.raises(RefusedRequestError, match="exactly one of 'b64' and 'image'"):
        extract(json.dumps({"instances": [entry]}).encode(), "application/json")


def form(*parts: tuple[str, bytes]) -> bytes:
    """A form with boundary `x`: what follows `form-data` in each part's header, and its bytes."""
    return b"".join(
        f"--x\r\nContent-Disposition: form-data{said}\r\n\r\n".encode() + data + b"\r\n"
        for said, data in parts
    ) + b"--x--\r\n"  # fmt: skip


FILE = '; name="eye"; filename="left.jpg"\r\nContent-Type: image/jpeg', IMAGE
EMPTY = '; name="other"; filename=""\r\nContent-Type: application/octet-stream', b""


@pytest.mark.parametrize(
    "other",
    [
        ('; name="note"', b"hi"),
        ("; name=note", b""),
        ('; name="note"\r\nContent-Type: text/plain; charset=utf-8', b"hi"),
        # A file name is a parameter, and no word in another one.
        ('; name="filename"', b"left.jpg"),
        ('; name="a;filename=b"', b"hi"),
        ("", b"hi"),
        EMPTY,
        ("; name=other; filename=", b""),
    ],
)
def test_what_is_no_file_of_a_form_is_passed_over(other: tuple[str, bytes]) -> None:
    photograph = Photograph(data=IMAGE, declared_type="image/jpeg")
    for parts in ((FILE, other), (other, FILE), (other, FILE, *[other] * 20)):
        found = extract(form(*parts), "multipart/form-data", boundary="x", most=1)
        assert found == [photograph]
    with pytest.raises(RefusedRequestError, match="holds no image") as refusal:
        extract(form(other, other), "multipart/form-data", boundary="x")
    assert refusal.value.status == 400


@pytest.mark.parametrize("named", ["", "; filename*=UTF-8''left.jpg", '; filename="a\\"b.jpg"'])
def test_a_file_of_a_form_is_one_by_its_type_or_its_name(named: str) -> None:
    said = f"; name=eye{named}" + ("" if named else "\r\nContent-Type: image/png")
    (found,) = extract(form((said, IMAGE)), "multipart/form-data", boundary="x")
    assert isinstance(found, Photograph)
    assert found.data == IMAGE


@pytest.mark.parametrize("said", ["", "\r\nContent-Type: text/plain"])
@pytest.mark.parametrize("mode", ["JPEG", "PNG", "TIFF", "WEBP", "BMP"])
def test_an_image_in_a_field_without_a_file_name_keeps_its_place(mode: str, said: str) -> None:
    image = encoded(Image.fromarray(drawn_pixels(size_px=128)), mode)
    text = base64.b64encode(image)
    urls = [b"data:%b;base64," % kind + text for kind in (b"image/jpeg", b"", b"application/x")]
    for data in (image, text, b"\r\n" + text, *urls):
        field = f"; name=b{said}", data
        for parts in ((FILE, field), (field, FILE)):
            found = extract(form(*parts), "multipart/form-data", boundary="x", most=2)
            assert len(found) == 2
            refused = found[parts.index(field)]
            assert isinstance(refused, RefusedRequestError)
            assert (refused.status, "with a filename" in refused.detail) == (400, True)


def test_a_chosen_file_that_is_empty_is_no_file_that_nobody_chose() -> None:
    empty = '; name="eye"; filename="left.jpg"', b""
    assert len(extract(form(FILE, empty), "multipart/form-data", boundary="x", most=2)) == 2


@pytest.mark.parametrize("option", ATTRIBUTES)
def test_an_option_among_the_fields_of_a_form_is_refused_by_name(option: str) -> None:
    body = form(FILE, (f'; name="{option}"', b"gradcam"))
    with pytest.raises(RefusedRequestError, match=f"has a field '{option}'") as refusal:
        extract(body, "multipart/form-data", boundary="x")
    assert refusal.value.status == 400
    assert CUSTOM_ATTRIBUTES_HEADER in refusal.value.detail


def test_the_parts_of_a_form_are_bounded() -> None:
    field = '; name="note"', b"hi"
    assert len(extract(form(FILE, *[field] * 32), "multipart/form-data", boundary="x")) == 1
    many = ([FILE, *[field] * 33], [field] * 100, [FILE, *[field] * 100])
    for parts, status in (*((parts, 400) for parts in many), ([FILE] * 100, 413)):
        with pytest.raises(RefusedRequestError) as refusal:
            extract(form(*parts), "multipart/form-data", boundary="x", most=16)
        assert refusal.value.status == status


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


@pytest.mark.parametrize("kind", ["application/json", "application/x-image"])
@pytest.mark.parametrize("repeated", [b";", b"a;", b"a"])
def test_a_data_url_of_endless_parameters_takes_no_more_than_its_bytes(
    repeated: bytes, kind: str
) -> None:
    url = b"data:" + repeated * (1_000_000 // len(repeated))
    body = url if kind == "application/x-image" else b'{"image": "%b"}' % url
    tracemalloc.start()
    try:
        with pytest.raises(RefusedRequestError, match="data URL is not base64") as refusal:
            extract(body, kind)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refusal.value.status == 400
    assert peak_bytes < 6 * len(body)


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
