"""The service's routes as a FastAPI application: OpenAPI document (3.1), 404 and 405.

A test compares the document with the answers that the contract suite sees, so that every path,
status, media type and header which the service answers is in it.

Imported for the first request that the routes of `http_app` do not answer.
"""

from collections.abc import Awaitable, Callable, Mapping
from types import NoneType, UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints, is_typeddict

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from inference_image.contract import (
    ACCEPTED_IMAGE_TYPES,
    CUSTOM_ATTRIBUTES_HEADER,
    EXECUTION_PARAMETERS_PATH,
    INVOCATIONS_PATH,
    MEDIA_CSV,
    MEDIA_JSON,
    MEDIA_MULTIPART,
    MEDIA_OPAQUE,
    MEDIA_PROBLEM,
    METRICS_PATH,
    NOT_A_DEVICE,
    NOT_ASSESSED,
    OPENAPI_PATH,
    PING_PATH,
    PROBLEM_TITLES,
    TITLES,
    ExecutionParameters,
    Prediction,
    Problem,
)
from inference_image.requests import ATTRIBUTES

_SCALARS: Final = {
    float: {"type": "number"},
    int: {"type": "integer"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    NoneType: {"type": "null"},
}
_BASE64: Final = {
    "type": "string",
    "contentEncoding": "base64",
    "description": (
        "Base64 of an image file of an accepted type, or a `data:<type>;base64,` URL of one, whose "
        "type must be the file's."
    ),
}
# They go into a header: a body in which one of them stands is refused.
_NO_OPTIONS: Final[dict[str, Any]] = dict.fromkeys(ATTRIBUTES, False)
_ONE: Final = {
    "anyOf": [
        _BASE64,
        *(
            {
                "type": "object",
                "required": [name],
                "properties": {name: _BASE64, other: False, **_NO_OPTIONS},
            }
            for name, other in (("b64", "image"), ("image", "b64"))
        ),
    ]
}
_MORE: Final = {"type": "array", "minItems": 1, "items": _ONE}
_ONE_OR_MORE: Final = {"anyOf": [_ONE, _MORE]}
_JSON_BODY: Final = {
    "anyOf": [
        {
            "oneOf": [
                {
                    "type": "object",
                    "required": [name],
                    "properties": {name: _ONE_OR_MORE, **_NO_OPTIONS},
                }
                for name in ("image", "instances", "inputs")
            ]
        },
        # Without a name around them.
        _BASE64,
        _MORE,
    ]
}
_FORM: Final = {
    "type": "object",
    "description": (
        "Each file is an image, whatever its name. Text fields and files that nobody chose are "
        "passed over, but an option among the fields is refused: options go into a header."
    ),
    "properties": _NO_OPTIONS,
    "additionalProperties": {"type": "string", "contentMediaType": "application/octet-stream"},
}
_REQUEST_ID: Final[dict[str, Any]] = {
    "X-Request-Id": {
        "required": True,
        "description": "The caller's id where it was usable, else a new one.",
        "schema": {"type": "string"},
    }
}
_RETRY_AFTER: Final[dict[str, Any]] = {
    "description": "Seconds; also in the body as `retry_after_s`, since SageMaker drops headers.",
    "schema": {"type": "integer", "minimum": 1},
}
# Status -> whether the time to wait is always there. A model that cannot be loaded has none.
_RETRIED: Final = {429: True, 503: False}
_CLOSED: Final[dict[str, Any]] = {
    "Connection": {
        "description": "`close` where the body did not arrive in time.",
        "schema": {"type": "string"},
    }
}
# nginx, and the process that waits for its workers, add an id to all that they answer themselves.
_PROXY_ID: Final[dict[str, Any]] = {
    "X-Request-Id": {
        "description": "Where it is not a worker that answers: none is ready.",
        "schema": {"type": "string"},
    }
}
# Of any path and method.
_BEYOND_PATHS: Final = {404: "NotFound", 405: "MethodNotAllowed", 503: "NotReady"}
_PARAMETERS: Final = [
    {
        "name": CUSTOM_ATTRIBUTES_HEADER,
        "in": "header",
        "required": False,
        "description": (
            "`name=value` pairs: `explain=gradcam`, and with it `explain_format=jpeg` or `png` and "
            "`explain_px=<side of the heat map, 32 to 1024>`; `operating_point=<name>`."
        ),
        "schema": {"type": "string"},
        "example": "explain=gradcam,explain_format=png,operating_point=high_sensitivity",
    },
    {
        "name": "X-Request-Id",
        "in": "header",
        "required": False,
        "description": "A UUID, or 32 to 64 hexadecimal digits; returned, and noted in the log.",
        "schema": {"type": "string"},
    },
]


def schema_of(kind: Any) -> dict[str, Any]:
    """JSON Schema of a type of the wire format: scalars, lists, unions and TypedDicts.

    Pydantic could do it, but refuses `typing.TypedDict` on Python 3.11, and the wire format
    needs the standard library only.
    """
    if kind in _SCALARS:
        return dict(_SCALARS[kind])
    origin = get_origin(kind)
    if origin is list:
        return {"type": "array", "items": schema_of(get_args(kind)[0])}
    if origin is UnionType:
        return {"anyOf": [schema_of(part) for part in get_args(kind)]}
    if not is_typeddict(kind):
        raise TypeError(f"{kind!r} is no type of the wire format")
    return {
        "type": "object",
        "description": (kind.__doc__ or "").strip().split("\n\n")[0],
        "required": sorted(kind.__required_keys__),
        "properties": {name: schema_of(part) for name, part in get_type_hints(kind).items()},
    }


def documented_app(
    *,
    ping: Callable[[Request], Awaitable[Response]],
    invocations: Callable[[Request], Awaitable[Response]],
    execution_parameters: Callable[[Request], Awaitable[Response]],
    metrics: Callable[[Request], Awaitable[Response]] | None,
    problem: Callable[..., Response],
) -> FastAPI:
    """A FastAPI app of the routes; refusals are `application/problem+json`.

    `metrics` is None where the service does not show them.
    """
    app = FastAPI(
        title="Diabetic retinopathy inference",
        version="1",
        description=(
            f"{NOT_A_DEVICE} {NOT_ASSESSED} Another path is answered 404 and another method 405, "
            "as `components.responses` says; where nobody can answer yet, or any more, also 503. "
            "What is no HTTP at all is answered 400 and may have no `X-Request-Id`; a fault of the "
            "service itself is 500 on any path."
        ),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        # A redirect would go to whatever host the caller's own header names.
        redirect_slashes=False,
    )
    app.add_api_route(
        PING_PATH,
        ping,
        methods=["GET"],
        operation_id="ping",
        summary="Whether predictions can be made",
        response_class=Response,
        responses={
            200: {
                "description": "A warm-up prediction has succeeded.",
                "content": {
                    MEDIA_JSON: {
                        "schema": {
                            "type": "object",
                            "required": ["status"],
                            "properties": {"status": {"const": "ready"}},
                        }
                    }
                },
            },
            503: _refusal(503, _PROXY_ID),
        },
    )
    app.add_api_route(
        EXECUTION_PARAMETERS_PATH,
        execution_parameters,
        methods=["GET"],
        operation_id="executionParameters",
        summary="How Batch Transform should send its images",
        response_class=Response,
        responses={
            200: {
                "description": "Read by the platform before the first image of a job.",
                "content": {MEDIA_JSON: {"schema": schema_of(ExecutionParameters)}},
            },
            503: _refusal(503, _PROXY_ID),
        },
    )
    if metrics is not None:
        _add_metrics(app, metrics)
    _add_document(app)
    images = {"schema": {"type": "string", "format": "binary"}}
    one, refused = schema_of(Prediction), schema_of(Problem)
    answers = {
        "anyOf": [
            one,
            {"type": "array", "minItems": 2, "items": {"anyOf": [one, refused]}},
            refused,
        ]
    }
    app.add_api_route(
        INVOCATIONS_PATH,
        invocations,
        methods=["POST"],
        operation_id="grade",
        summary="Grade fundus photographs",
        description=(
            "One image is answered with an object. Several, in JSON or in a form, are answered "
            "with a list in the order sent: each entry is a grade or a problem of its own. "
            "Under Batch Transform, one image that is refused is a problem with status 200."
        ),
        response_class=Response,
        responses={
            200: {
                "description": "A grade, or `gradable: false` with reasons.",
                "headers": _REQUEST_ID,
                "content": {
                    MEDIA_JSON: {"schema": answers},
                    MEDIA_CSV: {
                        "schema": {
                            "type": "string",
                            "description": (
                                "One row for each image, without header: probabilities, grade, "
                                "P(referable), referable, gradable. Empty cells where unknown; "
                                "all empty for a problem."
                            ),
                        }
                    },
                },
            },
            **{status: _refusal(status) for status in PROBLEM_TITLES},
        },
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {
                    **dict.fromkeys((*ACCEPTED_IMAGE_TYPES, *MEDIA_OPAQUE), images),
                    MEDIA_JSON: {"schema": _JSON_BODY},
                    MEDIA_MULTIPART: {"schema": _FORM},
                },
            },
            "parameters": _PARAMETERS,
        },
    )

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        return problem(
            error.status_code,
            f"There is no {request.method[:20]} {request.url.path[:100]} here; the service has "
            f"GET {PING_PATH} and POST {INVOCATIONS_PATH}.",
            headers={**(error.headers or {}), **_allowed(error)},
        )

    described = app.openapi

    def complete() -> dict[str, Any]:
        """FastAPI's document, with the answers that belong to no path."""
        document = described()
        allow = {"Allow": {"required": True, "schema": {"type": "string"}}}
        added = {405: allow, 503: _PROXY_ID}
        document["components"] = {
            "responses": {
                name: _refusal(status, added.get(status, {}))
                for status, name in _BEYOND_PATHS.items()
            }
        }
        for operations in document["paths"].values():
            if "get" in operations:
                operations["head"] = _head(operations["get"])
        return document

    app.openapi = complete  # type: ignore[method-assign]
    return app


def _add_metrics(app: FastAPI, metrics: Callable[[Request], Awaitable[Response]]) -> None:
    app.add_api_route(
        METRICS_PATH,
        metrics,
        methods=["GET"],
        operation_id="metrics",
        summary="Counts and times of all workers, for Prometheus",
        response_class=Response,
        responses={
            200: {
                "description": "Text exposition format 0.0.4.",
                "content": {"text/plain": {"schema": {"type": "string"}}},
            },
            503: _refusal(503, _PROXY_ID),
        },
    )


def _add_document(app: FastAPI) -> None:
    async def document(_: Request) -> Response:
        return JSONResponse(app.openapi())

    app.add_api_route(
        OPENAPI_PATH,
        document,
        methods=["GET"],
        operation_id="document",
        summary="This document",
        response_class=Response,
        responses={
            200: {
                "description": "OpenAPI 3.1.",
                "content": {
                    MEDIA_JSON: {
                        "schema": {
                            "type": "object",
                            "required": ["openapi", "info", "paths", "components"],
                        }
                    }
                },
            },
            503: _refusal(503, _PROXY_ID),
        },
    )


def _allowed(error: HTTPException) -> dict[str, str]:
    """`Allow` with HEAD, which is answered wherever GET is."""
    allow = (error.headers or {}).get("Allow", "")
    return {"Allow": f"{allow}, HEAD"} if "GET" in allow.split(", ") else {}


def _head(get: Mapping[str, Any]) -> dict[str, Any]:
    """The operation HEAD where there is GET: the same header, and no body."""
    return {
        "summary": "The header of GET's answer",
        "operationId": f"{get['operationId']}Head",
        "responses": {
            status: {name: part for name, part in response.items() if name != "content"}
            for status, response in get["responses"].items()
        },
    }


def _refusal(status: int, headers: dict[str, Any] = _REQUEST_ID) -> dict[str, Any]:
    schema = schema_of(Problem)
    schema["properties"] |= {
        "type": {"const": "about:blank"},
        "title": {"const": TITLES[status]},
        "status": {"const": status},
    }
    if status in _RETRIED:
        always = _RETRIED[status]
        headers = {**headers, "Retry-After": {**_RETRY_AFTER, "required": always}}
        schema["required"] = [*schema["required"], *(["retry_after_s"] if always else [])]
    if status == 400:
        headers = {**headers, **_CLOSED}
    return {
        "description": TITLES[status],
        "headers": headers,
        "content": {MEDIA_PROBLEM: {"schema": schema}},
    }
