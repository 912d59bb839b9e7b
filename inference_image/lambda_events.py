"""Reads the events in which Lambda hands over an HTTP request.

    >>> request = read_event(event, base_path="")
    >>> request.event["requestContext"]["http"]["path"], request.refusal
    ('/invocations', None)

Function URLs and HTTP APIs send payload format 2.0, REST APIs (and HTTP APIs that ask for it)
format 1.0; an application load balancer sends something close to 1.0. Two things go wrong
between a caller and the service in the field, and both are settled here: a prefix that the
gateway leaves in front of the path, and an image that a gateway turned into text.

Formats: https://docs.aws.amazon.com/apigateway/latest/developerguide/http-api-develop-integrations-lambda.html
and .../set-up-lambda-proxy-integrations.html, checked 2026-11-28.
"""

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from inference_image.contract import INVOCATIONS_PATH, MEDIA_JSON, PING_PATH
from inference_image.requests import media_type

# A synchronous invocation takes 6 MiB (Lambda says "must be smaller than 6291456 bytes"), event
# and base64 included: https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html,
# checked 2026-11-28. The 10 MB of API Gateway never come into play.
PAYLOAD_LIMIT_BYTES: Final = 6 * 1024 * 1024
# What an event holds beside the body. API Gateway allows 10,240 bytes of headers, which a REST
# event carries twice.
ENVELOPE_BYTES: Final = 32 * 1024
# Four bytes of base64 carry three.
MAX_IMAGE_BYTES: Final = (PAYLOAD_LIMIT_BYTES - ENVELOPE_BYTES) // 4 * 3

# How JPEG, PNG and anything whose first byte is no character begin once they were decoded as
# UTF-8 (U+FFFD replaces what does not fit) or as Latin-1.
_TEXT_OF_IMAGES: Final = ("\ufffd", "\u00ff\u00d8", "\u0089PNG")
_BINARY_TYPES: Final = ("image/", "multipart/", "application/octet-stream", "application/dicom")
_OPAQUE: Final = "application/x-image"


class UnknownEventError(ValueError):
    """The event is not an HTTP request. Its text is one sentence for a person."""


@dataclass(frozen=True, kw_only=True)
class LambdaRequest:
    """An event with the service's own path and its body as bytes.

    `refusal` is one sentence where the body cannot be used; the body is then empty. `body_bytes`
    is its size as it can be used, else as it arrived.
    """

    event: dict[str, Any]
    refusal: str | None
    body_bytes: int


def read_event(event: Any, *, base_path: str) -> LambdaRequest:
    """Check an event and undo what the gateway did to its path and body.

    Args:
        event: as the Lambda runtime decoded it; it is not changed.
        base_path: prefix that the gateway leaves in front of the path, or "".

    Raises:
        UnknownEventError: the event is no HTTP request.
    """
    context = event.get("requestContext") if isinstance(event, Mapping) else None
    if not isinstance(context, Mapping):
        raise UnknownEventError(_NOT_HTTP)
    http = context.get("http")
    own, refusal = _checked(event)
    if isinstance(http, Mapping) and _texts(http.get("method"), http.get("path")):
        # The adapter goes by these, and by the load balancer's mark before them.
        kept = {name: value for name, value in context.items() if name != "elb"}
        path = own_path(own, http["path"], base_path=base_path)
        own["version"] = "2.0"
        own["requestContext"] = {**kept, "http": {"sourceIp": None, **http, "path": path}}
    elif _texts(event.get("httpMethod"), event.get("path")):
        own["path"] = own_path(own, event["path"], base_path=base_path)
        if "elb" not in context:
            identity = context.get("identity")
            own["version"] = "1.0"
            own["requestContext"] = {
                **context,
                "identity": identity if isinstance(identity, Mapping) else {},
            }
    else:
        raise UnknownEventError(_NOT_HTTP)
    body = b""
    if refusal is None:
        body, refusal = _body_of(own)
    body_bytes = len(body)
    if refusal is not None and isinstance(event.get("body"), str):
        body_bytes = len(event["body"].encode("utf-8", "surrogatepass"))
    # Bytes pass through the adapter as they are.
    own.update(body=body, isBase64Encoded=False)
    return LambdaRequest(event=own, refusal=refusal, body_bytes=body_bytes)


def _texts(*values: Any) -> bool:
    return all(isinstance(value, str) for value in values)


def _is_named_texts(value: Any) -> bool:
    return isinstance(value, Mapping) and _texts(*value.values())


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and _texts(*value)


def _is_named_lists(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(_is_list_of_texts, value.values()))


# Parts of an event, what each is where it is not null, and how to see that.
_PARTS: Final[tuple[tuple[str, str, Callable[[Any], bool]], ...]] = (
    ("headers", "texts by name", _is_named_texts),
    ("multiValueHeaders", "lists of texts by name", _is_named_lists),
    ("queryStringParameters", "texts by name", _is_named_texts),
    ("multiValueQueryStringParameters", "lists of texts by name", _is_named_lists),
    ("rawQueryString", "a text", _texts),
    ("cookies", "a list of texts", _is_list_of_texts),
    ("pathParameters", "texts by name", _is_named_texts),
    ("isBase64Encoded", "true or false", lambda value: isinstance(value, bool)),
    ("body", "text or base64", _texts),
)


def _checked(event: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    """A copy without what is null or not as it must be; and a sentence about the latter.

    Gateways send these parts so. Whoever writes an event by hand, or through another service, may
    not, and the adapter would fail on it.
    """
    own = dict(event)
    faults = []
    for name, kind, is_so in _PARTS:
        value = own.get(name)
        if value is None or not is_so(value):
            own.pop(name, None)
        if value is not None and name not in own:
            faults.append(f"its {name} must be {kind}")
    # A load balancer sends either kind of headers.
    if not own.get("multiValueHeaders"):
        own.pop("multiValueHeaders", None)
        own.setdefault("headers", {})
    return own, f"The event is not as a gateway sends it: {'; '.join(faults)}." if faults else None


_NOT_HTTP: Final = (
    "this function answers HTTP requests of a function URL or of API Gateway; the event is none "
    "(an API's Lambda integration must be of the type proxy)"
)


def own_path(event: Mapping[str, Any], path: str, *, base_path: str) -> str:
    """The path as the service knows it.

    What may stand in front of it: the stage (HTTP APIs, and custom domains whose mapping names
    no stage) and the mapping's own path (REST APIs with a custom domain). The configured
    prefix goes first, then what a greedy route (`{proxy+}`) did not capture, then the stage.
    Only whole segments are removed.
    """
    if base_path and _begins(path, base_path):
        path = path[len(base_path) :] or "/"
    captured = (event.get("pathParameters") or {}).get("proxy")
    if captured is not None and path.endswith(f"/{captured}"):
        path = f"/{captured}"
    stage = event["requestContext"].get("stage")
    # A REST API's path never has the stage in front of it, so that a stage may be named as one of
    # the service's own paths are.
    own = path in (INVOCATIONS_PATH, PING_PATH)
    if isinstance(stage, str) and stage and not own and _begins(path, f"/{stage}"):
        path = path[len(stage) + 1 :] or "/"
    return path


def _begins(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(f"{prefix}/")


def _body_of(event: Mapping[str, Any]) -> tuple[bytes, str | None]:
    body = event.get("body") or ""
    if event.get("isBase64Encoded"):
        try:
            return base64.b64decode(body, validate=True), None
        except (binascii.Error, ValueError):
            return b"", "The event's body is marked as base64 and is not."
    if _was_bytes(body, _content_type(event)):
        return b"", _hint(event)
    return body.encode("utf-8", "surrogatepass"), None


def _was_bytes(body: str, content_type: str) -> bool:
    """Whether a text body was binary before a gateway decoded it: that cannot be undone."""
    if body.startswith(_TEXT_OF_IMAGES):
        return True
    binary = content_type.startswith(_BINARY_TYPES) or content_type == _OPAQUE
    # JSON and base64 under such a type are ASCII; the bytes of an image never are.
    return binary and not body.isascii()


def _hint(event: Mapping[str, Any]) -> str:
    damaged = "The image arrived as text, which has damaged it"
    if "http" in event["requestContext"]:
        return (
            f"{damaged}; send it with its own Content-Type, such as image/jpeg: bodies declared "
            f"as text or {MEDIA_JSON} are not passed on as bytes."
        )
    return (
        f"{damaged}; add image/*, application/octet-stream, application/x-image and "
        "multipart/form-data to the binary media types of the API (binaryMediaTypes) and deploy "
        'it again, or send JSON {"image": "<base64>"}.'
    )


def _content_type(event: Mapping[str, Any]) -> str:
    for name, value in (event.get("headers") or {}).items():
        if name.lower() == "content-type":
            return media_type(value)
    for name, values in (event.get("multiValueHeaders") or {}).items():
        if name.lower() == "content-type" and values:
            return media_type(values[-1])
    return media_type(None)
