"""The commands and their options. What they do is in the modules that they import when run.

Each group of commands has a module of its own: `dr bench` is in `bench_commands.py`.
"""

from pathlib import Path
from typing import Annotated

import typer

from dr_cli.bench_commands import bench_app
from dr_cli.commands import CommandGroup
from dr_cli.data_commands import data_app
from dr_cli.image_commands import image_app
from dr_cli.local_commands import local_app
from dr_cli.model_commands import model_app
from dr_cli.options import FunctionOption, FunctionUrlOption, ModelOption, PortOption
from dr_cli.study import study_app

app = typer.Typer(
    name="dr",
    cls=CommandGroup,
    help="Deploy, try and measure the diabetic-retinopathy grading service.",
    no_args_is_help=True,
    # main() turns errors into sentences; Typer's own tracebacks would get in the way.
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(image_app)
app.add_typer(local_app)
app.add_typer(bench_app)
app.add_typer(model_app)
app.add_typer(data_app)
app.add_typer(study_app)


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Deploy, try and measure the diabetic-retinopathy grading service."""
    # Read by main(), before the commands are; it is declared here for `dr --help`.


@app.command()
def serve(
    model: ModelOption = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: PortOption = 8080,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Worker processes.")] = 1,
) -> None:
    """Run the grading service for a model package until Ctrl-C."""
    from dr_cli.packages import package_or_default
    from dr_cli.serving import serve_until_stopped

    package = package_or_default(model)
    raise typer.Exit(serve_until_stopped(package, host=host, port=port, workers=workers))


@app.command()
def predict(
    images: Annotated[
        list[Path], typer.Argument(help="Photographs (JPEG, PNG, TIFF, WebP, BMP or DICOM).")
    ],
    endpoint: Annotated[
        str | None,
        typer.Option(help="A deployed endpoint: on the local AWS where it is up, else on AWS."),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="A service such as `dr serve`: http://127.0.0.1:8080.")
    ] = None,
    function: FunctionOption = None,
    function_url: FunctionUrlOption = None,
    model: ModelOption = None,
    region: Annotated[str | None, typer.Option(help="AWS region of the endpoint.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the service's own JSON, one line an image.")
    ] = False,
) -> None:
    """Grade photographs: grade, referable decision, image quality and latency."""
    from dr_cli.predict import Place, predict_images

    place = Place(
        endpoint=endpoint, url=url, function=function, function_url=function_url, region=region
    )
    failed = predict_images(images, place=place, model=model, as_json=as_json)
    if failed and len(images) > 1:
        typer.echo(f"dr: {failed} of {len(images)} photographs brought no answer", err=True)
    raise typer.Exit(1 if failed else 0)


@app.command()
def draw(
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("out/photographs"),
    grade: Annotated[
        int | None, typer.Option(min=0, max=4, help="One grade; all five when left out.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, max=1000, help="Pictures of each grade.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first picture.")] = 0,
    size_px: Annotated[int | None, typer.Option(min=128, max=4096, help="Width in pixels.")] = None,
) -> None:
    """Draw fundus photographs of known grade (no patient's)."""
    from dr_cli.drawn import draw_photographs

    draw_photographs(out, grade=grade, count=count, seed=seed, size_px=size_px)


@app.command()
def demo(
    photograph: Annotated[
        Path | None,
        typer.Option(help="A real photograph to grade; $DR_SHARED or ../shared/data else."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("out/demo"),
    requests: Annotated[
        int, typer.Option(min=2, max=10_000, help="Counted requests to each endpoint.")
    ] = 25,
    interval_s: Annotated[
        float, typer.Option(min=0, help="Seconds between the starts of requests.")
    ] = 0.05,
) -> None:
    """The whole line on this machine: synthesize, deploy locally, grade, measure, report."""
    from dr_cli.demo import run_demo

    run_demo(photograph=photograph, out=out, requests=requests, interval_s=interval_s)


@app.command()
def verify(
    stacks: Annotated[list[str], typer.Argument(help="Deployed stacks with an endpoint.")],
    region: Annotated[
        str | None, typer.Option(help="AWS region; without it, the local AWS where it is up.")
    ] = None,
) -> None:
    """Compare what endpoints serve with what their stacks' templates say, after a deployment."""
    from dr_cli.verify import verify as run

    raise typer.Exit(1 if run(stacks, region=region) else 0)


@app.command()
def preflight(
    stacks: Annotated[
        list[str] | None, typer.Argument(help="Stacks to be deployed; all when left out.")
    ] = None,
    assembly: Annotated[
        Path, typer.Option(help="Folder that `cdk synth` wrote, of any app.")
    ] = Path("cdk.out"),
    region: Annotated[
        str | None, typer.Option(help="AWS region of stacks that are for any region.")
    ] = None,
    pushed: Annotated[
        bool,
        typer.Option(
            "--pushed", help="Images must be there by now: between the shared stack and the others."
        ),
    ] = False,
) -> None:
    """Ask the account, before deploying: bootstrap, quotas, images, region; with each fix."""
    from dr_cli.preflight import preflight as run

    faults = run(stacks or [], assembly=assembly, region=region, pushed=pushed)
    raise typer.Exit(1 if faults else 0)


@app.command()
def evaluate(
    table: Annotated[
        Path | None, typer.Argument(help="A table of `dr data table`; or give --npz.")
    ] = None,
    npz: Annotated[
        Path | None, typer.Option(help="A MedMNIST file instead of a table; see --part.")
    ] = None,
    split: Annotated[Path | None, typer.Option(help="A split of the table.")] = None,
    part: Annotated[
        str | None, typer.Option(help="Part of the split or of the .npz: test when left out.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="A service such as `dr serve`: http://127.0.0.1:8080.")
    ] = None,
    endpoint: Annotated[str | None, typer.Option(help="A deployed endpoint.")] = None,
    model: ModelOption = None,
    region: Annotated[str | None, typer.Option(help="AWS region of the endpoint.")] = None,
    prevalence: Annotated[
        float | None,
        typer.Option(help="Share of referable patients where it will be used, for PPV and NPV."),
    ] = None,
    by: Annotated[
        list[str] | None, typer.Option(help="A column to break figures down by (camera, site).")
    ] = None,
    draws: Annotated[
        int, typer.Option(min=20, max=100_000, help="Bootstrap draws behind the intervals.")
    ] = 1000,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("out/evaluation"),
) -> None:
    """Score a model on labelled photographs: figures with intervals, page and pictures.

    The exit code is 1 where a photograph failed (not where it is ungradable).
    """
    from dr_cli.evaluate import evaluate_model

    failed = evaluate_model(
        table,
        npz=npz,
        split=split,
        part=part,
        url=url,
        endpoint=endpoint,
        model=model,
        region=region,
        prevalence=prevalence,
        by=by or [],
        draws=draws,
        out=out,
    )
    raise typer.Exit(1 if failed else 0)
