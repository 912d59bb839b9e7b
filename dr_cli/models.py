"""`dr model`: looks at a model package, and publishes it."""

import sys
from collections.abc import Callable, Iterator, Mapping
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
from inference_image.model_spec import (
    OUTPUT_FEATURES,
    ModelSpec,
    has_model_json,
    missing_files,
    verify_files,
)

SHARED_STACK = "shared"
BUCKET_OUTPUT = "ModelBucketName"


def inspect(package: Path) -> None:
    """Print what the package says about itself, and whether its files are what it says.

    A `.tflite` file or a folder without `model.json` is shown as the service would describe it.
    """
    spec = _spec(package)
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
        ("input", _input(spec)),
        ("preprocessing", " → ".join(step["step"] for step in spec.preprocessing) or "none"),
        ("quality gate", "none" if spec.quality_gate is None else "on"),
        ("outputs", ", ".join(f"{ours} ({theirs})" for ours, theirs in spec.outputs.items())),
        ("heat map", "yes" if spec.head_file and OUTPUT_FEATURES in spec.outputs else "no"),
        ("decision", f"P(grade ≥ 2) ≥ {default.threshold:g} ({default.name})"),
    ]
    if variant := spec.raw.get("variant"):
        facts.append(("variant", f"{variant['kind']} of {variant['from']['id']}"))
    if network:
        facts.append(
            ("network", ", ".join(f"{k} {v}" for k, v in network.items() if v is not None))
        )
    if figures := held_out(spec):
        facts.append(("held out", figures))
    if gate := spec.raw.get("gate"):
        facts.append(("gate", _verdict(gate)))
    for key in ("licence", "intended_use"):
        if spec.raw.get(key):
            facts.append((key.replace("_", " "), str(spec.raw[key])))
    if spec.notice:
        facts.append(("notice", spec.notice))
    return facts


def _spec(package: Path) -> ModelSpec:
    single = package.is_file() and package.suffix == ".tflite"
    bare = package.is_dir() and not has_model_json(package)
    if not single and not bare:
        return spec_of(package)
    from inference_image.contract import PLAIN_INPUT_AUTO, RUNTIME_AUTO, RUNTIME_LITERT
    from inference_image.model_files import ModelFile, models_of_folder
    from inference_image.plain_model import describe
    from inference_image.runtimes import choose

    if single:
        model, folder = ModelFile(runtime=RUNTIME_LITERT, path=package), package.parent
    else:
        model, folder = choose(models_of_folder(package), RUNTIME_AUTO), package
    return describe(model, folder, threads=1, input_range=PLAIN_INPUT_AUTO)[0]


def _input(spec: ModelSpec) -> str:
    size = f"{spec.input_size_px} x {spec.input_size_px} px"
    encoding = spec.input_encoding
    scaled = "0..255"
    if encoding.rescales:
        scale, offset = (
            ", ".join(f"{number:.6g}" for number in numbers)
            for numbers in (encoding.scale, encoding.offset)
        )
        scaled = f"pixel * ({scale}) + ({offset})"
    return f"{size} {encoding.channel_order.upper()}, {scaled}"


def _verdict(gate: Mapping[str, Any]) -> str:
    reasons = f" ({'; '.join(gate['reasons'])})" if gate.get("reasons") else ""
    return f"{gate['verdict']} beside {gate['reference']['id']} on {gate['data']}{reasons}"


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
