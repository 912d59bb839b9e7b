"""`dr predict`: sends photographs to a target and shows the answers."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dr_cli.console import make_console
from dr_cli.errors import CommandError
from dr_cli.invocation import dr
from dr_cli.packages import package_or_default
from dr_cli.panels import failure_panel, prediction_panel
from dr_cli.photographs import read_photograph
from dr_cli.region import aws_region
from dr_cli.serving import running_service
from dr_experiments.client import Client, Measurement
from dr_experiments.targets import (
    Payload,
    SageMakerTarget,
    Target,
    TargetDescription,
    TargetError,
    UrlTarget,
    describe_endpoint,
    invoking_client,
    sagemaker_client,
)
from inference_image.contract import SERVING_MODE_LOCAL

OUTCOME_NOT_SENT: Final = "not-sent"
PLACES: Final = ("--endpoint", "--url", "--function", "--function-url")


@dataclass(frozen=True, kw_only=True)
class Place:
    """What is asked: at most one of the four, and the AWS region of it.

    `name` is what a URL is called in the records; its host and port when left out.
    """

    endpoint: str | None = None
    url: str | None = None
    function: str | None = None
    function_url: str | None = None
    region: str | None = None
    name: str | None = None

    @property
    def given(self) -> tuple[str, ...]:
        """Those of the four that are given."""
        four = (self.endpoint, self.url, self.function, self.function_url)
        return tuple(place for place in four if place is not None)


def predict_images(
    images: Sequence[Path],
    *,
    place: Place,
    model: Path | None,
    as_json: bool,
) -> int:
    """Grade `images` in turn; returns how many brought no answer.

    A file that cannot be sent is one of these, with its reason, and the others are graded.
    """
    # All files are looked at before anything is started or sent.
    payloads = [(path, _payload_or_reason(path)) for path in images]
    reasons = [found for _, found in payloads if isinstance(found, str)]
    if len(images) == 1 and reasons and not as_json:
        raise CommandError(reasons[0])
    screen = _Screen(as_json=as_json)
    if len(reasons) == len(images):
        for path, reason in payloads:
            screen.unsent(path, str(reason))
        return len(images)
    failed = 0
    with chosen_target(place, model=model) as (target, where, notice):
        client = Client(target)
        for path, payload in payloads:
            if isinstance(payload, str):
                failed += 1
                screen.unsent(path, payload)
                continue
            measurement = client.measure(payload)
            failed += not measurement.ok
            screen.measured(path, measurement, where=where, notice=notice)
    return failed


class _Screen:
    """Shows one photograph after the other: as panels, or as one line of JSON each."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._console = make_console()

    def unsent(self, path: Path, reason: str) -> None:
        if self._as_json:
            self._line(path, {"outcome": OUTCOME_NOT_SENT, "status": None, "detail": reason})
        else:
            self._console.print(failure_panel(path.name, reason))

    def measured(
        self, path: Path, measurement: Measurement, *, where: str, notice: str | None
    ) -> None:
        if not self._as_json:
            title = f"{path.name} · {where}"
            self._console.print(prediction_panel(title, measurement, notice=notice))
            return
        failure = {
            "outcome": measurement.outcome,
            "status": measurement.status,
            "detail": measurement.error,
        }
        self._line(path, measurement.answer or failure)

    def _line(self, path: Path, document: Mapping[str, object]) -> None:
        print(json.dumps({"image": str(path), **document}), flush=True)


def _payload_or_reason(path: Path) -> Payload | str:
    try:
        return read_photograph(path)
    except CommandError as error:
        return str(error)
    except OSError as error:
        return f"{path}: {(error.strerror or type(error).__name__).lower()}"


@contextmanager
def chosen_target(place: Place, *, model: Path | None) -> Iterator[tuple[Target, str, str | None]]:
    """A target, where it is, and its model's notice; a service is started where none is named."""
    if len(place.given) + (model is not None) > 1:
        raise CommandError(f"choose one of {', '.join(PLACES)} and --model")
    if place.given:
        target, where = target_at(place)
        yield target, where, None
        close = getattr(target, "close", None)
        if close is not None:
            close()
    else:
        with running_service(package_or_default(model)) as (service_url, spec):
            target = url_target(service_url)
            yield target, "this machine", spec.notice
            target.close()


def target_at(place: Place, *, describe: bool = False) -> tuple[Target, str]:
    """A target for the one place that is given, and where that is.

    With `describe`, size, mode and image of an endpoint are read from SageMaker; those of a
    function always are.
    """
    if place.url is not None:
        target = url_target(place.url, name=place.name)
        return target, target.describe().name
    if place.function is not None:
        return function_target(place.function, region=place.region)
    if place.function_url is not None:
        return function_url_target(place.function_url, region=place.region)
    return endpoint_target(str(place.endpoint), region=place.region, describe=describe)


def function_target(name: str, *, region: str | None) -> tuple[Target, str]:
    """A target for a Lambda function on AWS, by its name."""
    from dr_experiments import lambda_targets

    client = invoking_client("lambda", region=aws_region(region))
    try:
        target = lambda_targets.function_target(name, client=client)
    except TargetError as error:
        raise CommandError(f"function {name} cannot be asked: {error}") from None
    return target, f"AWS {client.meta.region_name}"


def function_url_target(url: str, *, region: str | None) -> tuple[Target, str]:
    """A target for the URL of a Lambda function; requests are signed."""
    from dr_experiments.lambda_targets import FunctionUrlTarget

    there = aws_region(region)
    if there is None:
        raise CommandError("no AWS region is set to sign requests for; give --region")
    try:
        return FunctionUrlTarget(url, region=there), f"AWS {there}"
    except (TargetError, ValueError) as error:
        raise CommandError(str(error)) from None


def url_target(url: str, *, name: str | None = None) -> UrlTarget:
    """A target for a URL that a person typed."""
    try:
        return UrlTarget(url, name=name)
    except ValueError as error:
        raise CommandError(f"{error}; use http://HOST:PORT") from None


def endpoint_target(name: str, *, region: str | None, describe: bool = False) -> tuple[Target, str]:
    """A target for a deployed endpoint, and where it is: on the local AWS where that is up.

    With `describe`, its size, mode and image are read from SageMaker.
    """
    from dr_cli.local import running_local_aws

    local = running_local_aws()
    if local is not None:
        where = "the local AWS"
        deployed = local.endpoints()
        if name not in deployed:
            raise CommandError(_not_deployed(name, deployed))
        client, control = local.runtime_client(), local.client("sagemaker")
    else:
        import boto3

        region = aws_region(region)
        client = sagemaker_client(region=region)
        control = boto3.client("sagemaker", region_name=region) if describe else None
        where = f"AWS {client.meta.region_name}"
    description = TargetDescription(name=name, mode=SERVING_MODE_LOCAL, region=region)
    if describe:
        try:
            description = describe_endpoint(name, client=control)
        except TargetError as error:
            raise CommandError(f"endpoint {name} cannot be measured on {where}: {error}") from None
    return SageMakerTarget(description, client=client), where


def _not_deployed(name: str, deployed: Sequence[str]) -> str:
    try:
        from stacks.matrix import MATRIX
    except ModuleNotFoundError:
        # Installed from a wheel: the stacks belong to the checkout.
        known = False
    else:
        known = name in {row.stack_id for row in MATRIX}
    command = dr(f"local deploy {name if known else 'NAME'}")
    there = f"deployed are: {', '.join(deployed)}" if deployed else "nothing is deployed"
    return f"endpoint {name} is not deployed on the local AWS; {there}; deploy it with: {command}"
