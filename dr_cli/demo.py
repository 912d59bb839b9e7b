"""`dr demo`: the whole line on one machine, with real parts, in five steps.

Everything that is started is stopped again, whatever happens: the local AWS belongs to the
demo, lives in a folder of its own below the results, and goes in a `finally` that a second
Ctrl-C cannot interrupt.
"""

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.text import Text

from dr_cli import local as local_aws
from dr_cli.bench import run_with_progress
from dr_cli.cdk import build_image, docker_version, require_checkout, synthesize
from dr_cli.console import Steps, make_console
from dr_cli.errors import CommandError
from dr_cli.experiment import Plan, Results, set_aside
from dr_cli.folders import result_folder
from dr_cli.invocation import dr
from dr_cli.local import RunningLocalAws
from dr_cli.packages import require_files
from dr_cli.panels import held_out, prediction_panel, results_table
from dr_cli.photographs import drawn_photograph, read_photograph
from dr_experiments.analysis import DEFAULT_REQUESTS_PER_HOUR
from dr_experiments.client import Client, Measurement
from dr_experiments.provenance import machine_busy
from dr_experiments.targets import Payload, SageMakerTarget, describe_endpoint
from dr_local import lifecycle
from dr_local.clients import REGION
from dr_local.deployments import account_id
from inference_image.contract import GRADE_LABELS
from inference_image.model_spec import ModelSpec, load_model_spec, verify_files
from stacks.matrix import MATRIX, Deployment, Mode, staged

MODEL: Final = "mobilenet"
SERVERLESS: Final = "dr-serverless-mobilenet-2048"
REALTIME: Final = "dr-realtime-mobilenet-m5-xlarge"
REGION_OF_PRICES: Final = "us-east-1"
IMAGE_TAG: Final = "dr-inference:demo"
MODEL_ROOT: Final = Path("model_artifacts")
# Far from the seeds of training, validation and test pictures.
DRAWN_SEED: Final = 20_261_128
DRAWN_GRADE: Final = 3
# What stands in for a real photograph: the same eye without a lesion.
SECOND_GRADE: Final = 0
REAL_PHOTOGRAPH: Final = Path("fundus") / "retina_normal_cc0.jpg"
DRAWN_ONLY: Final = (
    "The demo model has seen drawn photographs only. On a drawn one its grade shows that the "
    "whole line works; on a real one it shows nothing about the patient, however sure it looks."
)
NO_REAL_ONE: Final = (
    "The demo model has seen drawn photographs only. Its grades show that the whole line works; "
    "on a patient's photograph they would show nothing, however sure they look."
)


@dataclass(frozen=True, kw_only=True)
class _Photograph:
    title: str
    payload: Payload
    known_grade: int | None


def run_demo(*, photograph: Path | None, out: Path, requests: int, interval_s: float) -> None:
    """Run the five steps; results are below `out`. Raises `CommandError` with what is missing."""
    begin = time.perf_counter()
    busy = machine_busy()
    require_checkout()
    result_folder(out)
    spec = _package()
    photographs, absent = _photographs(photograph)
    console = make_console()
    steps = Steps(console)
    logs = out / "logs"
    set_aside(out)
    console.print(
        Text("Deploy a diabetic-retinopathy classifier and grade photographs with it", "bold")
    )
    steps.say("On this machine only: no AWS account, nothing is sent anywhere.", style="dim")

    with (
        _stopping(steps),
        tempfile.TemporaryDirectory(prefix="dr-demo-") as folder,
    ):
        assembly = Path(folder) / "cdk.out"
        steps.heading("Synthesize every stack of the deployment matrix")
        _synthesize(steps, assembly, logs)
        image_note = _image(steps, logs)
        steps.heading("Deploy to a local AWS with the CDK CLI")
        with _local_aws(steps, out) as local:
            rows = _deploy(steps, local, spec, assembly)
            steps.heading("Grade photographs through the sagemaker-runtime client of boto3")
            _grade(steps, local, photographs, absent, spec)
            steps.heading(f"Measure: {requests} warm requests to each endpoint")
            results = _measure(
                steps,
                local,
                rows,
                photographs[0].payload,
                spec,
                out=out,
                requests=requests,
                interval_s=interval_s,
                image_note=image_note,
                busy=busy,
            )
            steps.heading("Results")
            _say_where(steps, results)
    seconds = time.perf_counter() - begin
    console.print(f"\n[green]Done[/] in {seconds:.0f} s. Every process of the demo has ended.")


def _package() -> ModelSpec:
    row = next(row for row in MATRIX if row.stack_id == SERVERLESS)
    folder = MODEL_ROOT / row.package
    spec = load_model_spec(folder)
    require_files(spec, folder)
    verify_files(spec, folder)
    return spec


def _photographs(given: Path | None) -> tuple[list[_Photograph], str | None]:
    """A drawn photograph and a real one; without a real one a second drawn one, and why."""
    drawn = _drawn(DRAWN_GRADE)
    path = given
    if path is None:
        shared = os.environ.get("DR_SHARED") or "../shared/data"
        path = Path(shared) / REAL_PHOTOGRAPH
        if not path.is_file():
            return [drawn, _drawn(SECOND_GRADE)], (
                f"There is no real photograph at {path}, so both were drawn. To grade one of your "
                f"own: {dr('demo --photograph FILE')}, or make demo PHOTOGRAPH=FILE"
            )
    title = "real photograph" if given else "real photograph (normal by its title, CC0)"
    return [drawn, _Photograph(title=title, payload=read_photograph(path), known_grade=None)], None


def _drawn(grade: int) -> _Photograph:
    return _Photograph(
        title=f"photograph drawn as grade {grade} {GRADE_LABELS[grade]} (seed {DRAWN_SEED})",
        payload=drawn_photograph(seed=DRAWN_SEED, grade=grade),
        known_grade=grade,
    )


def _synthesize(steps: Steps, assembly: Path, logs: Path) -> None:
    """Synthesize once, for the local AWS: what is deployed below are these very templates."""
    with steps.step("cdk synth") as rename:
        count = synthesize(
            assembly,
            context=local_aws.CONTEXT,
            environment={
                "CDK_DEFAULT_ACCOUNT": account_id(),
                "CDK_DEFAULT_REGION": REGION,
                "AWS_REGION": REGION,
            },
            log=logs / "cdk-synth.log",
        )
        rename(f"Synthesized {count} stacks ({len(MATRIX)} deployments and what they share)")


def _image(steps: Steps, logs: Path) -> str:
    """Build the image where Docker is; returns what is said about it."""
    version = docker_version()
    if version is None:
        note = (
            "No Docker engine answers, so the image is not built: "
            "the endpoints refer to it by the digest of its source."
        )
        steps.say(note, style="yellow")
        return note
    try:
        with steps.step(f"Building the inference image with Docker {version}") as rename:
            size_bytes = build_image(tag=IMAGE_TAG, log=logs / "docker-build.log")
            rename(f"Built the inference image with Docker {version}: {size_bytes / 1e6:.0f} MB")
    except CommandError as error:
        note = (
            f"The image could not be built ({error}); "
            "the endpoints refer to it by the digest of its source."
        )
        steps.say(note, style="yellow")
        return note
    return (
        f"Built with Docker {version}, {size_bytes / 1e6:.0f} MB unpacked; the local AWS runs the "
        "same source without it, and the endpoints refer to it by the digest of that source."
    )


@contextlib.contextmanager
def _local_aws(steps: Steps, out: Path) -> Iterator[RunningLocalAws]:
    """A local AWS of the demo's own, apart from one that `dr local up` has started."""
    state_dir = out / "local-aws"
    succeeded = False
    try:
        with steps.step("Starting the local AWS"):
            local = lifecycle.up(state_dir=state_dir, die_with_parent=True)
        steps.say(f"control plane {local.endpoint_url}, SageMaker runtime {local.runtime_url}")
        yield RunningLocalAws(local)
        succeeded = True
    finally:
        with _uninterrupted(), steps.step("Stopping the local AWS and its containers"):
            # The logs say why, when something went wrong.
            lifecycle.down(state_dir=state_dir, keep_logs=not succeeded)


def _deploy(
    steps: Steps, local: RunningLocalAws, spec: ModelSpec, assembly: Path
) -> list[Deployment]:
    with steps.step("cdk bootstrap"):
        local_aws.bootstrap(local.local)
    shared = staged("shared", None)
    with steps.step(f"cdk deploy {shared}"):
        bucket = local_aws.deploy_shared(local.local, shared, assembly=assembly)
    with steps.step("Pushing the model package") as rename:
        local_aws.push(local.local, MODEL_ROOT / spec.id, bucket=bucket)
        rename(f"Pushed the model package {spec.id}, sha256 {spec.sha256[:12]}…")
    with steps.step(f"cdk deploy {SERVERLESS} {REALTIME}"):
        local_aws.deploy_stacks(local.local, [SERVERLESS, REALTIME], assembly=assembly)
    others = [
        row
        for row in MATRIX
        if row.model == MODEL and row.mode == Mode.SERVERLESS and row.stack_id != SERVERLESS
    ]
    sizes = ", ".join(str(row.memory_mib) for row in others)
    with steps.step(f"cdk deploy, the other memory sizes of MobileNet: {sizes} MB"):
        local_aws.deploy_stacks(local.local, [row.stack_id for row in others], assembly=assembly)
    chosen = {SERVERLESS, REALTIME, *(row.stack_id for row in others)}
    return [row for row in MATRIX if row.stack_id in chosen]


def _grade(
    steps: Steps,
    local: RunningLocalAws,
    photographs: Sequence[_Photograph],
    absent: str | None,
    spec: ModelSpec,
) -> None:
    client = _client(local, SERVERLESS)
    for photograph in photographs:
        measurement = client.measure(photograph.payload)
        steps.console.print(
            prediction_panel(
                f"{photograph.title} → {SERVERLESS}",
                measurement,
                notice=spec.notice,
                known_grade=photograph.known_grade,
            )
        )
        _require_answer(measurement, SERVERLESS)
    if figures := held_out(spec):
        steps.say(figures)
    if absent:
        steps.say(absent, style="yellow")
    steps.say(NO_REAL_ONE if absent else DRAWN_ONLY, style="yellow")
    facts = local.container_facts(SERVERLESS)
    if facts.start_to_first_prediction_s is not None:
        memory = f"{facts.memory_after_mib:.0f} MiB" if facts.memory_after_mib else "not known"
        steps.say(
            f"Cold start of that container: {facts.start_to_first_prediction_s:.2f} s from the "
            f"start of its process to the first prediction; memory after it: {memory}."
        )


def _measure(
    steps: Steps,
    local: RunningLocalAws,
    rows: Sequence[Deployment],
    payload: Payload,
    spec: ModelSpec,
    *,
    out: Path,
    requests: int,
    interval_s: float,
    image_note: str,
    busy: str | None,
) -> Results:
    targets = []
    for row in rows:
        description = describe_endpoint(row.stack_id, client=local.client("sagemaker"))
        targets.append(SageMakerTarget(description, client=local.runtime_client()))
    plan = Plan(
        title="Warm latency and cost of the MobileNet deployments",
        payload=payload,
        payload_words=f"a drawn photograph (seed {DRAWN_SEED}, grade {DRAWN_GRADE})",
        requests=requests,
        interval_s=interval_s,
        requests_per_hour=DEFAULT_REQUESTS_PER_HOUR,
        region=REGION_OF_PRICES,
        command=f"dr demo --requests {requests} --interval-s {interval_s:g}",
        image=targets[0].describe().image,
        image_note=image_note,
        local=True,
        busy=busy,
        assumptions=local.assumptions(),
        notices=(spec.notice,) if spec.notice else (),
        seed=DRAWN_SEED,
    )
    results = run_with_progress(
        plan, targets, out=out, facts_of=local.container_facts, console=steps.console
    )
    steps.console.print()
    steps.console.print(
        results_table(results.rows, requests_per_hour=plan.requests_per_hour, busy=busy)
    )
    silent = [row.target.name for row in results.rows if row.round_trip is None]
    if silent:
        raise CommandError(
            f"no request to {', '.join(silent)} was answered; the reasons are in {results.records}"
        )
    return results


def _say_where(steps: Steps, results: Results) -> None:
    steps.say_path(f"CSV      {results.csv}")
    steps.say_path(f"         {results.study_folder}/ (one file for each endpoint)")
    steps.say_path(f"records  {results.records}")
    steps.say_path(f"page     {results.report} (open it in a browser)", style="bold")


def _client(local: RunningLocalAws, endpoint: str) -> Client:
    description = describe_endpoint(endpoint, client=local.client("sagemaker"))
    return Client(SageMakerTarget(description, client=local.runtime_client()))


def _require_answer(measurement: Measurement, endpoint: str) -> None:
    if not measurement.ok:
        raise CommandError(
            f"{endpoint} gave no answer ({measurement.outcome}): {measurement.error}"
        )


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let stopping finish: a second Ctrl-C would leave processes behind."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = {signum: signal.signal(signum, signal.SIG_IGN) for signum in signals}
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


@contextlib.contextmanager
def _stopping(steps: Steps) -> Iterator[None]:
    """Say that an interrupted demo is stopping, and let it."""
    try:
        yield
    except KeyboardInterrupt:
        steps.console.print("\n[yellow]Interrupted.[/] Every process of the demo was stopped.")
        raise SystemExit(128 + signal.SIGINT) from None
