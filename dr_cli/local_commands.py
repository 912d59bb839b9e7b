"""`dr local …` and its options. What they do is in the modules that they import when run."""

from typing import Annotated

import typer

from dr_cli.commands import CommandGroup

local_app = typer.Typer(
    name="local",
    cls=CommandGroup,
    help="A local AWS to deploy to, on this machine only.",
    no_args_is_help=True,
)


@local_app.command("up")
def local_up(
    control_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the control plane.")
    ] = None,
    runtime_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the SageMaker runtime.")
    ] = None,
    idle_timeout_s: Annotated[
        float, typer.Option(min=0.1, help="Stop a serverless container unused for so long.")
    ] = 300,
) -> None:
    """Start the local AWS in the background, and say how to use it."""
    from dr_cli.local import up

    up(control_port=control_port, runtime_port=runtime_port, idle_timeout_s=idle_timeout_s)


@local_app.command("status")
def local_status() -> None:
    """Say what runs and which endpoints are deployed; exit code 1 when nothing does."""
    from dr_cli.local import status

    raise typer.Exit(0 if status() else 1)


@local_app.command("down")
def local_down() -> None:
    """Stop the local AWS and every container that it started."""
    from dr_cli.local import down

    down()


@local_app.command("env")
def local_env() -> None:
    """Print the environment for other tools: eval "$(dr local env)"."""
    from dr_cli.local import print_environment

    print_environment()


@local_app.command("deploy")
def local_deploy(
    stacks: Annotated[list[str], typer.Argument(help="Stack ids of the deployment matrix.")],
) -> None:
    """Deploy stacks to the local AWS with the real CDK CLI, and push their models."""
    from dr_cli.local import deploy

    deploy(stacks)
