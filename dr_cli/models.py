"""`dr model`: looks at a model package, and publishes it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Bar
from rich.table import Table

from dr_cli.console import make_console
from dr_cli.errors import CommandError
from dr_cli.packages import require_files, spec_of
from dr_cli.panels import held_out
from dr_cli.region import aws_region
from inference_image.model_spec import ModelSpec, missing_files, verify_files

SHARED_STACK = "shared"
BUCKET_OUTPUT = "ModelBucketName"


def inspect(package: Path) -> None:
    """Print what the package says about itself, and whether its files are what it says."""
    spec = spec_of(package)
    console = make_console()
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for name, value in _facts(spec):
        grid.add_row(name, value)
    grid.add_row("files", _files(spec, package))
    console.print(grid)


def push(package: Path, *, bucket: str | None, stage: str | None) -> None:
    """Publish to the local AWS where it is up, else to AWS with the usual credentials."""
    if not package.is_dir():
        raise CommandError(f"{package} is no folder; name the folder that holds model.json")
    spec = spec_of(package)
    require_files(spec, package)
    verify_files(spec, package)
    import boto3

    from dr_cli.local import running_local_aws
    from dr_local.publish import push_package

    local = running_local_aws()
    region = None if local else aws_region()

    def client_of(service: str) -> Any:
        return local.client(service) if local else boto3.client(service, region_name=region)

    where = "the local AWS" if local else "AWS"
    bucket = bucket or _bucket_of_stack(client_of("cloudformation"), stage=stage, where=where)
    with _upload_bar() as report:
        key = push_package(package, bucket=bucket, client=client_of("s3"), progress=report)
    print(f"s3://{bucket}/{key} on {where}")


@contextmanager
def _upload_bar() -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal; nothing in a log, where the last line says all."""
    if not sys.stderr.isatty():
        yield lambda _sent, _total: None
        return
    columns = (TextColumn("Pushing"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    # On stderr, so that the address on stdout can be read by a program.
    with Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("push", total=None)
        yield lambda sent, total: bar.update(task, completed=sent, total=total)


def _bucket_of_stack(cloudformation: Any, *, stage: str | None, where: str) -> str:
    from botocore.exceptions import ClientError

    from constructs_lib.stage_names import staged

    stack = staged(SHARED_STACK, stage)
    try:
        found = cloudformation.describe_stacks(StackName=stack)["Stacks"][0]
    except ClientError:
        raise CommandError(
            f"there is no stack {stack} on {where}; deploy it first, or name a --bucket"
        ) from None
    for output in found.get("Outputs", []):
        if output["OutputKey"] == BUCKET_OUTPUT:
            return str(output["OutputValue"])
    raise CommandError(f"stack {stack} has no output {BUCKET_OUTPUT}; name a --bucket")


def _facts(spec: ModelSpec) -> list[tuple[str, str]]:
    default = spec.operating_point()
    network = spec.raw.get("network") or {}
    facts = [
        ("id", spec.id),
        ("sha256", spec.sha256),
        ("object key", spec.object_key),
        ("task", f"{spec.task}: {', '.join(spec.labels)}"),
        ("input", f"{spec.input_size_px} x {spec.input_size_px} px RGB"),
        ("preprocessing", " → ".join(step["step"] for step in spec.preprocessing) or "none"),
        ("decision", f"P(grade ≥ 2) ≥ {default.threshold:g} ({default.name})"),
    ]
    if network:
        facts.append(("network", ", ".join(f"{k} {v}" for k, v in network.items())))
    if figures := held_out(spec):
        facts.append(("held out", figures))
    for key in ("licence", "intended_use"):
        if spec.raw.get(key):
            facts.append((key.replace("_", " "), str(spec.raw[key])))
    if spec.notice:
        facts.append(("notice", spec.notice))
    return facts


def _files(spec: ModelSpec, package: Path) -> str:
    lines = [f"{entry.path}  {entry.size_bytes:,} bytes" for entry in spec.files]
    if package.is_dir():
        missing = missing_files(spec, package)
        if missing:
            lines.append(f"not on disk: {', '.join(missing)}")
        else:
            verify_files(spec, package)
            lines.append("all there, with the digests that model.json records")
    return "\n".join(lines)
