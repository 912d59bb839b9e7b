"""`dr predict`: sends photographs to a target and shows the answers."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dr_cli.console import make_console
from dr_cli.errors import CommandError
from dr_cli.panels import prediction_panel
from dr_cli.photographs import read_photograph
from dr_cli.serving import running_service
from dr_experiments.client import Client
from dr_experiments.targets import (
    SageMakerTarget,
    Target,
    TargetDescription,
    TargetError,
    UrlTarget,
    describe_endpoint,
    sagemaker_client,
)
from inference_image.contract import SERVING_MODE_LOCAL

DEFAULT_PACKAGE: Final = Path("model_artifacts/mobilenet-demo")


def predict_images(
    images: Sequence[Path],
    *,
    endpoint: str | None,
    url: str | None,
    model: Path | None,
    region: str | None,
    as_json: bool,
) -> int:
    """Grade `images` in turn; returns how many brought no answer."""
    # All files are looked at before anything is started or sent.
    payloads = [(path, read_photograph(path)) for path in images]
    console = make_console()
    failed = 0
    with _target(endpoint=endpoint, url=url, model=model, region=region) as (target, where, notice):
        client = Client(target)
        for path, payload in payloads:
            measurement = client.measure(payload)
            failed += not measurement.ok
            if as_json:
                document = measurement.answer or {
                    "outcome": measurement.outcome,
                    "status": measurement.status,
                    "detail": measurement.error,
                }
                print(json.dumps({"image": str(path), **document}), flush=True)
                continue
            console.print(prediction_panel(f"{path.name} · {where}", measurement, notice=notice))
    return failed


@contextmanager
def _target(
    *, endpoint: str | None, url: str | None, model: Path | None, region: str | None
) -> Iterator[tuple[Target, str, str | None]]:
    if sum(choice is not None for choice in (endpoint, url, model)) > 1:
        raise CommandError("choose one of --endpoint, --url and --model")
    if endpoint is not None:
        yield *endpoint_target(endpoint, region=region), None
    elif url is not None:
        target = url_target(url)
        yield target, target.describe().name, None
        target.close()
    else:
        with running_service(model or DEFAULT_PACKAGE) as (service_url, spec):
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
        client, control = local.runtime_client(), local.client("sagemaker")
        where = "local AWS"
    else:
        import boto3

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
