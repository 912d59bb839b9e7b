"""`dr local`: the local AWS of the current folder."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from dr_cli.console import make_console
from dr_cli.errors import CommandError
from dr_cli.invocation import dr
from dr_experiments.analysis import ContainerFacts
from dr_experiments.targets import sagemaker_client
from dr_local import lifecycle
from dr_local.clients import ACCESS_KEY, REGION, SECRET_KEY
from dr_local.errors import HalfAliveError

STATE_DIR: Final = lifecycle.DEFAULT_STATE_DIR
# No asset of the image, so no Docker is needed; the package is pushed outside CloudFormation.
CONTEXT: Final = {"image": "source-digest", "publish": "external", "local": "true"}
MODEL_ROOT: Final = Path("model_artifacts")


class RunningLocalAws:
    """A local AWS that runs: clients that cannot leave the machine, and what it knows."""

    def __init__(self, local: lifecycle.LocalAws) -> None:
        self.local = local

    def client(self, service: str) -> Any:
        """A boto3 client of `service`."""
        return self.local.client(service)

    def runtime_client(self) -> Any:
        """An ordinary boto3 `sagemaker-runtime` client that does not retry."""
        return sagemaker_client(
            region=REGION,
            endpoint_url=self.local.runtime_url,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        )

    def endpoints(self) -> list[str]:
        """Names of the deployed endpoints, sorted."""
        pages = self.client("sagemaker").get_paginator("list_endpoints").paginate()
        return sorted(e["EndpointName"] for page in pages for e in page["Endpoints"])

    def container_facts(self, endpoint: str) -> ContainerFacts:
        """What the runtime knows about the first container of an endpoint."""
        metrics = self.local.metrics()
        found = metrics["endpoints"].get(endpoint)
        if found is None:
            return ContainerFacts()
        container: dict[str, Any] = next(iter(found["containers"]), {})
        first_ms = container.get("start_to_first_prediction_ms")
        return ContainerFacts(
            start_to_first_prediction_s=None if first_ms is None else first_ms / 1000,
            memory_after_mib=container.get("memory_after_first_prediction_mib"),
            cpu_share=found["vcpus"],
            cpu_how=metrics["cpu_share_by"],
            memory_how=metrics["memory_limit_by"],
            distinguishable=found["distinguishable"],
        )

    def assumptions(self) -> tuple[str, ...]:
        """What a reader of measurements made here must know."""
        metrics = self.local.metrics()
        cpu = (
            f"{metrics['cpu_assumption']}. It is held by {metrics['cpu_share_by']}; "
            f"the memory limit by {metrics['memory_limit_by']}."
        )
        cores = (
            f"This machine lends {metrics['machine_cores']} cores. A deployment that asks for "
            "more is run with these and marked as not distinguishable."
        )
        shared = (
            "Client, control plane, runtime and container share one machine, so the round trip "
            "has no network in it, and they compete for its cores."
        )
        return cpu, cores, shared


def running_local_aws(state_dir: Path = STATE_DIR) -> RunningLocalAws | None:
    """The local AWS of the current folder, where it runs."""
    local = lifecycle.status(state_dir=state_dir)
    return None if local is None else RunningLocalAws(local)


def up(*, control_port: int | None, runtime_port: int | None, idle_timeout_s: float) -> None:
    """See `dr local up --help`."""
    before = lifecycle.recorded(state_dir=STATE_DIR)
    was_running = before is not None and before.is_running
    local = lifecycle.up(
        state_dir=STATE_DIR,
        port=control_port,
        runtime_port=runtime_port,
        idle_timeout_s=idle_timeout_s,
    )
    if before is not None and not was_running:
        stop = dr("local down")
        print(f"The last one had died before `{stop}`; what was deployed there is lost.")
    print("The local AWS runs already." if was_running else "The local AWS runs.")
    print(f"  control plane      {local.endpoint_url}")
    print(f"  SageMaker runtime  {local.runtime_url}")
    print(f"  logs               {local.logs_dir}")
    print(f"deploy:  {dr('local deploy dr-serverless-mobilenet-2048')}")
    print(f'or use your own tools:  eval "$({dr("local env")})"')
    print(f"stop it:  {dr('local down')}")


def status() -> bool:
    """Print what runs; False when nothing does, or only half of it."""
    try:
        local = lifecycle.status(state_dir=STATE_DIR)
    except HalfAliveError as error:
        print(f"Half of it runs: {error}")
        return False
    if local is None:
        print(f"No local AWS runs from this folder; start it with: {dr('local up')}")
        return False
    from rich.table import Table

    print(f"control plane      {local.endpoint_url}  (process {local.control_plane.pid})")
    print(f"SageMaker runtime  {local.runtime_url}  (process {local.runtime.pid})")
    names = sorted(
        endpoint["EndpointName"]
        for page in local.client("sagemaker").get_paginator("list_endpoints").paginate()
        for endpoint in page["Endpoints"]
    )
    if not names:
        print(f"No endpoint is deployed; deploy one with: {dr('local deploy STACK')}")
        return True
    warm = local.metrics()["endpoints"]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("endpoint", "containers", "requests", "memory MiB", "CPUs"):
        table.add_column(heading, justify="left" if heading == "endpoint" else "right")
    for name in names:
        found = warm.get(name)
        if found is None:
            table.add_row(name, "0", "0", "", "")
            continue
        containers = [c for c in found["containers"] if c["running"]]
        memory = sum(c["memory_rss_mib"] or 0 for c in containers)
        table.add_row(
            name,
            str(len(containers)),
            str(sum(c["requests"] for c in found["containers"])),
            f"{memory:.0f}",
            f"{found['vcpus']:g}" + ("" if found["distinguishable"] else " (more than here)"),
        )
    make_console().print(table)
    return True


def down() -> None:
    """See `dr local down --help`."""
    report = lifecycle.down(state_dir=STATE_DIR)
    if report.servers_stopped == 0 and report.containers_killed == 0:
        print("No local AWS ran from this folder.")
        return
    print(f"Stopped {report.servers_stopped} servers and their containers.")


def print_environment() -> None:
    """See `dr local env --help`."""
    local = _require_running()
    for name, value in lifecycle.environment(local).items():
        print(f"export {name}={shlex.quote(value)}")


def deploy(stacks: Sequence[str]) -> None:
    """See `dr local deploy --help`."""
    from dr_cli.console import Steps
    from dr_cli.packages import require_files, spec_of
    from stacks.matrix import MATRIX, Mode, staged

    rows = {row.stack_id: row for row in MATRIX}
    unknown = [name for name in stacks if name not in rows]
    if unknown:
        raise CommandError(
            f"{', '.join(unknown)} is not in the deployment matrix; list the stacks with: "
            "npx cdk list"
        )
    functions = [name for name in stacks if rows[name].mode == Mode.LAMBDA]
    if functions:
        raise CommandError(
            f"{', '.join(functions)} cannot be deployed here: the local AWS runs SageMaker "
            "endpoints and no Lambda functions (docs/lambda.md has AWS's own emulator)"
        )
    packages = sorted({rows[name].package for name in stacks})
    for package in packages:
        # Before anything is deployed: a file that is missing later would leave half of it.
        folder = MODEL_ROOT / package
        require_files(spec_of(folder), folder)
    local = _require_running()
    steps = Steps(make_console())
    shared = staged("shared", None)
    with steps.step(f"cdk bootstrap, cdk deploy {shared}"):
        bootstrap(local)
        bucket = deploy_shared(local, shared)
    for package in packages:
        with steps.step(f"Pushing {package}"):
            push(local, MODEL_ROOT / package, bucket=bucket)
    with steps.step(f"cdk deploy {' '.join(stacks)}"):
        deploy_stacks(local, stacks)


def bootstrap(local: lifecycle.LocalAws) -> None:
    """Make the bucket, repository and roles that deployments use."""
    from dr_local import cdk_cli

    cdk_cli.bootstrap(local)


def deploy_shared(local: lifecycle.LocalAws, stack: str, *, assembly: Path | None = None) -> str:
    """Deploy the shared stack; returns the name of its model bucket."""
    from dr_cli.models import BUCKET_OUTPUT

    deploy_stacks(local, [stack], assembly=assembly)
    found = local.client("cloudformation").describe_stacks(StackName=stack)["Stacks"][0]
    outputs = {output["OutputKey"]: output["OutputValue"] for output in found["Outputs"]}
    return str(outputs[BUCKET_OUTPUT])


def deploy_stacks(
    local: lifecycle.LocalAws, stacks: Sequence[str], *, assembly: Path | None = None
) -> None:
    """Deploy stacks in one run of the CDK CLI.

    Args:
        assembly: a folder that `cdk synth` has written for the local AWS; without one the app
            is synthesized again.
    """
    from dr_local import cdk_cli

    if assembly is None:
        cdk_cli.deploy(local, stacks, context=CONTEXT)
        return
    cdk_cli.run_cdk(
        local,
        [
            *("deploy", *stacks, "--app", str(assembly)),
            # Change sets lose the outputs on moto, and a second deployment fails.
            *("--method", "direct", "--require-approval", "never"),
        ],
        name=f"deploy-{stacks[0]}",
    )


def push(local: lifecycle.LocalAws, folder: Path, *, bucket: str) -> str:
    """Put a model package into the bucket; returns its key."""
    from dr_local.publish import push_package

    return push_package(folder, bucket=bucket, client=local.client("s3"))


def _require_running() -> lifecycle.LocalAws:
    local = lifecycle.status(state_dir=STATE_DIR)
    if local is None:
        raise CommandError(f"no local AWS runs from this folder; start it with: {dr('local up')}")
    return local
