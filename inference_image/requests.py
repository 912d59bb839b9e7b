"""Reads what a caller sent: body, content type, custom attributes, wanted answer.

    >>> photograph = extract(body, "application/json")
    >>> options = parse_attributes("explain=gradcam,operating_point=high_sensitivity")

Everything here is about form, nothing about images; refusals carry their HTTP status.
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
    MEDIA_OPAQUE,
    OPERATING_POINT_ATTRIBUTE,
)

ATTRIBUTES: Final = (EXPLAIN_ATTRIBUTE, OPERATING_POINT_ATTRIBUTE)
JSON_SHAPES: Final = '{"image": "<base64>"}, {"instances": [{"b64": "<base64>"}]} or {"inputs": …}'
# How base64 of a JPEG and of a PNG begins: some clients send that under an opaque type.
_BASE64_STARTS: Final = (b"/9j/", b"iVBORw0KGgo")


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
    """Raise 415 for a type that promises neither an image nor JSON."""
    if content_type in ACCEPTED_CONTENT_TYPES or content_type.startswith("image/"):
        return
    raise RefusedRequestError(
        415,
        f"Content-Type {content_type[:60]!r} is not accepted; accepted are "
        f"{', '.join(ACCEPTED_CONTENT_TYPES)}.",
    )


def extract(body: bytes, content_type: str) -> Photograph:
    """The image of a request.

    Args:
        body: the whole body.
        content_type: as `media_type` returns it.

    Raises:
        RefusedRequestError: 400 where JSON or base64 is malformed, 415 for another type.
    """
    check_content_type(content_type)
    if content_type == MEDIA_JSON:
        return Photograph(data=_from_json(body), declared_type=None)
    if content_type in MEDIA_OPAQUE:
        # Seen in the field: JSON or bare base64 under application/x-image.
        start = body[:16].lstrip()
        if start.startswith((b"{", b'"')):
            return Photograph(data=_from_json(body), declared_type=None)
        if start.startswith(_BASE64_STARTS):
            return Photograph(data=_from_base64(body.decode("latin-1")), declared_type=None)
        return Photograph(data=body, declared_type=None)
    return Photograph(data=body, declared_type=content_type)


def _from_json(body: bytes) -> bytes:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise RefusedRequestError(
            400, f"The body is not JSON; send the image as {JSON_SHAPES}."
        ) from None
    return _from_base64(_find_image(document))


def _find_image(document: Any) -> str:
    value = document
    if isinstance(document, dict):
        present = [key for key in ("image", "instances", "inputs") if key in document]
        if len(present) != 1:
            raise RefusedRequestError(400, f"The JSON must have exactly one of {JSON_SHAPES}.")
        value = document[present[0]]
    if isinstance(value, list):
        if len(value) != 1:
            raise RefusedRequestError(
                400, f"The JSON holds {len(value)} images; one request carries one image."
            )
        value = value[0]
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
