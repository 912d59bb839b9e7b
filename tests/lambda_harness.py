"""Events as Lambda receives them, written by the public formats, and the service behind them.

    >>> handler(function_url_event("POST", "/invocations", jpeg), None)

Sources: "Using API Gateway with Lambda" and "Invoking Lambda function URLs" of the AWS
documentation, payload formats 1.0 and 2.0.
"""

import base64
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from inference_image.lambda_handler import LambdaHandler
from tests.service_harness import TINY_MODEL, Reply

Event = dict[str, Any]


def function_url_event(
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
) -> Event:
    """Format 2.0 as a function URL sends it: lower-case header names, no prefix."""
    return _format_2(method, path, body, headers, stage="$default", domain="x.lambda-url.on.aws")


def http_api_event(
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    *,
    stage: str = "prod",
) -> Event:
    """Format 2.0 of an HTTP API: a named stage stands in front of the path."""
    event = _format_2(
        method,
        path if stage == "$default" else f"/{stage}{path}",
        body,
        headers,
        stage=stage,
        domain="abc.execute-api.eu-central-1.amazonaws.com",
    )
    event["routeKey"] = "ANY /{proxy+}"
    event["pathParameters"] = {"proxy": path.lstrip("/")}
    return event


def rest_api_event(
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    *,
    base_path: str = "",
) -> Event:
    """Format 1.0 of a REST API with a proxy resource; `base_path` is a custom domain's mapping."""
    named = {
        "Host": "abc.execute-api.eu-central-1.amazonaws.com",
        **_forwarded("X-"),
        **(headers or {}),
    }
    return {
        "resource": "/{proxy+}",
        "path": f"{base_path}{path}",
        "httpMethod": method,
        "headers": named,
        "multiValueHeaders": {name: [value] for name, value in named.items()},
        "queryStringParameters": None,
        "multiValueQueryStringParameters": None,
        "pathParameters": {"proxy": path.lstrip("/")},
        "stageVariables": None,
        "requestContext": {
            "accountId": "123456789012",
            "apiId": "abc",
            "httpMethod": method,
            "identity": {"sourceIp": "192.0.2.1", "userAgent": "agent", "accessKey": None},
            "path": f"/prod{path}",
            "protocol": "HTTP/1.1",
            "requestId": "c6af9ac6-7b61-11e6-9a41-93e8deadbeef",
            "resourcePath": "/{proxy+}",
            "stage": "prod",
        },
        **_body(body),
    }


def http_api_format_1_event(
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
) -> Event:
    """Format 1.0 of an HTTP API, which names its version; the stage is in the path."""
    event = rest_api_event(method, path, body, headers, base_path="/prod")
    event["version"] = "1.0"
    return event


def load_balancer_event(
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
) -> Event:
    """What an application load balancer sends to a Lambda target."""
    named = {**_forwarded("x-"), **{name.lower(): text for name, text in (headers or {}).items()}}
    return {
        "requestContext": {"elb": {"targetGroupArn": "arn:aws:elasticloadbalancing:eu:1:tg/a/b"}},
        "httpMethod": method,
        "path": path,
        "queryStringParameters": {},
        "headers": named,
        **_body(body),
    }


EVENTS: Mapping[str, Callable[..., Event]] = {
    "function URL": function_url_event,
    "HTTP API": http_api_event,
    "HTTP API, format 1.0": http_api_format_1_event,
    "REST API": rest_api_event,
    "load balancer": load_balancer_event,
}


def _format_2(
    method: str,
    path: str,
    body: bytes,
    headers: Mapping[str, str] | None,
    *,
    stage: str,
    domain: str,
) -> Event:
    named = {"host": domain, **_forwarded("x-")}
    return {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": "",
        "headers": named | {name.lower(): value for name, value in (headers or {}).items()},
        "requestContext": {
            "accountId": "123456789012",
            "apiId": domain.partition(".")[0],
            "domainName": domain,
            "domainPrefix": domain.partition(".")[0],
            "http": {
                "method": method,
                "path": path,
                "protocol": "HTTP/1.1",
                "sourceIp": "192.0.2.1",
                "userAgent": "agent",
            },
            "requestId": "JKJaXmPLvHcESHA=",
            "routeKey": "$default",
            "stage": stage,
            "time": "28/Nov/2026:19:03:58 +0000",
            "timeEpoch": 1795892638390,
        },
        **_body(body),
    }


def _forwarded(prefix: str) -> dict[str, str]:
    return {
        f"{prefix}Forwarded-For": "192.0.2.1",
        f"{prefix}Forwarded-Port": "443",
        f"{prefix}Forwarded-Proto": "https",
    }


def _body(body: bytes) -> dict[str, Any]:
    text = base64.b64encode(body).decode("ascii") if body else None
    return {"body": text, "isBase64Encoded": bool(body)}


def reply_of(answer: Mapping[str, Any]) -> Reply:
    """The HTTP answer that a gateway makes of what the handler returned."""
    body = answer.get("body") or ""
    encoded = base64.b64decode(body) if answer["isBase64Encoded"] else body.encode()
    headers = {name.lower(): value for name, value in (answer.get("headers") or {}).items()}
    return Reply(status=answer["statusCode"], headers=headers, body=encoded)


class InLambda:
    """The handler in this process, asked through events of one kind."""

    def __init__(
        self,
        make_event: Callable[..., Event] = function_url_event,
        *,
        model_dir: Path = TINY_MODEL,
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        self._make_event = make_event
        self._environment = {"DR_MODEL_DIR": str(model_dir), **(environment or {})}
        self._options = options

    def __enter__(self) -> Self:
        self.handler = LambdaHandler(environment=self._environment, **self._options)
        return self

    def __exit__(self, *_: object) -> None:
        self.handler.close()

    def wait_ready(self) -> None:
        """Nothing to wait for: a handler that exists is ready."""

    def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        return reply_of(self.handler(self._make_event(method, path, body, headers), None))
