"""`dr image …` and its options. What they do is in the modules that they import when run."""

from typing import Annotated

import typer

from dr_cli.commands import CommandGroup

image_app = typer.Typer(
    name="image", cls=CommandGroup, help="Images of the service.", no_args_is_help=True
)


@image_app.command("publish")
def image_publish(
    repository: Annotated[str, typer.Argument(help="Repository of your public registry.")],
    architecture: Annotated[str, typer.Option(help="amd64 or arm64.")] = "amd64",
    runtime: Annotated[str, typer.Option(help="litert or tensorflow.")] = "litert",
    tag: Annotated[str | None, typer.Option(help="<runtime>-<architecture> when left out.")] = None,
    create: Annotated[
        bool, typer.Option("--create", help="Make the repository; everybody can read it.")
    ] = False,
) -> None:
    """Build the image, push it to ECR Public and print its digest, to repeat a study by."""
    from constructs_lib.limits import ARCHITECTURES
    from dr_cli.errors import CommandError
    from dr_cli.images import publish
    from inference_image.contract import RUNTIMES

    for name, value, known in (
        ("--architecture", architecture, ARCHITECTURES),
        ("--runtime", runtime, RUNTIMES),
    ):
        if value not in known:
            raise CommandError(f"{name} must be one of {', '.join(known)}; got {value!r}")
    publish(
        repository,
        architecture=architecture,
        runtime=runtime,
        tag=tag or f"{runtime}-{architecture}",
        create=create,
    )
