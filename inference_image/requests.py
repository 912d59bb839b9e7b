"""Reads what a caller sent: body, content type, custom attributes, wanted answer.

    >>> photographs = extract(body, "application/json", most=16)
    >>> options = parse_attributes("explain=gradcam,operating_point=high_sensitivity")

Everything here is about form, nothing about images; refusals carry their HTTP status. A fault of
the whole body is raised; a fault of one image among several takes that image's place, so that
the others are answered.
"""

import base64
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from inference_image.contract import (
    ACCEPTED_CONTENT_TYPES,
    CUSTOM_ATTRIBUTES_HEADER,
    EXPLAIN_ATTRIBUTE,
    EXPLAIN_FORMAT_ATTRIBUTE,
    EXPLAIN_SIDE_ATTRIBUTE,
    MEDIA_CSV,
    MEDIA_DICOM,
    MEDIA_JPEG,
    MEDIA_JSON,
    MEDIA_MULTIPART,
    MEDIA_OPAQUE,
    MEDIA_PNG,
    OPERATING_POINT_ATTRIBUTE,
)
from inference_image.headers import sniff

ATTRIBUTES: Final = (
    EXPLAIN_ATTRIBUTE,
    EXPLAIN_FORMAT_ATTRIBUTE,
    EXPLAIN_SIDE_ATTRIBUTE,
    OPERATING_POINT_ATTRIBUTE,
)
# A heat map: what it is encoded as, and its side in pixels.
EXPLAIN_FORMATS: Final = {"jpeg": MEDIA_JPEG, "png": MEDIA_PNG}
EXPLAIN_PX: Final = 224
_LEAST_EXPLAIN_PX: Final = 32
_MOST_EXPLAIN_PX: Final = 1024
JSON_SHAPES: Final = '{"image": "<base64>"}, {"instances": [{"b64": "<base64>"}]} or {"inputs": …}'
# A caller's own words come back in a refusal, but no more of them than tells which are meant.
_MOST_ECHOED: Final = 100
# The document is long texts and a few names around them. Each bracket costs the parser a
# hundred times its byte, so all that is not in a text is counted first.
_JSON_TEXT: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
# Some writers escape each "/" (one character in 64) and each end of line (one in 76).
_MOST_JSON_ESCAPES: Final = 1 / 16
_MOST_JSON_AROUND: Final = 256
_MOST_JSON_TEXTS: Final = 32
# What one more image may add to the two above: braces, its name, and two keys of the caller's own.
_MORE_JSON_AROUND: Final = 32
_MORE_JSON_TEXTS: Final = 6
_JSON_SPACE: Final = b" \t\n\r"
_BASE64_SPACE: Final = b" \t\n\v\f\r"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_JSON_STARTS: Final = (b"{", b"[", b'"')
# RFC 2046 allows 70 characters; a part's headers take some hundred bytes.
_LONGEST_BOUNDARY: Final = 70
# Beyond that an Accept is read no further.
_MOST_ACCEPT: Final = 1000
_NAMED: Final = 2
# A shorter text in JSON is no image.
_SHORTEST_IMAGE_TEXT: Final = 64
_DATA_URL: Final = re.compile(rb"data:([^,;]*+)((?:;[^,;]*+)*+),", re.IGNORECASE)
# Its type and parameters; each of millions would take 160 bytes of the search's memory.
_MOST_URL_BYTES: Final = 1024
_MOST_PART_HEADER_BYTES: Final = 8192
# Parts of a form that are no image: text fields, and files that nobody chose.
_MOST_OTHER_PARTS: Final = 32
# So much of a field tells whether it is one; DICOM says so after 128 bytes.
_FIRST_BYTES: Final = 512
_IMAGE_TYPES: Final = ("image/", MEDIA_DICOM)
_PART_PARAMETER: Final = re.compile(
    r';\s*(name|filename\*?)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;\s]*))', re.IGNORECASE
)


class RefusedRequestError(ValueError):
    """The request's form is not accepted: HTTP status and one sentence."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the custom attributes ask for; None where they do not say."""

    explain: str | None = None
    operating_point: str | None = None
    explain_media: str = MEDIA_JPEG
    explain_px: int = EXPLAIN_PX


_NO_OPTIONS: Final = Options()


@dataclass(frozen=True, kw_only=True)
class Photograph:
    """Encoded bytes of one image and the type that the sender claims, or None."""

    data: bytes
    declared_type: str | None


def media_type(content_type: str | None) -> str:
    """A Content-Type without parameters, in lower case; opaque where there is none."""
    bare = (content_type or "").partition(";")[0].strip().lower()
    return bare or MEDIA_OPAQUE[-1]


def wants_csv(accept: str | None) -> bool:
    """Whether Accept gives CSV more weight than JSON; of two equal ones the first that it names.

    What it says of other types alone is passed over, and the answer is JSON: a caller that cannot
    read it is better off with it than with a 406, which would fail a whole job of a platform.
    """
    return _prefers_csv(accept[:_MOST_ACCEPT]) if accept else False


@lru_cache(maxsize=64)
def _prefers_csv(accept: str) -> bool:
    # For each type: weight, and place in the list; of the range that fits it most closely (RFC
    # 9110, 12.5.1).
    found: dict[str, tuple[int, float, int]] = {}
    for place, part in enumerate(accept.lower().split(",")):
        bare, *parameters = (piece.strip() for piece in part.split(";"))
        for kind in (MEDIA_CSV, MEDIA_JSON):
            ranges = ("*/*", f"{kind.partition('/')[0]}/*", kind)
            if bare in ranges:
                close = ranges.index(bare)
                if kind not in found or close > found[kind][0]:
                    found[kind] = close, _weight(parameters), place
    csv, json_ = (found.get(kind, (0, 0.0, 0)) for kind in (MEDIA_CSV, MEDIA_JSON))
    if csv[1] != json_[1]:
        return csv[1] > json_[1]
    # Neither is named: JSON. One is: that one.
    return csv[1] > 0 and csv[0] == _NAMED and (json_[0] != _NAMED or csv[2] < json_[2])


def _weight(parameters: list[str]) -> float:
    """`q` of a range in Accept, 1 where it is missing or no weight (RFC 9110, 12.4.2)."""
    for parameter in parameters:
        name, _, value = (piece.strip() for piece in parameter.partition("="))
        if name == "q" and re.fullmatch(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?", value):
            return float(value)
    return 1.0


def parse_attributes(header: str | None) -> Options:
    """`name=value` pairs separated by commas or semicolons.

    Raises:
        RefusedRequestError: 400, for an attribute that is not known or has no value.
    """
    if not header:
        return _NO_OPTIONS
    values: dict[str, str] = {}
    for part in header.replace(";", ",").split(","):
        if not part.strip():
            continue
        name, separator, value = (piece.strip() for piece in part.partition("="))
        if name not in ATTRIBUTES or not separator or not value:
            raise RefusedRequestError(
                400,
                f"Custom attribute {part.strip()[:_MOST_ECHOED]!r} is not known; known are "
                f"{', '.join(f'{known}=<value>' for known in ATTRIBUTES)}.",
            )
        if len(value) > _MOST_ECHOED:
            raise RefusedRequestError(
                400, f"The value of {name} has {len(value)} characters; {_MOST_ECHOED} may be sent."
            )
        if values.setdefault(name, value) != value:
            raise RefusedRequestError(
                400, f"{name} is sent twice, as {values[name]!r} and {value!r}; send one of them."
            )
    explain = values.get(EXPLAIN_ATTRIBUTE)
    for name in (EXPLAIN_FORMAT_ATTRIBUTE, EXPLAIN_SIDE_ATTRIBUTE):
        if name in values and explain is None:
            raise RefusedRequestError(400, f"{name} needs {EXPLAIN_ATTRIBUTE} beside it.")
    encoded = values.get(EXPLAIN_FORMAT_ATTRIBUTE, "jpeg")
    if encoded not in EXPLAIN_FORMATS:
        raise RefusedRequestError(
            400,
            f"{EXPLAIN_FORMAT_ATTRIBUTE} must be {' or '.join(EXPLAIN_FORMATS)}; it is "
            f"{encoded!r}.",
        )
    return Options(
        explain=explain,
        operating_point=values.get(OPERATING_POINT_ATTRIBUTE),
        explain_media=EXPLAIN_FORMATS[encoded],
        explain_px=_explain_px(values.get(EXPLAIN_SIDE_ATTRIBUTE)),
    )


def _explain_px(text: str | None) -> int:
    if text is None:
        return EXPLAIN_PX
    side = int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 0
    if not _LEAST_EXPLAIN_PX <= side <= _MOST_EXPLAIN_PX:
        raise RefusedRequestError(
            400,
            f"{EXPLAIN_SIDE_ATTRIBUTE} must be a whole number from {_LEAST_EXPLAIN_PX} to "
            f"{_MOST_EXPLAIN_PX}; it is {text!r}.",
        )
    return side


def check_content_type(content_type: str) -> None:
    """Raise 415 for a type that promises neither images nor JSON nor a form."""
    if content_type in ACCEPTED_CONTENT_TYPES or content_type.startswith("image/"):
        return
    raise RefusedRequestError(
        415,
        f"Content-Type {content_type[:_MOST_ECHOED]!r} is not accepted; accepted are "
        f"{', '.join(ACCEPTED_CONTENT_TYPES)}.",
    )


def check_content_encoding(encodings: str) -> None:
    """Raise 415 for a body that is compressed as a whole: what it expands to is not bounded."""
    for name in encodings.split(",") if encodings else ():
        if name.strip().lower() not in ("", "identity"):
            raise RefusedRequestError(
                415,
                f"Content-Encoding {name.strip()[:_MOST_ECHOED]!r} is not accepted; send the body "
                "as it is, without compression.",
            )


def extract(
    body: bytes, content_type: str, *, boundary: str | None = None, most: int = 1
) -> list[Photograph | RefusedRequestError]:
    """The images of a request, in the order sent; never empty.

    Args:
        body: the whole body.
        content_type: as `media_type` returns it.
        boundary: parameter of a multipart Content-Type, as `boundary_of` returns it.
        most: how many images one request may hold.

    Returns:
        One entry for each image: its bytes, or, among several, why it cannot be read.

    Raises:
        RefusedRequestError: 400 where the body or its only image is malformed, 413 for too many
            images, 415 for another type.
    """
    check_content_type(content_type)
    found = _images(body, content_type, boundary, most)
    if len(found) == 1 and isinstance(found[0], RefusedRequestError):
        raise found[0]
    return found


def _images(
    body: bytes, content_type: str, boundary: str | None, most: int
) -> list[Photograph | RefusedRequestError]:
    if content_type in (MEDIA_JSON, MEDIA_MULTIPART):
        _check_is_no_image(body, content_type)
    if content_type == MEDIA_JSON:
        return _from_json(body, most)
    if content_type == MEDIA_MULTIPART:
        return _from_multipart(body, boundary, most)
    if content_type in MEDIA_OPAQUE:
        # Seen in the field: JSON, bare base64 or a data: URL under application/x-image.
        start = body[:_FIRST_BYTES].removeprefix(_BYTE_ORDER_MARK).lstrip()
        if start.startswith(_JSON_STARTS):
            return _from_json(body, most)
        if start[:5].lower() == b"data:" or _is_base64_of_an_image(start):
            return [_from_text(body.removeprefix(_BYTE_ORDER_MARK))]
        return [Photograph(data=body, declared_type=None)]
    return [Photograph(data=body, declared_type=content_type)]


def _check_is_no_image(body: bytes, content_type: str) -> None:
    """Raise 415 where the body is not in an envelope, as its type says, but an image itself."""
    start = body[:_FIRST_BYTES]
    # JSON and a form begin with one of these, as a rule, and no image does.
    if not start.startswith((*_JSON_STARTS, b"--")) and _is_image(start):
        raise RefusedRequestError(
            415,
            f"The request declares {content_type}, but the bytes are {sniff(start)}; send the true "
            "type.",
        )


def boundary_of(content_type: str | None) -> str | None:
    """The `boundary` parameter of a Content-Type, without quotes; None where there is none."""
    for parameter in (content_type or "").split(";")[1:]:
        name, separator, value = parameter.partition("=")
        if name.strip().lower() == "boundary" and separator:
            bare = value.strip().strip('"')
            return bare if 0 < len(bare) <= _LONGEST_BOUNDARY else None
    return None


def _check_count(count: int, most: int) -> None:
    if count > most:
        raise RefusedRequestError(
            413, f"The request holds {count} or more images; at most {most} are accepted."
        )


def _from_json(body: bytes, most: int) -> list[Photograph | RefusedRequestError]:
    if b"\0" in body:
        # UTF-16, in which the bytes that are counted next mean something else; JSON that is sent
        # is UTF-8 (RFC 8259, 8.1).
        raise _not_json()
    _check_size_around(body, most)
    try:
        document = json.loads(body.decode("utf-8-sig"), object_pairs_hook=_object)
    except RefusedRequestError:
        raise
    except (ValueError, RecursionError):
        raise _not_json() from None
    values = _find_images(document)
    _check_count(len(values), most)
    found: list[Photograph | RefusedRequestError] = []
    for value in values:
        try:
            # What is not ASCII becomes "?", which is no base64 either.
            found.append(_from_text(_text_of(value).encode("ascii", "replace")))
        except RefusedRequestError as refused:
            found.append(refused)
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of the JSON; of a name that stands twice Python would keep the last in silence."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise RefusedRequestError(
            400,
            f"The JSON has {twice[:_MOST_ECHOED]!r} twice in one object; several images are sent "
            'as {"instances": [{"b64": "<base64>"}, …]}.',
        )
    return found


def _not_json() -> RefusedRequestError:
    return RefusedRequestError(400, f"The body is not JSON; send the image as {JSON_SHAPES}.")


def _check_size_around(body: bytes, most: int) -> None:
    """Raise 400 where the document is more than texts and their names, without parsing it."""
    most_around = _MOST_JSON_AROUND + _MORE_JSON_AROUND * most
    most_texts = _MOST_JSON_TEXTS + _MORE_JSON_TEXTS * most
    if body.count(b"\\") > _MOST_JSON_AROUND + len(body) * _MOST_JSON_ESCAPES:
        raise RefusedRequestError(400, "The image in the JSON is not base64: it has too many \\.")
    around = texts = images = position = 0
    while around <= most_around and texts <= most_texts:
        start = body.find(b'"', position)
        outside = body[position : start if start >= 0 else len(body)]
        around += len(outside.translate(None, _JSON_SPACE))
        if start < 0:
            break
        text = _JSON_TEXT.match(body, start)
        if text is None:
            raise _not_json()
        texts += 1
        images += text.end() - start > _SHORTEST_IMAGE_TEXT
        position = text.end()
    if around > most_around or texts > most_texts:
        _check_count(images, most)
        raise RefusedRequestError(
            400, f"The JSON must be images as base64 text and little else: {JSON_SHAPES}."
        )


def _find_images(document: Any) -> list[Any]:
    """The values that stand for images: of one of the three shapes, or a bare text."""
    value = document
    if isinstance(document, Mapping):
        keys = [key for key in ("image", "instances", "inputs") if key in document]
        if len(keys) != 1:
            raise RefusedRequestError(
                400, f"The JSON object must have exactly one of these: {JSON_SHAPES}."
            )
        _check_misplaced("The JSON object has", document)
        value = document[keys[0]]
    values = value if isinstance(value, list) else [value]
    if not values:
        raise RefusedRequestError(400, "The JSON holds an empty list of images.")
    for one in values:
        if isinstance(one, Mapping):
            _check_misplaced("An image's object in the JSON has", one)
    return values


def _check_misplaced(where: str, names: Iterable[str]) -> None:
    """Raise 400 for an option among the caller's own names: it was to change the answer."""
    for name in names:
        if name in ATTRIBUTES:
            raise RefusedRequestError(
                400,
                f"{where} {name!r}, which is an option; send it in the header "
                f"{CUSTOM_ATTRIBUTES_HEADER}, as {name}=<value>.",
            )


def _text_of(value: Any) -> str:
    if isinstance(value, Mapping):
        named = [name for name in ("b64", "image") if name in value]
        if len(named) != 1:
            raise RefusedRequestError(
                400, "An image's object in the JSON must have exactly one of 'b64' and 'image'."
            )
        value = value[named[0]]
    if not isinstance(value, str):
        raise RefusedRequestError(
            400, f"The image in the JSON must be base64 text, as {JSON_SHAPES}."
        )
    return value


def _from_text(text: bytes) -> Photograph:
    """An image in base64, or in a `data:` URL (RFC 2397), whose type is what the sender claims."""
    text = text.lstrip(_BASE64_SPACE)
    if text[:5].lower() != b"data:":
        return Photograph(data=_from_base64(text), declared_type=None)
    url = _DATA_URL.match(text, 0, _MOST_URL_BYTES)
    if url is None or not url[2].lower().endswith(b";base64"):
        raise RefusedRequestError(
            400, "The data URL is not base64: send data:<type>;base64,<text>."
        )
    declared = media_type(url[1].decode("ascii")) if url[1].strip() else None
    if declared in (MEDIA_JSON, MEDIA_MULTIPART):
        raise RefusedRequestError(415, f"A data URL may not be {declared}; send the image itself.")
    if declared is not None:
        check_content_type(declared)
    return Photograph(data=_from_base64(text[url.end() :]), declared_type=declared)


def _from_base64(text: bytes) -> bytes:
    try:
        return base64.b64decode(text.translate(None, _BASE64_SPACE), validate=True)
    except ValueError:
        raise RefusedRequestError(
            400, "The image is not valid base64: A-Z a-z 0-9 + / and = at the end."
        ) from None


def _from_multipart(
    body: bytes, boundary: str | None, most: int
) -> list[Photograph | RefusedRequestError]:
    """The files of a form (RFC 7578, RFC 2046 5.1): each is an image, whatever its name.

    The body is in memory and bounded already, so that it is cut rather than streamed.
    """
    if boundary is None:
        raise RefusedRequestError(
            400, "The multipart Content-Type has no usable boundary; send `; boundary=...`."
        )
    delimiter = b"\r\n--" + boundary.encode("latin-1", errors="replace")
    most_parts = most + _MOST_OTHER_PARTS
    # The first delimiter may stand at the very start; each other one begins with a line break.
    pieces = (b"\r\n" + body).split(delimiter, most_parts + 1)
    closed = [index for index, piece in enumerate(pieces) if index and piece.startswith(b"--")]
    parts = pieces[1 : closed[0]] if closed else pieces[1:]
    if not closed and len(parts) <= most_parts:
        raise RefusedRequestError(
            400, "The multipart body does not end with its boundary: it is cut or malformed."
        )
    found = [image for part in parts if (image := _from_part(part)) is not None]
    _check_count(len(found), most)
    if len(parts) > most_parts or len(parts) - len(found) > _MOST_OTHER_PARTS:
        raise RefusedRequestError(
            400, f"The multipart body has more than {_MOST_OTHER_PARTS} parts that are no images."
        )
    if not found:
        raise RefusedRequestError(
            400, "The multipart body holds no image; send each as a file, with a filename."
        )
    return found


def _is_like_an_image(data: bytes) -> bool:
    """Whether a field begins as an image does, or as one in base64 or in a `data:` URL."""
    text = data[:_FIRST_BYTES].strip()
    if text[:11].lower() == b"data:image/" or _is_image(data):
        return True
    url = _DATA_URL.match(text)
    return _is_base64_of_an_image(text[url.end() :] if url else text)


def _is_image(data: bytes) -> bool:
    return (sniff(data) or "").startswith(_IMAGE_TYPES)


def _is_base64_of_an_image(start: bytes) -> bool:
    """Whether the first bytes of a text are those of an image in base64."""
    text = start.translate(None, _BASE64_SPACE)
    try:
        return _is_image(base64.b64decode(text[: len(text) // 4 * 4], validate=True))
    except ValueError:
        return False


def _from_part(part: bytes) -> Photograph | RefusedRequestError | None:
    """The image in a part of a form; None for a text field, and for a file that nobody chose."""
    # After the delimiter comes white space and a line break, then headers, then an empty line.
    head, separator, data = part.partition(b"\r\n\r\n")
    if not separator or len(head) > _MOST_PART_HEADER_BYTES:
        raise RefusedRequestError(400, "A part of the multipart body has no end of its headers.")
    headers = {}
    for line in head.decode("latin-1").split("\r\n"):
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    said = {
        name.lower(): quoted or bare
        for name, quoted, bare in _PART_PARAMETER.findall(headers.get("content-disposition", ""))
    }
    typed = headers.get("content-type")
    declared = media_type(typed)
    if not said.keys() & {"filename", "filename*"} and (
        typed is None or declared.startswith("text/")
    ):
        _check_misplaced("The form has a field", [said.get("name", "")])
        if _is_like_an_image(data):
            # Passed over, it would be missing among the answers, which go by their places.
            return RefusedRequestError(
                400, "A field of the form holds an image; send it as a file, with a filename."
            )
        return None
    # As a browser sends an input for files of which none was chosen.
    if said.get("filename") == "" and not data:
        return None
    try:
        if declared in (MEDIA_JSON, MEDIA_MULTIPART):
            raise RefusedRequestError(415, f"A part may not be {declared}; send the image itself.")
        check_content_type(declared)
        if headers.get("content-transfer-encoding", "").lower() == "base64":
            data = _from_base64(data)
    except RefusedRequestError as refused:
        return refused
    return Photograph(data=data, declared_type=declared)
