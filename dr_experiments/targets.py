"""What can be measured: a two-method interface, and its implementations.

A target only carries bytes. It never measures, retries or judges an answer: the client does,
in the same way for each target. Adding one (another cloud) means writing `describe` and
`send`. Lambda functions are in `lambda_targets`.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import SplitResult, urlsplit

from dr_experiments.transport import HttpAnswer, HttpTransport
from inference_image.contract import (
    CUSTOM_ATTRIBUTES_HEADER,
    INVOCATIONS_PATH,
    MEDIA_JSON,
    SERVING_MODE_LOCAL,
    SERVING_MODE_REALTIME,
    SERVING_MODE_SERVERLESS,
)

OUTCOME_OK: Final = "ok"
OUTCOME_THROTTLED: Final = "throttled"
OUTCOME_TIMEOUT: Final = "timeout"
OUTCOME_UNREACHABLE: Final = "unreachable"
OUTCOME_REFUSED: Final = "refused"
OUTCOME_SERVER_ERROR: Final = "server-error"
OUTCOME_WRONG_ANSWER: Final = "wrong-answer"
OUTCOMES: Final = (
    OUTCOME_OK,
    OUTCOME_THROTTLED,
    OUTCOME_TIMEOUT,
    OUTCOME_UNREACHABLE,
    OUTCOME_REFUSED,
    OUTCOME_SERVER_ERROR,
    OUTCOME_WRONG_ANSWER,
)

# Lambda is no mode of the container's: there the function tells it what it runs on.
MODE_LAMBDA: Final = "lambda"

# Where something was measured. Times of the local AWS are those of the machine that it runs on.
PLATFORM_AWS: Final = "aws"
PLATFORM_LOCAL_AWS: Final = "local-aws"
PLATFORMS: Final = (PLATFORM_AWS, PLATFORM_LOCAL_AWS)
# Endpoints of AWS's interfaces, in China and with IPv6 as well, and URLs of functions.
_AWS_HOSTS: Final = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws", ".on.aws")

# SageMaker ends an invocation after 60 s; a client that gave up earlier would count the
# platform's slowness as its own.
TIMEOUT_S: Final = 70
CONNECT_TIMEOUT_S: Final = 5
MAX_CONNECTIONS: Final = 256
_LONGEST_TEXT: Final = 500
_THROTTLED: Final = ("ThrottlingException", "TooManyRequestsException", "Throttling")


@dataclass(frozen=True, kw_only=True)
class Payload:
    """One image to send. It has no name: records and logs must not be able to carry one."""

    body: bytes = field(repr=False)
    content_type: str
    custom_attributes: str | None = None


@dataclass(frozen=True, kw_only=True)
class Reply:
    """Body of a successful answer, and what is known about the way it came.

    `platform_ms` is what the platform reported, `phases_ms` the steps of the connection (see
    `transport`), both empty where nobody says. `max_memory_mib` is Lambda's.
    """

    body: bytes = field(repr=False)
    platform_ms: Mapping[str, float] = field(default_factory=dict)
    phases_ms: Mapping[str, float] = field(default_factory=dict)
    max_memory_mib: float | None = None


@dataclass(frozen=True, kw_only=True)
class TargetDescription:
    """What is measured; goes into every record.

    `mode` is a serving mode of the contract; `memory_mib` belongs to serverless and Lambda,
    `instance_type` to real-time, `architecture` (`amd64`, `arm64`) to Lambda, whose price depends
    on it. `image` is the image reference, best by digest. `platform` is one of `PLATFORMS`, or
    None where nobody knows: a service behind a URL does not say where it runs.
    """

    name: str
    mode: str
    memory_mib: int | None = None
    architecture: str | None = None
    instance_type: str | None = None
    region: str | None = None
    image: str | None = None
    platform: str | None = None


class TargetError(Exception):
    """A request that brought no answer; `outcome` says which kind, the text why.

    Part of the text may be the server's, which could be anything: it becomes one line of
    characters that can be shown, and not a long one.
    """

    def __init__(self, outcome: str, message: str, *, status: int | None = None) -> None:
        super().__init__(one_line(message))
        self.outcome = outcome
        self.status = status


def one_line(text: str) -> str:
    """Words of a server for a terminal, a record and a page."""
    words = " ".join(text[: 2 * _LONGEST_TEXT].split())
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in words)
    return shown if len(shown) <= _LONGEST_TEXT else f"{shown[: _LONGEST_TEXT - 1]}…"


class Target(Protocol):
    """A system under test."""

    def describe(self) -> TargetDescription:
        """What this is; constant over the life of the target."""
        ...

    def send(self, payload: Payload) -> Reply:
        """One request, one answer, no retry. Raises `TargetError`."""
        ...


class SageMakerTarget:
    """An endpoint behind `sagemaker-runtime`, on AWS or on the local AWS.

    `client` is made by `sagemaker_client`, or any boto3 client that does not retry: a hidden
    retry would be a latency that no request had.
    """

    # Response headers of the local AWS; AWS itself reports these to CloudWatch only.
    _PLATFORM_HEADERS: Final = {
        "x-dr-local-model-setup-ms": "model_setup_ms",
        "x-dr-local-model-latency-ms": "model_latency_ms",
        "x-dr-local-overhead-latency-ms": "overhead_latency_ms",
        "x-dr-local-start-to-first-prediction-ms": "start_to_first_prediction_ms",
    }

    def __init__(self, description: TargetDescription, *, client: Any) -> None:
        self._description = description
        self._client = client

    def describe(self) -> TargetDescription:
        """The endpoint, as `describe_endpoint` has read it."""
        return self._description

    def send(self, payload: Payload) -> Reply:
        """One `InvokeEndpoint` call."""
        from botocore import exceptions

        extra = {"CustomAttributes": payload.custom_attributes} if payload.custom_attributes else {}
        try:
            response = self._client.invoke_endpoint(
                EndpointName=self._description.name,
                Body=payload.body,
                ContentType=payload.content_type,
                Accept=MEDIA_JSON,
                **extra,
            )
            # The answer has arrived when its last byte has.
            body = response["Body"].read()
        except exceptions.ClientError as error:
            raise client_error(error) from None
        except exceptions.ReadTimeoutError:
            raise TargetError(OUTCOME_TIMEOUT, f"no answer within {TIMEOUT_S} s") from None
        except exceptions.BotoCoreError as error:
            raise TargetError(OUTCOME_UNREACHABLE, str(error)) from None
        headers = response["ResponseMetadata"].get("HTTPHeaders", {})
        platform = {
            name: float(headers[header])
            for header, name in self._PLATFORM_HEADERS.items()
            if header in headers
        }
        return Reply(body=body, platform_ms=platform)


def sagemaker_client(
    *, region: str | None = None, endpoint_url: str | None = None, **credentials: str
) -> Any:
    """A boto3 `sagemaker-runtime` client, as `invoking_client` makes it.

    `AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME` points it at the local AWS.
    """
    return invoking_client(
        "sagemaker-runtime", region=region, endpoint_url=endpoint_url, **credentials
    )


def invoking_client(
    service: str, *, region: str | None = None, endpoint_url: str | None = None, **credentials: str
) -> Any:
    """A boto3 client without retries and with the platform's time limit.

    Region, credentials and endpoint come from the environment unless given, as with any boto3
    client.
    """
    import boto3
    from botocore.config import Config

    return boto3.client(
        service,
        region_name=region,
        endpoint_url=endpoint_url,
        config=Config(
            retries={"total_max_attempts": 1},
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=TIMEOUT_S,
            tcp_keepalive=True,
            # A load has many at once; beyond the pool, each would open a connection of its own.
            max_pool_connections=MAX_CONNECTIONS,
            # A proxy of the machine must not see loopback traffic.
            proxies={} if endpoint_url else None,
        ),
        **credentials,
    )


def describe_endpoint(name: str, *, client: Any) -> TargetDescription:
    """What is deployed under a name, read from SageMaker with a boto3 `sagemaker` client.

    Raises:
        TargetError: there is no such endpoint, or it has more than one variant.
    """
    from botocore.exceptions import ClientError

    try:
        endpoint = client.describe_endpoint(EndpointName=name)
        config = client.describe_endpoint_config(EndpointConfigName=endpoint["EndpointConfigName"])
        variants = config["ProductionVariants"]
        model = client.describe_model(ModelName=variants[0]["ModelName"])
    except ClientError as error:
        raise client_error(error) from None
    if len(variants) != 1:
        raise TargetError(
            OUTCOME_REFUSED, f"endpoint {name} has {len(variants)} variants; one can be measured"
        )
    serverless = variants[0].get("ServerlessConfig")
    return TargetDescription(
        name=name,
        mode=SERVING_MODE_SERVERLESS if serverless else SERVING_MODE_REALTIME,
        memory_mib=serverless["MemorySizeInMB"] if serverless else None,
        instance_type=None if serverless else variants[0].get("InstanceType"),
        region=client.meta.region_name,
        image=model.get("PrimaryContainer", {}).get("Image"),
        platform=platform_at(client.meta.endpoint_url),
    )


def platform_at(url: str | None) -> str | None:
    """Whose interface answers at a URL: AWS's, that of a local AWS, or None where it is neither.

    A loopback address is a local AWS, whatever name a region has there.
    """
    host = urlsplit(url or "").hostname or ""
    if host.endswith(_AWS_HOSTS):
        return PLATFORM_AWS
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    return PLATFORM_LOCAL_AWS if loopback else None


class UrlTarget:
    """A container that answers `POST /invocations` at a base URL, such as `dr serve`."""

    def __init__(self, url: str, *, name: str | None = None) -> None:
        """Raises `ValueError` for what is no URL of a service, or holds a password."""
        parts = http_url(url if "//" in url else f"http://{url}")
        self._parts = parts
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._path = parts.path.rstrip("/") or INVOCATIONS_PATH
        if parts.query:
            # It may be a token: it is sent, and shown nowhere.
            self._path += f"?{parts.query}"
        self._name = name or parts.netloc
        self._transport = HttpTransport(
            self._origin, timeout_s=TIMEOUT_S, connect_timeout_s=CONNECT_TIMEOUT_S
        )

    def describe(self) -> TargetDescription:
        """Host and port, in local mode."""
        return TargetDescription(name=self._name, mode=SERVING_MODE_LOCAL)

    def send(self, payload: Payload) -> Reply:
        """One POST over a connection that stays open."""
        headers = {"Content-Type": payload.content_type, "Accept": MEDIA_JSON}
        if payload.custom_attributes:
            headers[CUSTOM_ATTRIBUTES_HEADER] = payload.custom_attributes
        response = exchange(self._transport, self._path, payload.body, headers, where=self._where)
        return Reply(body=response.body, phases_ms=response.phases_ms)

    def close(self) -> None:
        """Close the connection that is kept alive between requests."""
        self._transport.close()

    @property
    def _where(self) -> str:
        return self._parts.netloc


def http_url(url: str) -> SplitResult:
    """The parts of a service's URL.

    Raises:
        ValueError: it is no http or https URL, or holds a password, which records and pages would
            show.
    """
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise ValueError(f"{shown_url(url)!r} is not an http or https URL")
    if "@" in parts.netloc:
        raise ValueError(
            "a URL with a user name or a password is not taken: records and pages show the URL"
        )
    return parts


def shown_url(url: str) -> str:
    """A URL without what may be a secret in it: name, password, query and fragment."""
    before, _, rest = url.partition("//") if "//" in url else ("", "", url)
    place, mark, path = rest.partition("/")
    shown = f"{place.rpartition('@')[2]}{mark}{path}"
    for sign in "?#":
        shown, cut, _ = shown.partition(sign)
        shown += f"{sign}…" if cut and not shown.endswith("…") else ""
    return f"{before}//{shown}" if "//" in url else shown


def exchange(
    transport: HttpTransport, path: str, body: bytes, headers: Mapping[str, str], *, where: str
) -> HttpAnswer:
    """One POST that was answered with status 200; raises `TargetError` for all else."""
    from http.client import HTTPException

    try:
        response = transport.request("POST", path, body=body, headers=headers)
    except TimeoutError:
        raise TargetError(OUTCOME_TIMEOUT, f"no answer within {TIMEOUT_S} s") from None
    except (OSError, HTTPException) as error:
        why = str(error) or type(error).__name__
        raise TargetError(OUTCOME_UNREACHABLE, f"nothing answers at {where}: {why}") from None
    if response.status != 200:
        raise TargetError(
            outcome_of_status(response.status),
            problem_detail(response.body) or f"status {response.status}",
            status=response.status,
        )
    return response


def outcome_of_status(status: int) -> str:
    """Outcome for an HTTP status that is not 200."""
    if status == 429:
        return OUTCOME_THROTTLED
    if status == 504:
        return OUTCOME_TIMEOUT
    return OUTCOME_REFUSED if 400 <= status < 500 else OUTCOME_SERVER_ERROR


def problem_detail(body: bytes | str) -> str | None:
    """The `detail` of a problem+json body, or None."""
    import json

    try:
        document = json.loads(body)
    except (ValueError, RecursionError, TypeError):
        return None
    detail = document.get("detail") if isinstance(document, dict) else None
    return detail if isinstance(detail, str) else None


def client_error(error: Any) -> TargetError:
    """What a boto3 `ClientError` of an invocation, or of a look at what is deployed, comes to."""
    response = error.response
    code = response.get("Error", {}).get("Code", "")
    message = response.get("Error", {}).get("Message", "") or code
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    if code in _THROTTLED or status == 429:
        return TargetError(OUTCOME_THROTTLED, message, status=status)
    if code == "ModelError":
        # The container's own status and words are inside; SageMaker's is always 424.
        original = response.get("OriginalStatusCode")
        detail = problem_detail(response.get("OriginalMessage") or "")
        outcome = outcome_of_status(original) if original else OUTCOME_SERVER_ERROR
        return TargetError(outcome, detail or message, status=original or status)
    refused = status is not None and 400 <= status < 500
    outcome = OUTCOME_REFUSED if refused else OUTCOME_SERVER_ERROR
    return TargetError(outcome, message, status=status)
