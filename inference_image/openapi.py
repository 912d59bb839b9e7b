"""The service's routes as a FastAPI application: OpenAPI document, 404 and 405.

Imported for the first request that the two hot routes of `http_app` do not answer.
"""

from collections.abc import Awaitable, Callable
from types import NoneType, UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints, is_typeddict

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from inference_image.contract import (
    ACCEPTED_IMAGE_TYPES,
    CUSTOM_ATTRIBUTES_HEADER,
    INVOCATIONS_PATH,
    MEDIA_CSV,
    MEDIA_JSON,
    MEDIA_OPAQUE,
    MEDIA_PROBLEM,
    NOT_A_DEVICE,
    NOT_ASSESSED,
    PING_PATH,
    PROBLEM_TITLES,
    Prediction,
    Problem,
)

_PING_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "A warm-up prediction has succeeded."},
    503: {"description": PROBLEM_TITLES[503]},
}
_SCALARS: Final = {
    float: {"type": "number"},
    int: {"type": "integer"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    NoneType: {"type": "null"},
}
_BASE64: Final = {"type": "string", "contentEncoding": "base64"}
_JSON_BODY: Final = {
    "oneOf": [
        {"type": "object", "required": ["image"], "properties": {"image": _BASE64}},
        {
            "type": "object",
            "required": ["instances"],
            "properties": {
                "instances": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": 1,
                    "items": {
                        "type": "object",
                        "required": ["b64"],
                        "properties": {"b64": _BASE64},
                    },
                }
            },
        },
        {"type": "object", "required": ["inputs"], "properties": {"inputs": _BASE64}},
    ]
}


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
        "required": sorted(kind.__required_keys__),
        "properties": {name: schema_of(part) for name, part in get_type_hints(kind).items()},
    }


def documented_app(
    *,
    ping: Callable[[Request], Awaitable[Response]],
    invocations: Callable[[Request], Awaitable[Response]],
    problem: Callable[..., Response],
) -> FastAPI:
    """A FastAPI app of the two routes; refusals are `application/problem+json`."""
    app = FastAPI(
        title="Diabetic retinopathy inference",
        version="1",
        description=f"{NOT_A_DEVICE} {NOT_ASSESSED}",
        docs_url=None,
        redoc_url=None,
        # A redirect would go to whatever host the caller's own header names.
        redirect_slashes=False,
    )
    app.add_api_route(
        PING_PATH,
        ping,
        methods=["GET"],
        summary="Whether predictions can be made",
        response_class=Response,
        responses=_PING_RESPONSES,
    )
    images = {"schema": {"type": "string", "format": "binary"}}
    app.add_api_route(
        INVOCATIONS_PATH,
        invocations,
        methods=["POST"],
        summary="Grade one fundus photograph",
        response_class=Response,
        responses={
            200: {
                "description": "A grade, or `gradable: false` with reasons.",
                "content": {
                    MEDIA_JSON: {"schema": schema_of(Prediction)},
                    MEDIA_CSV: {"schema": {"type": "string"}},
                },
            },
            **{
                status: {
                    "description": title,
                    "content": {MEDIA_PROBLEM: {"schema": schema_of(Problem)}},
                }
                for status, title in PROBLEM_TITLES.items()
            },
        },
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {
                    **dict.fromkeys((*ACCEPTED_IMAGE_TYPES, *MEDIA_OPAQUE), images),
                    MEDIA_JSON: {"schema": _JSON_BODY},
                },
            },
            "parameters": [
                {
                    "name": CUSTOM_ATTRIBUTES_HEADER,
                    "in": "header",
                    "required": False,
                    "schema": {"type": "string"},
                    "example": "explain=gradcam,operating_point=high_sensitivity",
                }
            ],
        },
    )

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        return problem(
            error.status_code,
            f"There is no {request.method[:20]} {request.url.path[:100]} here; the service has "
            f"GET {PING_PATH} and POST {INVOCATIONS_PATH}.",
            headers=dict(error.headers or {}),
        )

    return app
