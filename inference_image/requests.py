"""Reads what a caller sent: body, content type, custom attributes, wanted answer.

    >>> photographs = extract(body, "application/json", most=16)
    >>> options = parse_attributes("explain=gradcam,operating_point=high_sensitivity")

Everything here is about form, nothing about images; refusals carry their HTTP status. A fault of
the whole body is raised; a fault of one image among several takes that image's place, so that
the others are answered.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from inference_image.contract import (
    ACCEPTED_CONTENT_TYPES,
    EXPLAIN_ATTRIBUTE,
    MEDIA_CSV,
    MEDIA_JSON,
    MEDIA_MULTIPART,
    MEDIA_OPAQUE,
    OPERATING_POINT_ATTRIBUTE,
)

ATTRIBUTES: Final = (EXPLAIN_ATTRIBUTE, OPERATING_POINT_ATTRIBUTE)
JSON_SHAPES: Final = '{"image": "<base64>"}, {"instances": [{"b64": "<base64>"}]} or {"inputs": …}'
# How base64 of a JPEG, PNG, TIFF and WebP begins: some clients send that under an opaque type.
_BASE64_STARTS: Final = (b"/9j/", b"iVBORw0KGgo", b"SUkq", b"TU0A", b"UklGR")
# RFC 2046 allows 70 characters; a part's headers take some hundred bytes.
_LONGEST_BOUNDARY: Final = 70
_MOST_PART_HEADER_BYTES: Final = 8192


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
    """Whether CSV is preferred: the first of the two types that Accept names wins."""
    for part in (accept or "").lower().split(","):
        bare = part.partition(";")[0].strip()
        if bare in (MEDIA_CSV, MEDIA_JSON):
            return bare == MEDIA_CSV
    return False


def parse_attributes(header: str | None) -> Options:
    """`name=value` pairs separated by commas or semicolons.

    Raises:
        RefusedRequestError: 400, for an attribute that is not known or has no value.
    """
    values: dict[str, str] = {}
    for part in (header or "").replace(";", ",").split(","):
        if not part.strip():
            continue
        name, separator, value = (piece.strip() for piece in part.partition("="))
        if name not in ATTRIBUTES or not separator or not value:
            raise RefusedRequestError(
                400,
                f"Custom attribute {part.strip()[:60]!r} is not known; known are "
                f"{', '.join(f'{known}=<value>' for known in ATTRIBUTES)}.",
            )
        values[name] = value
    return Options(
        explain=values.get(EXPLAIN_ATTRIBUTE),
        operating_point=values.get(OPERATING_POINT_ATTRIBUTE),
    )


def check_content_type(content_type: str) -> None:
    """Raise 415 for a type that promises neither images nor JSON nor a form."""
    if content_type in ACCEPTED_CONTENT_TYPES or content_type.startswith("image/"):
        return
    raise RefusedRequestError(
        415,
        f"Content-Type {content_type[:60]!r} is not accepted; accepted are "
        f"{', '.join(ACCEPTED_CONTENT_TYPES)}.",
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
        One entry for each image: its bytes, or why it cannot be read.

    Raises:
        RefusedRequestError: 400 where the body is malformed, 413 for too many images, 415 for
            another type.
    """
    check_content_type(content_type)
    if content_type == MEDIA_JSON:
        return _from_json(body, most)
    if content_type == MEDIA_MULTIPART:
        return _from_multipart(body, boundary, most)
    if content_type in MEDIA_OPAQUE:
        # Seen in the field: JSON or bare base64 under application/x-image.
        start = body[:16].lstrip()
        if start.startswith((b"{", b'"')):
            return _from_json(body, most)
        if start.startswith(_BASE64_STARTS):
            return [Photograph(data=_from_base64(body.decode("latin-1")), declared_type=None)]
        return [Photograph(data=body, declared_type=None)]
    return [Photograph(data=body, declared_type=content_type)]


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
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise RefusedRequestError(
            400, f"The body is not JSON; send the image as {JSON_SHAPES}."
        ) from None
    values = _find_images(document)
    _check_count(len(values), most)
    found: list[Photograph | RefusedRequestError] = []
    for value in values:
        try:
            found.append(Photograph(data=_from_base64(_text_of(value)), declared_type=None))
        except RefusedRequestError as refused:
            found.append(refused)
    return found


def _find_images(document: Any) -> list[Any]:
    """The values that stand for images: of one of the three shapes, or a bare text."""
    value = document
    if isinstance(document, Mapping):
        keys = [key for key in ("image", "instances", "inputs") if key in document]
        if len(keys) != 1:
            raise RefusedRequestError(
                400, f"The JSON object must have exactly one of these: {JSON_SHAPES}."
            )
        value = document[keys[0]]
    values = value if isinstance(value, list) else [value]
    if not values:
        raise RefusedRequestError(400, "The JSON holds an empty list of images.")
    return values


def _text_of(value: Any) -> str:
    if isinstance(value, Mapping) and len(value) == 1:
        value = value.get("b64", value.get("image"))
    if not isinstance(value, str):
        raise RefusedRequestError(
            400, f"The image in the JSON must be base64 text, as {JSON_SHAPES}."
        )
    return value


def _from_base64(text: str) -> bytes:
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise RefusedRequestError(400, "The image is not valid base64.") from None


def _from_multipart(
    body: bytes, boundary: str | None, most: int
) -> list[Photograph | RefusedRequestError]:
    """The parts of a form (RFC 7578, RFC 2046 5.1): each is an image, whatever its name.

    The body is in memory and bounded already, so that it is cut rather than streamed.
    """
    if boundary is None:
        raise RefusedRequestError(
            400, "The multipart Content-Type has no usable boundary; send `; boundary=...`."
        )
    delimiter = b"\r\n--" + boundary.encode("latin-1", errors="replace")
    # The first delimiter may stand at the very start; each other one begins with a line break.
    pieces = (b"\r\n" + body).split(delimiter, most + 2)
    closed = [index for index, piece in enumerate(pieces) if index and piece.startswith(b"--")]
    parts = pieces[1 : closed[0]] if closed else pieces[1:]
    _check_count(len(parts), most)
    if not closed:
        raise RefusedRequestError(
            400, "The multipart body does not end with its boundary: it is cut or malformed."
        )
    if not parts:
        raise RefusedRequestError(400, "The multipart body holds no image.")
    return [_from_part(part) for part in parts]


def _from_part(part: bytes) -> Photograph | RefusedRequestError:
    # After the delimiter comes white space and a line break, then headers, then an empty line.
    head, separator, data = part.partition(b"\r\n\r\n")
    if not separator or len(head) > _MOST_PART_HEADER_BYTES:
        raise RefusedRequestError(400, "A part of the multipart body has no end of its headers.")
    headers = {}
    for line in head.decode("latin-1").split("\r\n"):
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    if "content-type" not in headers and "filename" not in headers.get("content-disposition", ""):
        raise RefusedRequestError(
            400,
            "A part of the multipart body is a text field; each part must be an image, and "
            "options go into the header of custom attributes.",
        )
    declared = media_type(headers.get("content-type"))
    try:
        if declared in (MEDIA_JSON, MEDIA_MULTIPART):
            raise RefusedRequestError(415, f"A part may not be {declared}; send the image itself.")
        check_content_type(declared)
        if headers.get("content-transfer-encoding", "").lower() == "base64":
            data = _from_base64(data.decode("latin-1"))
    except RefusedRequestError as refused:
        return refused
    return Photograph(data=data, declared_type=declared)
