"""Lambda functions as targets: through their signed URL, and through the `Invoke` call.

    >>> target = FunctionUrlTarget("https://….lambda-url.us-east-1.on.aws", region="us-east-1")

The URL is what a clinic's software would call. `Invoke` goes around the HTTP front and brings the
function's REPORT line with each answer: what was billed, and the init phase of a cold start.
"""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from constructs_lib.limits import AMD64, ARM64
from constructs_lib.stage_names import FUNCTION_ALIAS
from dr_experiments.targets import (
    CONNECT_TIMEOUT_S,
    MODE_LAMBDA,
    OUTCOME_REFUSED,
    OUTCOME_SERVER_ERROR,
    OUTCOME_TIMEOUT,
    OUTCOME_UNREACHABLE,
    TIMEOUT_S,
    Payload,
    Reply,
    TargetDescription,
    TargetError,
    client_error,
    exchange,
    http_url,
    outcome_of_status,
    platform_at,
    problem_detail,
)
from dr_experiments.transport import HttpTransport
from inference_image.contract import (
    CUSTOM_ATTRIBUTES_HEADER,
    INVOCATIONS_PATH,
    MEDIA_JSON,
)

# "Lambda quotas": request and response payload of a synchronous invocation, read 2026-11-28.
_ARCHITECTURES: Final = {"x86_64": AMD64, "arm64": ARM64}
MAX_EVENT_BYTES: Final = 6 * 1024**2


@dataclass(frozen=True, kw_only=True)
class LambdaReport:
    """The REPORT line of one invocation; a field is None where the line does not have it."""

    request_id: str
    duration_ms: float | None
    billed_duration_ms: float | None
    init_duration_ms: float | None
    memory_size_mib: float | None
    max_memory_mib: float | None

    @property
    def platform_ms(self) -> dict[str, float]:
        """The times that are known, for a record."""
        named = {
            "duration_ms": self.duration_ms,
            "billed_duration_ms": self.billed_duration_ms,
            "init_duration_ms": self.init_duration_ms,
        }
        return {name: value for name, value in named.items() if value is not None}


def parse_report(log: str) -> LambdaReport | None:
    """The last REPORT line in a log, or None where there is none.

    Source of the format: "Understanding the Lambda execution environment lifecycle" and the
    invocation logs in the AWS documentation, read 2026-11-28; fields are separated by tabs.
    """
    lines = [line for line in log.splitlines() if line.startswith("REPORT RequestId:")]
    if not lines:
        return None
    fields = {
        name.strip(): value.strip()
        for name, colon, value in (part.partition(":") for part in lines[-1].split("\t"))
        if colon
    }
    return LambdaReport(
        request_id=fields.get("REPORT RequestId", ""),
        duration_ms=_number(fields.get("Duration")),
        billed_duration_ms=_number(fields.get("Billed Duration")),
        init_duration_ms=_number(fields.get("Init Duration")),
        memory_size_mib=_number(fields.get("Memory Size")),
        max_memory_mib=_number(fields.get("Max Memory Used")),
    )


class FunctionUrlTarget:
    """A function behind its URL with IAM authorisation: each request is signed (SigV4).

    Args:
        url: of the function, as the stack's output `FunctionUrl` says.
        region: of the function; part of the signature.
        credentials: botocore credentials; those of the environment when left out.
        description: what it is; name and region alone when left out.

    Raises:
        TargetError: there are no credentials.
    """

    def __init__(
        self,
        url: str,
        *,
        region: str,
        credentials: Any = None,
        description: TargetDescription | None = None,
    ) -> None:
        parts = http_url(url)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._netloc = parts.netloc
        self._region = region
        self._credentials = credentials or _credentials()
        self._description = description or TargetDescription(
            name=parts.netloc.partition(".")[0],
            mode=MODE_LAMBDA,
            region=region,
            platform=platform_at(url),
        )
        self._transport = HttpTransport(
            self._origin, timeout_s=TIMEOUT_S, connect_timeout_s=CONNECT_TIMEOUT_S
        )

    def describe(self) -> TargetDescription:
        """The function."""
        return self._description

    def send(self, payload: Payload) -> Reply:
        """One signed POST over a connection that stays open."""
        headers = self._signed(payload)
        response = exchange(
            self._transport, INVOCATIONS_PATH, payload.body, headers, where=self._netloc
        )
        return Reply(body=response.body, phases_ms=response.phases_ms)

    def close(self) -> None:
        """Close the connection that is kept alive between requests."""
        self._transport.close()

    def _signed(self, payload: Payload) -> Mapping[str, str]:
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest

        headers = {"Content-Type": payload.content_type, "Accept": MEDIA_JSON}
        if payload.custom_attributes:
            headers[CUSTOM_ATTRIBUTES_HEADER] = payload.custom_attributes
        request = AWSRequest(
            method="POST", url=self._origin + INVOCATIONS_PATH, data=payload.body, headers=headers
        )
        SigV4Auth(self._credentials, "lambda", self._region).add_auth(request)
        return dict(request.headers.items())


class LambdaInvokeTarget:
    """A function through `Invoke`, with the tail of its log.

    Args:
        description: as `function_target` reads it.
        function: what is invoked, with its alias; the description's name when left out.
        client: a boto3 `lambda` client that does not retry, of `invoking_client("lambda")`.
    """

    def __init__(
        self, description: TargetDescription, *, client: Any, function: str | None = None
    ) -> None:
        self._description = description
        self._client = client
        self._function = function or description.name

    def describe(self) -> TargetDescription:
        """The function."""
        return self._description

    def send(self, payload: Payload) -> Reply:
        """One `Invoke` call with the event that a function URL would send."""
        from botocore import exceptions

        event = json.dumps(_event(payload)).encode()
        if len(event) > MAX_EVENT_BYTES:
            raise TargetError(
                OUTCOME_REFUSED,
                f"the event has {len(event):,} bytes with the photograph in base64, and Lambda "
                f"takes {MAX_EVENT_BYTES:,}; send it smaller (--max-side-px)",
            )
        try:
            response = self._client.invoke(
                FunctionName=self._function, LogType="Tail", Payload=event
            )
            body = response["Payload"].read()
        except exceptions.ClientError as error:
            raise client_error(error) from None
        except exceptions.ReadTimeoutError:
            raise TargetError(OUTCOME_TIMEOUT, f"no answer within {TIMEOUT_S} s") from None
        except exceptions.BotoCoreError as error:
            raise TargetError(OUTCOME_UNREACHABLE, str(error)) from None
        if response.get("FunctionError"):
            raise TargetError(OUTCOME_SERVER_ERROR, _function_error(body))
        log = base64.b64decode(response.get("LogResult") or "").decode("utf-8", "replace")
        report = parse_report(log)
        return Reply(
            body=_answer_body(body),
            platform_ms=report.platform_ms if report else {},
            max_memory_mib=report.max_memory_mib if report else None,
        )


def function_target(name: str, *, client: Any) -> LambdaInvokeTarget:
    """What is deployed under a function's name, `NAME` or `NAME:alias`.

    Without an alias it is `live` where the function has one, as those of this project have: that
    is what the URL answers with, and what is kept warm. Records have the name as it is given.

    Raises:
        TargetError: there is no such function, or it may not be looked at.
    """
    from botocore.exceptions import ClientError

    names = (name,) if ":" in name else (f"{name}:{FUNCTION_ALIAS}", name)
    for number, qualified in enumerate(names, start=1):
        try:
            function = client.get_function(FunctionName=qualified)
        except ClientError as error:
            absent = error.response.get("Error", {}).get("Code") == "ResourceNotFoundException"
            if absent and number < len(names):
                continue
            raise client_error(error) from None
        break
    configuration = function["Configuration"]
    (architecture,) = configuration.get("Architectures") or ["x86_64"]
    description = TargetDescription(
        name=name,
        mode=MODE_LAMBDA,
        memory_mib=configuration.get("MemorySize"),
        architecture=_ARCHITECTURES.get(architecture, architecture),
        region=client.meta.region_name,
        image=function.get("Code", {}).get("ResolvedImageUri"),
        platform=platform_at(client.meta.endpoint_url),
    )
    return LambdaInvokeTarget(description, client=client, function=qualified)


def _event(payload: Payload) -> dict[str, Any]:
    """Payload format 2.0 of a function URL ("Invoking Lambda function URLs")."""
    headers = {"content-type": payload.content_type, "accept": MEDIA_JSON}
    if payload.custom_attributes:
        headers[CUSTOM_ATTRIBUTES_HEADER.lower()] = payload.custom_attributes
    return {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": INVOCATIONS_PATH,
        "rawQueryString": "",
        "headers": headers,
        "requestContext": {
            "stage": "$default",
            "http": {
                "method": "POST",
                "path": INVOCATIONS_PATH,
                "protocol": "HTTP/1.1",
                "sourceIp": "127.0.0.1",
                "userAgent": "dr-endpoints",
            },
        },
        "body": base64.b64encode(payload.body).decode("ascii"),
        "isBase64Encoded": True,
    }


def _answer_body(raw: bytes) -> bytes:
    try:
        document = json.loads(raw)
        status, text = int(document["statusCode"]), document.get("body") or ""
        body = base64.b64decode(text) if document.get("isBase64Encoded") else text.encode()
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, OverflowError):
        raise TargetError(
            OUTCOME_SERVER_ERROR, "the function's answer is not one of an HTTP function"
        ) from None
    if status != 200:
        raise TargetError(
            outcome_of_status(status), problem_detail(body) or f"status {status}", status=status
        )
    return body


def _function_error(body: bytes) -> str:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    message = document.get("errorMessage") if isinstance(document, dict) else None
    return f"the function failed: {message or 'it did not say why'}"


def _credentials() -> Any:
    from botocore.session import get_session

    found = get_session().get_credentials()
    if found is None:
        raise TargetError(
            OUTCOME_REFUSED, "there are no AWS credentials to sign the request with; log in first"
        )
    return found


def _number(text: str | None) -> float | None:
    found = re.match(r"\d+(\.\d+)?", text or "")
    return float(found.group()) if found else None
