"""Reads what a caller sent: body, content type, custom attributes, wanted answer.

    >>> photograph = extract(body, "application/json")
    >>> options = parse_attributes("explain=gradcam,operating_point=high_sensitivity")

Everything here is about form, nothing about images; refusals carry their HTTP status.
"""

import base64
import json
import re
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
# A caller's own words come back in a refusal, but no more of them than tells which are meant.
_MOST_ECHOED: Final = 100
# The document is one long text and a few names around it. Each bracket costs the parser a
# hundred times its byte, so all that is not in a text is counted first.
_JSON_TEXT: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
# Some writers escape each "/" (one character in 64) and each end of line (one in 76).
_MOST_JSON_ESCAPES: Final = 1 / 16
_MOST_JSON_AROUND: Final = 256
_MOST_JSON_TEXTS: Final = 32
_JSON_SPACE: Final = b" \t\n\r"
_BASE64_SPACE: Final = b" \t\n\v\f\r"
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
    """Whether CSV is preferred: of the two types, the first that Accept names and allows wins."""
    for part in (accept or "").lower().split(","):
        bare, *parameters = (piece.strip() for piece in part.split(";"))
        if bare in (MEDIA_CSV, MEDIA_JSON) and not any(map(_is_zero_weight, parameters)):
            return bare == MEDIA_CSV
    return False


def _is_zero_weight(parameter: str) -> bool:
    """Whether a parameter of Accept is `q=0`, which means: not this one (RFC 9110, 12.4.2)."""
    name, _, value = (piece.strip() for piece in parameter.partition("="))
    return name == "q" and re.fullmatch(r"0(\.0{0,3})?", value) is not None


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
                f"Custom attribute {part.strip()[:_MOST_ECHOED]!r} is not known; known are "
                f"{', '.join(f'{known}=<value>' for known in ATTRIBUTES)}.",
            )
        if len(value) > _MOST_ECHOED:
            raise RefusedRequestError(
                400, f"The value of {name} has {len(value)} characters; {_MOST_ECHOED} may be sent."
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
        f"Content-Type {content_type[:_MOST_ECHOED]!r} is not accepted; accepted are "
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
            return Photograph(data=_from_base64(body), declared_type=None)
        return Photograph(data=body, declared_type=None)
    return Photograph(data=body, declared_type=content_type)


def _from_json(body: bytes) -> bytes:
    _check_size_around(body)
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise _not_json() from None
    # What is not ASCII becomes "?", which is no base64 either.
    return _from_base64(_find_image(document).encode("ascii", "replace"))


def _not_json() -> RefusedRequestError:
    return RefusedRequestError(400, f"The body is not JSON; send the image as {JSON_SHAPES}.")


def _check_size_around(body: bytes) -> None:
    """Raise 400 where the document is more than a text and its names, without parsing it."""
    if body.count(b"\\") > _MOST_JSON_AROUND + len(body) * _MOST_JSON_ESCAPES:
        raise RefusedRequestError(400, "The image in the JSON is not base64: it has too many \\.")
    around = texts = position = 0
    while around <= _MOST_JSON_AROUND and texts <= _MOST_JSON_TEXTS:
        start = body.find(b'"', position)
        outside = body[position : start if start >= 0 else len(body)]
        around += len(outside.translate(None, _JSON_SPACE))
        if start < 0:
            break
        text = _JSON_TEXT.match(body, start)
        if text is None:
            raise _not_json()
        texts += 1
        position = text.end()
    if around > _MOST_JSON_AROUND or texts > _MOST_JSON_TEXTS:
        raise RefusedRequestError(
            400, f"The JSON must be one image as base64 text and little else: {JSON_SHAPES}."
        )


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


def _from_base64(text: bytes) -> bytes:
    if text.startswith(b"data:"):
        text = text.partition(b",")[2]
    try:
        return base64.b64decode(text.translate(None, _BASE64_SPACE), validate=True)
    except ValueError:
        raise RefusedRequestError(400, "The image is not valid base64.") from None
