"""Where a sweep deploys to: AWS, or a local AWS of its own, both with the real `cdk` command.

Every sweep has stages of its own, named after its id, so that it can neither meet nor remove
anything that was deployed otherwise. Stacks are deleted through CloudFormation itself: that
needs neither the app nor its image, and a watcher can do it when nothing else is left.
"""

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dr_cli.cdk import CDK, require_checkout, run_logged
from dr_cli.container_logs import ready_lines_here, ready_lines_on_aws
from dr_cli.errors import CommandError
from dr_cli.packages import require_files, spec_of
from dr_experiments.image_digest import resolve_digest
from dr_experiments.sweep.plan import Entry, Plan
from dr_experiments.sweep.runner import PACKAGES_FOLDER, Deployed, EntryError, SweepError
from dr_experiments.targets import (
    SageMakerTarget,
    Target,
    TargetError,
    describe_endpoint,
    invoking_client,
    sagemaker_client,
)
from dr_local import lifecycle
from dr_local.clients import ACCESS_KEY, REGION, SECRET_KEY
from dr_local.errors import LocalAwsError
from inference_image.contract import ENV_RUNTIME, RUNTIME_LITERT, RUNTIME_TENSORFLOW
from stacks.matrix import MODEL_PACKAGES, Mode, staged

MODEL_ROOT: Final = Path("model_artifacts")
LOCAL_CONTEXT: Final = {"image": "source-digest", "publish": "external", "local": "true"}
_LOCAL_FOLDER: Final = "local"
_DELETE_TIMEOUT_S: Final = 1800.0
_DELETE_POLL_S: Final = 5.0
_GONE: Final = "does not exist"


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Entries that share a stage: one flavour of the container, one set of packages."""

    stage: str
    runtime: str
    package: str | None
    model_root: Path
    models: tuple[str, ...]
    modes: tuple[str, ...]

    @property
    def shared_stack(self) -> str:
        """Name of the stack with bucket and images."""
        return staged("shared", self.stage)

    @property
    def janitor_stack(self) -> str:
        """Name of the stack that ends the others on AWS."""
        return staged("janitor", self.stage)

    def context(self) -> dict[str, str]:
        """Context of the app for this variant."""
        return {
            "stage": self.stage,
            "runtime": self.runtime,
            "model-root": str(self.model_root.resolve()),
            "models": ",".join(self.models),
            "modes": ",".join(self.modes),
        }


def variants_of(plan: Plan, *, folder: Path) -> dict[tuple[str, str | None], Variant]:
    """The variants of a plan, by runtime and package label; `folder` is the sweep's."""
    keys = sorted({(e.runtime, e.package or "") for e in plan.entries})
    found: dict[tuple[str, str | None], Variant] = {}
    for number, (runtime, label) in enumerate(keys):
        entries = [e for e in plan.entries if (e.runtime, e.package or "") == (runtime, label)]
        found[(runtime, label or None)] = Variant(
            stage=f"s{plan.sweep_id}{number}",
            runtime=runtime,
            package=label or None,
            model_root=folder / PACKAGES_FOLDER / label if label else MODEL_ROOT,
            models=tuple(sorted({entry.deployment.model for entry in entries})),
            modes=tuple(sorted({entry.deployment.mode.value for entry in entries})),
        )
    return found


def place_packages(plan: Plan, *, folder: Path, packages: Mapping[tuple[str, str], Path]) -> None:
    """Put the packages of labels where the app looks for them, and check that all are whole.

    Args:
        packages: folders by model and label.

    Raises:
        CommandError: a package is missing or lacks files.
    """
    for variant in variants_of(plan, folder=folder).values():
        for model in variant.models:
            package = variant.model_root / MODEL_PACKAGES[model]
            if variant.package is not None:
                _place_package(packages[(model, variant.package)], package)
            require_files(spec_of(package), package)


@dataclass(kw_only=True)
class LocalPlace:
    """A local AWS for each container flavour, which ends with the process that started it.

    Args:
        python: of each flavour, an interpreter that has its engine.
        idle_timeout_s: after which an unused container is stopped, so that the next is fresh.
    """

    folder: Path
    plan: Plan
    python: Mapping[str, Path]
    idle_timeout_s: float
    _assemblies: dict[str, Path] = field(default_factory=dict)

    def prepare(self, *, ttl_s: float) -> None:
        """Start the local AWSs and deploy the shared stack and the packages to each."""
        require_checkout()
        try:
            for variant in self._variants.values():
                self._prepare(variant)
        except (CommandError, LocalAwsError) as error:
            raise SweepError(f"the local AWS could not be prepared: {error}") from None

    def deploy(self, entry: Entry, *, ttl_s: float) -> Deployed:
        """Deploy one stack; its endpoint starts no container before it is asked."""
        variant = self._variant(entry)
        if entry.deployment.mode == Mode.LAMBDA:
            raise EntryError("the local AWS runs SageMaker endpoints and no Lambda functions")
        name = entry.deployment.stack_id_in(variant.stage)
        local = self._local(variant.runtime)
        if local is None:
            raise SweepError(f"the local AWS of {self.folder} has ended; run the sweep again")
        try:
            self._cdk(
                local,
                ["deploy", name, "--exclusively", "--app", str(self._assemblies[variant.stage])],
                what=f"deploy {name}",
            )
            description = describe_endpoint(name, client=local.client("sagemaker"))
        except (CommandError, LocalAwsError, TargetError) as error:
            raise EntryError(str(error)) from None
        runtime_client = sagemaker_client(
            region=REGION,
            endpoint_url=local.runtime_url,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        )
        return Deployed(
            target=SageMakerTarget(description, client=runtime_client),
            ready_lines=lambda _measurements: ready_lines_here(local.logs_dir, name),
        )

    def remove(self, entry: Entry) -> None:
        """Delete the stack, where the local AWS still runs."""
        variant = self._variant(entry)
        local = self._local(variant.runtime)
        if local is not None:
            delete_stack(
                local.client("cloudformation"), entry.deployment.stack_id_in(variant.stage)
            )

    def release(self) -> None:
        """Stop the local AWSs, with everything in them."""
        for runtime in self.python:
            lifecycle.down(state_dir=self._state_dir(runtime))

    @property
    def _variants(self) -> dict[tuple[str, str | None], Variant]:
        return variants_of(self.plan, folder=self.folder)

    def _variant(self, entry: Entry) -> Variant:
        return self._variants[(entry.runtime, entry.package)]

    def _state_dir(self, runtime: str) -> Path:
        return self.folder.resolve() / _LOCAL_FOLDER / runtime

    def _local(self, runtime: str) -> lifecycle.LocalAws | None:
        found = lifecycle.recorded(state_dir=self._state_dir(runtime))
        return found if found is not None and found.is_running else None

    def _prepare(self, variant: Variant) -> None:
        from dr_local import cdk_cli
        from dr_local.publish import push_package

        local = self._local(variant.runtime)
        if local is None:
            local = lifecycle.up(
                state_dir=self._state_dir(variant.runtime),
                serve_command=_serve_command(variant.runtime, self.python[variant.runtime]),
                idle_timeout_s=self.idle_timeout_s,
                die_with_parent=True,
            )
            cdk_cli.bootstrap(local)
        assembly = self._assembly(variant, local)
        self._cdk(
            local,
            ["deploy", variant.shared_stack, "--exclusively", "--app", str(assembly)],
            what=f"deploy {variant.shared_stack}",
        )
        bucket = _outputs(local.client("cloudformation"), variant.shared_stack)["ModelBucketName"]
        for model in variant.models:
            push_package(
                variant.model_root / MODEL_PACKAGES[model],
                bucket=bucket,
                client=local.client("s3"),
            )

    def _assembly(self, variant: Variant, local: lifecycle.LocalAws) -> Path:
        if variant.stage not in self._assemblies:
            assembly = self.folder.resolve() / "assemblies" / variant.stage
            shutil.rmtree(assembly, ignore_errors=True)
            arguments = [str(CDK.resolve()), "synth", "--quiet", "--output", str(assembly)]
            run_logged(
                [*arguments, *_context({**LOCAL_CONTEXT, **variant.context()})],
                log=self.folder / "logs" / f"synth-{variant.stage}.log",
                what="cdk synth",
                environment=lifecycle.environment(local),
            )
            self._assemblies[variant.stage] = assembly
        return self._assemblies[variant.stage]

    def _cdk(self, local: lifecycle.LocalAws, arguments: Sequence[str], *, what: str) -> None:
        # Change sets lose the outputs on moto, and a second deployment fails.
        direct = ["--method", "direct", "--require-approval", "never"]
        run_logged(
            [str(CDK.resolve()), *arguments, *direct],
            log=self.folder / "logs" / f"{what.replace(' ', '-')}.log",
            what=f"cdk {what}",
            environment=lifecycle.environment(local),
        )


@dataclass(kw_only=True)
class AwsPlace:
    """The account of the AWS credentials in the environment.

    Each stack gets a time to live, which `dr-…-janitor` keeps inside the account, so that what
    this machine can no longer remove is removed all the same.

    Args:
        context: further `-c` values for the app, such as `own-repository`.
    """

    folder: Path
    plan: Plan
    region: str
    context: Mapping[str, str] = field(default_factory=dict)
    sleep: Callable[[float], None] = time.sleep

    def prepare(self, *, ttl_s: float) -> None:
        """Deploy janitor and shared stack of every variant."""
        require_checkout()
        try:
            for variant in self._variants.values():
                self._deploy([variant.janitor_stack, variant.shared_stack], variant, ttl_s=ttl_s)
        except CommandError as error:
            raise SweepError(str(error)) from None

    def deploy(self, entry: Entry, *, ttl_s: float) -> Deployed:
        """Deploy one stack and read what stands."""
        variant = self._variant(entry)
        name = entry.deployment.stack_id_in(variant.stage)
        try:
            self._deploy([name], variant, ttl_s=ttl_s)
            return self._deployed(entry, name)
        except (CommandError, TargetError) as error:
            raise EntryError(str(error)) from None

    def remove(self, entry: Entry) -> None:
        """Delete the stack and wait until it is gone."""
        name = entry.deployment.stack_id_in(self._variant(entry).stage)
        delete_stack(self._client("cloudformation"), name, sleep=self.sleep)

    def release(self) -> None:
        """Delete shared stack and janitor of every variant."""
        for variant in self._variants.values():
            for name in (variant.shared_stack, variant.janitor_stack):
                delete_stack(self._client("cloudformation"), name, sleep=self.sleep)

    @property
    def _variants(self) -> dict[tuple[str, str | None], Variant]:
        return variants_of(self.plan, folder=self.folder)

    def _variant(self, entry: Entry) -> Variant:
        return self._variants[(entry.runtime, entry.package)]

    def _client(self, service: str) -> Any:
        import boto3

        return boto3.client(service, region_name=self.region)

    def _deploy(self, stacks: Sequence[str], variant: Variant, *, ttl_s: float) -> None:
        # The janitor looks once an hour and counts whole hours.
        hours = max(1, -(-int(ttl_s) // 3600))
        context = {**variant.context(), "ttl-hours": str(hours), **self.context}
        run_logged(
            [
                *(str(CDK.resolve()), "deploy", *stacks, "--exclusively"),
                *("--require-approval", "never", *_context(context)),
                *("--output", str(self.folder.resolve() / "assemblies" / variant.stage)),
                # moto's change sets lose the outputs; against AWS both ways end the same.
                *(["--method", "direct"] if context.get("local") == "true" else []),
            ],
            log=self.folder / "logs" / f"deploy-{stacks[-1]}.log",
            what=f"cdk deploy {' '.join(stacks)}",
            environment=_person_environment(self.region),
        )

    def _deployed(self, entry: Entry, name: str) -> Deployed:
        if entry.deployment.mode == Mode.LAMBDA:
            from dr_experiments.lambda_targets import function_target

            client = invoking_client("lambda", region=self.region)
            target: Target = function_target(name, client=client)
            description = target.describe()
        else:
            description = describe_endpoint(name, client=self._client("sagemaker"))
            target = SageMakerTarget(description, client=sagemaker_client(region=self.region))
        return Deployed(
            target=target,
            image_digest=resolve_digest(description.image, client=self._client("ecr")),
            ready_lines=lambda measurements: ready_lines_on_aws(description, measurements),
        )


def delete_stack(client: Any, name: str, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Delete a stack and wait until it is gone; one that is not there is no error.

    Raises:
        EntryError: CloudFormation refused, failed, or took longer than half an hour.
    """
    import botocore.exceptions

    try:
        client.delete_stack(StackName=name)
        waited_s = 0.0
        while True:
            # By its id a deleted stack would still be found.
            status = client.describe_stacks(StackName=name)["Stacks"][0]["StackStatus"]
            if status == "DELETE_COMPLETE":
                return
            if status == "DELETE_FAILED" or waited_s >= _DELETE_TIMEOUT_S:
                raise EntryError(f"stack {name} is {status} after {waited_s:.0f} s")
            sleep(_DELETE_POLL_S)
            waited_s += _DELETE_POLL_S
    except botocore.exceptions.ClientError as error:
        if _GONE in error.response["Error"]["Message"]:
            return
        raise EntryError(f"stack {name}: {error.response['Error']['Message']}") from None
    except botocore.exceptions.BotoCoreError as error:
        raise EntryError(f"stack {name}: {error}") from None


def _place_package(source: Path, target: Path) -> None:
    """A link: packages are large, and the sweep's folder is removed as a whole."""
    spec_of(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_symlink() and target.resolve() == source.resolve():
        return
    target.unlink(missing_ok=True)
    target.symlink_to(source.resolve(), target_is_directory=True)


def _serve_command(runtime: str, python: Path) -> list[str]:
    serve = [str(python), "-m", "inference_image.serve"]
    if runtime == RUNTIME_LITERT:
        return serve
    # The image has it in its own environment; a local container has the deployment's alone.
    return ["/usr/bin/env", f"{ENV_RUNTIME}={RUNTIME_TENSORFLOW}", *serve]


def _context(values: Mapping[str, str]) -> list[str]:
    return [part for key, value in values.items() for part in ("-c", f"{key}={value}")]


def _outputs(client: Any, stack: str) -> dict[str, str]:
    found = client.describe_stacks(StackName=stack)["Stacks"][0]
    return {output["OutputKey"]: output["OutputValue"] for output in found["Outputs"]}


def _person_environment(region: str) -> dict[str, str]:
    """The person's own AWS variables and files, and the region that was asked for."""
    home = Path.home() / ".aws"
    own = {n: v for n, v in os.environ.items() if n.startswith(("AWS_", "CDK_"))}
    return {
        "AWS_CONFIG_FILE": str(home / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(home / "credentials"),
        "AWS_EC2_METADATA_DISABLED": "false",
        **own,
        "AWS_REGION": region,
        "AWS_DEFAULT_REGION": region,
    }
