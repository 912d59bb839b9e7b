"""`dr predict`: sends photographs to a target and shows the answers."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    sagemaker_client,
)
from inference_image.contract import SERVING_MODE_LOCAL

OUTCOME_NOT_SENT: Final = "not-sent"


def predict_images(
    images: Sequence[Path],
    *,
    endpoint: str | None,
    url: str | None,
    model: Path | None,
    region: str | None,
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
    with chosen_target(endpoint=endpoint, url=url, model=model, region=region) as (
        target,
        where,
        notice,
    ):
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
def chosen_target(
    *, endpoint: str | None, url: str | None, model: Path | None, region: str | None
) -> Iterator[tuple[Target, str, str | None]]:
    """A target, where it is, and its model's notice; a service is started where none is named."""
    if sum(choice is not None for choice in (endpoint, url, model)) > 1:
        raise CommandError("choose one of --endpoint, --url and --model")
    if endpoint is not None:
        yield *endpoint_target(endpoint, region=region), None
    elif url is not None:
        target = url_target(url)
        yield target, target.describe().name, None
        target.close()
    else:
        with running_service(package_or_default(model)) as (service_url, spec):
            target = url_target(service_url)
            yield target, "this machine", spec.notice
            target.close()


def url_target(url: str) -> UrlTarget:
    """A target for a URL that a person typed."""
    try:
        return UrlTarget(url)
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
