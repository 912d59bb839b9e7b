"""The commands and their options. What they do is in the modules that they import when run."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dr_cli.commands import CommandGroup
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
local_app = typer.Typer(
    name="local",
    cls=CommandGroup,
    help="A local AWS to deploy to, on this machine only.",
    no_args_is_help=True,
)
bench_app = typer.Typer(
    name="bench", cls=CommandGroup, help="Measure deployments.", no_args_is_help=True
)
model_app = typer.Typer(
    name="model", cls=CommandGroup, help="Model packages.", no_args_is_help=True
)
data_app = typer.Typer(
    name="data",
    cls=CommandGroup,
    help="Photographs to train on: tables, splits and records.",
    no_args_is_help=True,
)
image_app = typer.Typer(
    name="image", cls=CommandGroup, help="Images of the service.", no_args_is_help=True
)
app.add_typer(image_app)
app.add_typer(local_app)
app.add_typer(bench_app)
app.add_typer(model_app)
app.add_typer(data_app)
app.add_typer(study_app)

ModelOption = Annotated[
    Path | None,
    typer.Option(
        "--model", help="A model package (folder or model.tar.gz); the demo model when left out."
    ),
]
PortOption = Annotated[int, typer.Option(min=1, max=65535, help="TCP port on 127.0.0.1.")]


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


FunctionOption = Annotated[
    str | None, typer.Option(help="A Lambda function by its name, with its REPORT lines.")
]
FunctionUrlOption = Annotated[
    str | None, typer.Option(help="A Lambda function by its URL; requests are signed.")
]


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


MaxSideOption = Annotated[
    int | None,
    typer.Option(min=300, help="Make the photograph smaller first: pixels of its longer side."),
]
CropOption = Annotated[
    bool, typer.Option("--crop", help="Cut off the black border before the photograph is sent.")
]


@bench_app.command("warm")
def bench_warm(
    endpoints: Annotated[
        list[str] | None, typer.Argument(help="Deployed endpoints (names of stacks).")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Measure a service such as `dr serve` instead.")
    ] = None,
    function: Annotated[
        list[str] | None,
        typer.Option(help="A Lambda function on AWS, by its name; may be given several times."),
    ] = None,
    function_url: FunctionUrlOption = None,
    photograph: Annotated[
        Path | None, typer.Option(help="What to send; a drawn photograph when left out.")
    ] = None,
    crop: CropOption = False,
    max_side_px: MaxSideOption = None,
    requests: Annotated[
        int, typer.Option(min=1, max=100_000, help="Counted requests to each endpoint.")
    ] = 25,
    interval_s: Annotated[
        float, typer.Option(min=0, help="Seconds between the starts of requests.")
    ] = 5.0,
    region: Annotated[
        str | None,
        typer.Option(
            help="AWS region: of the endpoints (AWS_REGION or your profile when left out), and "
            "whose prices are used (us-east-1 where the endpoints are not on AWS)."
        ),
    ] = None,
    requests_per_hour: Annotated[
        float, typer.Option(min=0.001, help="Requests that share an hour of an instance.")
    ] = 720,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the drawn photograph.")] = 7,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("out/bench"),
) -> None:
    """One uncounted request, then N at an interval: statistics, cost, CSV and a page."""
    from dr_cli.bench import bench_warm as run

    run(
        endpoints or [],
        url=url,
        functions=function or [],
        function_url=function_url,
        photograph=photograph,
        crop=crop,
        max_side_px=max_side_px,
        requests=requests,
        interval_s=interval_s,
        region=region,
        requests_per_hour=requests_per_hour,
        seed=seed,
        out=out,
    )


@bench_app.command("analyse")
def bench_analyse(
    folder: Annotated[
        Path,
        typer.Argument(
            help="CSV files of the earlier study's form: warm-up-VGG19-2gb.csv, "
            "cold-start-…, real-time-VGG19-ml.m5.xlarge.csv."
        ),
    ],
    write: Annotated[
        Path | None,
        typer.Option(help="Write the tables between the markers of this Markdown page."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare the page instead, and fail if it differs.")
    ] = False,
    beside: Annotated[
        Path | None,
        typer.Option(
            help="requests.jsonl of a sweep over its rows: relative effects beside the study's."
        ),
    ] = None,
) -> None:
    """Recompute the study from its CSV files: means, speed-ups, costs on both bases, errata."""
    from dr_cli.analyse import analyse_study

    analyse_study(folder, write=write, check=check, beside=beside)


OneEndpoint = Annotated[str | None, typer.Argument(help="A deployed endpoint (name of its stack).")]
UrlOption = Annotated[str | None, typer.Option(help="A service such as `dr serve` instead.")]
SentOption = Annotated[
    Path | None, typer.Option("--photograph", help="What to send; drawn when left out.")
]
RegionOption = Annotated[str | None, typer.Option(help="AWS region of what is measured.")]
SeedOption = Annotated[
    int, typer.Option(min=0, help="Seed of the drawn photograph and of everything random.")
]
RetriesOption = Annotated[
    int, typer.Option(min=0, max=10, help="Further attempts when throttled or unreachable.")
]
OutOption = Annotated[Path, typer.Option(help="Folder for the results.")]


BenchModelOption = Annotated[
    Path | None,
    typer.Option(
        "--model", help="A package, served by a process of this machine for the run; its folder."
    ),
]


@bench_app.command("cold")
def bench_cold(
    endpoint: OneEndpoint = None,
    url: UrlOption = None,
    function: FunctionOption = None,
    function_url: FunctionUrlOption = None,
    model: BenchModelOption = None,
    photograph: SentOption = None,
    requests: Annotated[int, typer.Option(min=1, max=1000, help="Fresh containers to meet.")] = 10,
    gap_s: Annotated[
        float | None,
        typer.Option(
            min=0, help="Seconds without a request before each.", show_default="900; 0 with --model"
        ),
    ] = None,
    attempts: Annotated[
        int, typer.Option(min=1, max=100, help="Gaps for each fresh container before it gives up.")
    ] = 3,
    crop: CropOption = False,
    max_side_px: MaxSideOption = None,
    retries: RetriesOption = 0,
    region: RegionOption = None,
    seed: SeedOption = 7,
    out: OutOption = Path("out/cold"),
) -> None:
    """Requests so far apart that each meets a fresh container, which its start id proves."""
    from dr_cli.predict import Place
    from dr_cli.scenario_runs import Sending
    from dr_cli.scenario_runs import bench_cold as run

    run(
        Place(
            endpoint=endpoint,
            url=url,
            function=function,
            function_url=function_url,
            region=region,
        ),
        Sending(
            photograph=photograph,
            seed=seed,
            out=out,
            retries=retries,
            max_side_px=max_side_px,
            crop=crop,
        ),
        requests=requests,
        gap_s=gap_s,
        attempts=attempts,
        model=model,
    )


@bench_app.command("realtime")
def bench_realtime(
    endpoint: OneEndpoint = None,
    url: UrlOption = None,
    function: FunctionOption = None,
    function_url: FunctionUrlOption = None,
    model: BenchModelOption = None,
    photograph: SentOption = None,
    requests: Annotated[int, typer.Option(min=1, max=100_000, help="Requests.")] = 25,
    interval_s: Annotated[
        float, typer.Option(min=0, help="Seconds between the starts of requests.")
    ] = 5.0,
    crop: CropOption = False,
    max_side_px: MaxSideOption = None,
    retries: RetriesOption = 0,
    region: RegionOption = None,
    seed: SeedOption = 7,
    out: OutOption = Path("out/realtime"),
) -> None:
    """N requests at an interval, each of them counted."""
    from dr_cli.predict import Place
    from dr_cli.scenario_runs import Sending
    from dr_cli.scenario_runs import bench_realtime as run

    run(
        Place(
            endpoint=endpoint,
            url=url,
            function=function,
            function_url=function_url,
            region=region,
        ),
        Sending(
            photograph=photograph,
            seed=seed,
            out=out,
            retries=retries,
            max_side_px=max_side_px,
            crop=crop,
        ),
        requests=requests,
        interval_s=interval_s,
        model=model,
    )


@bench_app.command("load")
def bench_load(
    endpoint: OneEndpoint = None,
    url: UrlOption = None,
    function: FunctionOption = None,
    function_url: FunctionUrlOption = None,
    model: BenchModelOption = None,
    photograph: SentOption = None,
    shape: Annotated[
        str,
        typer.Option(
            help="Users who wait for their answers: constant, incremental, random, spike; "
            "open: arrivals on a schedule, whatever became of those before; or a scenario of "
            "MLPerf LoadGen: single-stream, server, offline."
        ),
    ] = "constant",
    users: Annotated[int, typer.Option(min=1, max=1000, help="Users, at most.")] = 40,
    duration_s: Annotated[float, typer.Option(min=0.1, help="Seconds.")] = 300.0,
    think_s: Annotated[
        float, typer.Option(min=0, help="Seconds between an answer and the user's next request.")
    ] = 0.0,
    rate_per_s: Annotated[
        float,
        typer.Option(min=0.001, help="Arrivals a second of open and server, on average."),
    ] = 10.0,
    max_in_flight: Annotated[
        int, typer.Option(min=1, max=2000, help="Open requests at once of open and server.")
    ] = 256,
    latency_bound: Annotated[
        str, typer.Option(help="Longest p99 for which server is valid: 1s, 800ms.")
    ] = "1s",
    queries: Annotated[
        int, typer.Option(min=1, help="Least number of queries of MLPerf LoadGen's scenarios.")
    ] = 1,
    crop: CropOption = False,
    max_side_px: MaxSideOption = None,
    retries: RetriesOption = 0,
    region: RegionOption = None,
    seed: SeedOption = 7,
    out: OutOption = Path("out/load"),
) -> None:
    """Many requests at once: simulated users, or arrivals that do not wait for the server."""
    from dr_cli.predict import Place
    from dr_cli.scenario_runs import Sending
    from dr_cli.scenario_runs import bench_load as run

    run(
        Place(
            endpoint=endpoint,
            url=url,
            function=function,
            function_url=function_url,
            region=region,
        ),
        Sending(
            photograph=photograph,
            seed=seed,
            out=out,
            retries=retries,
            max_side_px=max_side_px,
            crop=crop,
        ),
        shape=shape,
        users=users,
        duration_s=duration_s,
        think_s=think_s,
        rate_per_s=rate_per_s,
        max_in_flight=max_in_flight,
        latency_bound=latency_bound,
        queries=queries,
        model=model,
    )


@bench_app.command("sweep")
def bench_sweep(
    rows: Annotated[list[str], typer.Argument(help="Rows of the matrix, as `cdk list` has them.")],
    on: Annotated[
        str, typer.Option("--on", help="Where to deploy: local (a local AWS of its own) or aws.")
    ],
    runtime: Annotated[
        list[str] | None,
        typer.Option(help="Container flavour, litert or tensorflow; may be repeated."),
    ] = None,
    package: Annotated[
        list[str] | None,
        typer.Option(
            help="MODEL:LABEL=FOLDER, a package that replaces the row's own (another "
            "quantisation or input size); may be repeated."
        ),
    ] = None,
    tensorflow_python: Annotated[
        Path | None,
        typer.Option(help="An interpreter with TensorFlow, for --runtime tensorflow here."),
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="Warm requests of each row.")] = 25,
    interval_s: Annotated[float, typer.Option(min=0, help="Seconds between their starts.")] = 5.0,
    cold_requests: Annotated[int, typer.Option(min=0, help="Fresh containers of each row.")] = 10,
    cold_gap_s: Annotated[
        float, typer.Option(min=0, help="Seconds of silence before each of them.")
    ] = 900.0,
    cold_attempts: Annotated[int, typer.Option(min=1, help="Gaps for each of them.")] = 3,
    seed: Annotated[int, typer.Option(help="Of the order, and of the drawn photograph.")] = 7,
    photograph: Annotated[
        Path | None, typer.Option(help="What is sent; a drawn one when left out.")
    ] = None,
    crop: CropOption = False,
    max_side_px: Annotated[
        int | None, typer.Option(help="Make the photograph smaller before it is sent.")
    ] = None,
    region: Annotated[str, typer.Option(help="AWS region, and whose prices.")] = "us-east-1",
    ttl_minutes: Annotated[
        float, typer.Option(min=0.1, help="How long a row may stand, whatever happens.")
    ] = 120.0,
    spending_limit_usd: Annotated[
        float | None,
        typer.Option(min=0, help="Nothing is deployed that could exceed it (needed on AWS)."),
    ] = None,
    context: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE for the CDK app; may be repeated.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the sweep; the same one continues it.")] = (
        Path("out/sweep")
    ),
) -> None:
    """Deploy, measure and remove rows one after the other; asked again, it goes on."""
    from dr_cli.sweep import Asked, known_runtime
    from dr_cli.sweep import bench_sweep as run

    run(
        Asked(
            rows=tuple(dict.fromkeys(rows)),
            place=on,
            out=out,
            runtimes=tuple(dict.fromkeys(known_runtime(name) for name in runtime or ["litert"])),
            packages=tuple(package or ()),
            tensorflow_python=tensorflow_python,
            requests=requests,
            interval_s=interval_s,
            cold_requests=cold_requests,
            cold_gap_s=cold_gap_s,
            cold_attempts=cold_attempts,
            seed=seed,
            photograph=photograph,
            max_side_px=max_side_px,
            crop=crop,
            region=region,
            ttl_minutes=ttl_minutes,
            spending_limit_usd=spending_limit_usd,
            context=tuple(context or ()),
        )
    )


@bench_app.command("parity")
def bench_parity(
    photographs: Annotated[list[Path], typer.Argument(help="Photographs to compare on.")],
    crop: Annotated[
        bool, typer.Option("--crop", help="Without the black border around the fundus.")
    ] = False,
    max_side_px: Annotated[
        int | None, typer.Option(help="With a longer side of at most this.")
    ] = None,
    endpoint: Annotated[str | None, typer.Option(help="A deployed endpoint.")] = None,
    url: Annotated[str | None, typer.Option(help="A service such as `dr serve`.")] = None,
    model: ModelOption = None,
    region: Annotated[str | None, typer.Option(help="AWS region of the endpoint.")] = None,
) -> None:
    """Whether photographs are decided alike when they are made smaller before they are sent."""
    from dr_cli.parity import bench_parity as run

    run(
        photographs,
        cropped=crop,
        max_side_px=max_side_px,
        endpoint=endpoint,
        url=url,
        model=model,
        region=region,
    )


@bench_app.command("cloudwatch")
def bench_cloudwatch(
    folder: Annotated[Path, typer.Argument(help="Folder of a run, with its requests.jsonl.")],
    region: Annotated[str | None, typer.Option(help="AWS region of the endpoints.")] = None,
    wait_s: Annotated[
        float, typer.Option(min=0, help="How long to wait for metrics that come late.")
    ] = 600.0,
) -> None:
    """What SageMaker itself measured in the minutes of a run, from CloudWatch."""
    from dr_cli.cloudwatch import bench_cloudwatch as run

    run(folder, region=region, wait_s=wait_s)


@bench_app.command("sweep-watch", hidden=True)
def bench_sweep_watch(
    folder: Annotated[Path, typer.Argument(help="Folder of the sweep.")],
) -> None:
    """Remove what a sweep left deployed; each sweep starts this beside itself."""
    from dr_cli.sweep import watch_sweep

    watch_sweep(folder)


RunsArgument = Annotated[
    list[Path], typer.Argument(help="Folders that `dr bench` has written, or their requests.jsonl.")
]
RequestsOption = Annotated[int, typer.Option(min=1, help="Requests a month.")]
HoursOption = Annotated[
    str, typer.Option(help="When they come: always, clinic (217 hours a month) or a number.")
]
PricesOption = Annotated[
    Path | None, typer.Option("--prices", help="A price file of your own, in the same form.")
]
AlarmsOption = Annotated[int, typer.Option(min=0, help="CloudWatch alarms.")]
DashboardsOption = Annotated[int, typer.Option(min=0, help="CloudWatch dashboards.")]
KeysOption = Annotated[int, typer.Option(min=0, help="KMS keys of your own.")]
VpcEndpointsOption = Annotated[
    int, typer.Option(min=0, help="VPC interface endpoints, each zone counted.")
]
ProbeOption = Annotated[int | None, typer.Option(min=1, help="A probe every so many minutes.")]
WithoutDataOption = Annotated[
    bool,
    typer.Option(
        "--without-data", help="Leave out the charge for data, where a region has no price for it."
    ),
]


@bench_app.command("cost")
def bench_cost(
    runs: RunsArgument,
    requests_per_month: RequestsOption = 20_000,
    hours: HoursOption = "always",
    region: Annotated[str, typer.Option(help="Whose prices are used.")] = "us-east-1",
    alarms: AlarmsOption = 0,
    dashboards: DashboardsOption = 0,
    keys: KeysOption = 0,
    vpc_endpoints: VpcEndpointsOption = 0,
    probe_every_minutes: ProbeOption = None,
    log_gb: Annotated[float, typer.Option(min=0, help="GB of logs a month.")] = 0,
    model_gb: Annotated[float, typer.Option(min=0, help="GB of packages in S3.")] = 0,
    image_gb: Annotated[float, typer.Option(min=0, help="GB of images in ECR.")] = 0,
    provisioned: Annotated[
        int,
        typer.Option(
            min=0, help="Containers kept warm within --hours (serverless and Lambda rows)."
        ),
    ] = 0,
    storage_gb: Annotated[
        float, typer.Option(min=0, help="Volume of each instance (real-time rows).")
    ] = 0,
    ephemeral_mib: Annotated[
        int,
        typer.Option(min=512, max=10_240, help="Local disk of a function, in MiB (Lambda rows)."),
    ] = 512,
    cold_share: Annotated[
        float,
        typer.Option(min=0, max=1, help="Share of requests that start a container (Lambda rows)."),
    ] = 0,
    also: Annotated[
        list[str] | None,
        typer.Option(
            help="Price real-time rows as asynchronous or batch work, too: async, batch; may be "
            "repeated."
        ),
    ] = None,
    without_data: WithoutDataOption = False,
    prices: PricesOption = None,
) -> None:
    """A month of each measured deployment on both bases, and break-even between modes."""
    from decimal import Decimal

    from dr_cli.costs import print_costs
    from dr_experiments.deployment_cost import FixedPart

    print_costs(
        runs,
        requests_per_month=requests_per_month,
        hours=hours,
        region=region,
        fixed=FixedPart(
            alarms=alarms,
            dashboards=dashboards,
            keys=keys,
            vpc_endpoints=vpc_endpoints,
            probe_every_minutes=probe_every_minutes,
            log_gb=Decimal(str(log_gb)),
            model_gb=Decimal(str(model_gb)),
            image_gb=Decimal(str(image_gb)),
        ),
        prices_file=prices,
        provisioned=provisioned,
        storage_gb=storage_gb,
        ephemeral_mib=ephemeral_mib,
        cold_share=cold_share,
        also=tuple(also or ()),
        data=not without_data,
    )


@bench_app.command("recommend")
def bench_recommend(
    runs: RunsArgument,
    p99: Annotated[
        str | None, typer.Option("--p99", help="Longest p99 of a warm round trip: 1s, 800ms.")
    ] = None,
    requests_per_month: RequestsOption = 20_000,
    hours: HoursOption = "always",
    region: Annotated[str, typer.Option(help="Where it will run.")] = "us-east-1",
    min_sensitivity: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Least sensitivity for referable DR (lower bound)."),
    ] = None,
    alarms: AlarmsOption = 0,
    dashboards: DashboardsOption = 0,
    keys: KeysOption = 0,
    vpc_endpoints: VpcEndpointsOption = 0,
    probe_every_minutes: ProbeOption = None,
    without_data: WithoutDataOption = False,
    prices: PricesOption = None,
) -> None:
    """Rank measured deployments by cost, and print the row and the command of the best."""
    from dr_cli.costs import print_recommendation
    from dr_experiments.deployment_cost import FixedPart

    print_recommendation(
        runs,
        p99=p99,
        requests_per_month=requests_per_month,
        hours=hours,
        region=region,
        min_sensitivity=min_sensitivity,
        fixed=FixedPart(
            alarms=alarms,
            dashboards=dashboards,
            keys=keys,
            vpc_endpoints=vpc_endpoints,
            probe_every_minutes=probe_every_minutes,
        ),
        prices_file=prices,
        data=not without_data,
    )


@bench_app.command("prices")
def bench_prices(
    region: Annotated[str, typer.Option(help="Whose prices.")] = "us-east-1",
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Ask AWS's price list (needs credentials).")
    ] = False,
    write: Annotated[
        Path | None, typer.Option(help="Your price file, to which --refresh appends new rows.")
    ] = None,
    prices: PricesOption = None,
) -> None:
    """Show the price table of a region, or renew it from AWS's price list."""
    from dr_cli.prices import refresh_prices, show_prices

    if refresh:
        refresh_prices(region=region, write=write, prices_file=prices)
    else:
        show_prices(region=region, prices_file=prices)


@bench_app.command("report")
def bench_report(
    runs: RunsArgument,
    out: Annotated[Path, typer.Option(help="The page; figures go beside it.")] = Path(
        "report.html"
    ),
    language: Annotated[str, typer.Option(help="en or pt-BR.")] = "en",
    requests_per_month: RequestsOption = 20_000,
    hours: HoursOption = "always",
    region: Annotated[str, typer.Option(help="Whose prices are used.")] = "us-east-1",
    prices: PricesOption = None,
) -> None:
    """One page of recorded runs for people who were not there, with its figures as SVG and PNG."""
    from dr_cli.run_report import report_runs

    report_runs(
        runs,
        out=out,
        language=language,
        requests_per_month=requests_per_month,
        hours=hours,
        region=region,
        prices_file=prices,
    )


@model_app.command("inspect")
def model_inspect(
    package: Annotated[Path, typer.Argument(help="A model package: folder or model.tar.gz.")],
) -> None:
    """Check a model package and show what it says about itself."""
    from dr_cli.models import inspect

    inspect(package)


@model_app.command("card")
def model_card(
    package: Annotated[Path, typer.Argument(help="Folder of the model package.")],
) -> None:
    """Write the model card anew, as Markdown and as HTML with pictures."""
    from dr_cli.card import write_card

    write_card(package)


@model_app.command("quantise")
def model_quantise(
    package: Annotated[Path, typer.Argument(help="A package with a SavedModel.")],
    table: Annotated[Path, typer.Argument(help="A table of labelled images.")],
    split: Annotated[
        Path, typer.Option(help="Its training part represents, validation chooses, test measures.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the new packages, one for each variant.")],
    kind: Annotated[
        list[str] | None,
        typer.Option(help="int8, float16, dynamic-range or f32, once for each; all when left out."),
    ] = None,
    representatives: Annotated[
        int, typer.Option(min=1, help="Training images that show int8 its ranges.")
    ] = 300,
    sensitivity: Annotated[float, typer.Option(help="Aim of high_sensitivity.")] = 0.95,
    specificity: Annotated[float, typer.Option(help="Aim of high_specificity.")] = 0.95,
    margin: Annotated[float, typer.Option(help="How far sensitivity may have fallen.")] = 0.02,
    network: Annotated[
        Path | None,
        typer.Option(help="The trained .keras: trained on with int8's rounding if int8 fails."),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Of that training.")] = 3,
    draws: Annotated[
        int, typer.Option(min=20, max=100_000, help="Bootstrap draws behind the intervals.")
    ] = 1000,
) -> None:
    """Make quantised variants, calibrate, measure and gate each; exit code 1 if int8 fails."""
    from dr_cli.tensorflow_side import hand_over

    arguments = {
        "package": str(package),
        "table": str(table),
        "split": str(split),
        "out": str(out),
        "kinds": kind or [],
        "representatives": representatives,
        "sensitivity": sensitivity,
        "specificity": specificity,
        "margin": margin,
        "draws": draws,
        "network": None if network is None else str(network),
        "epochs": epochs,
    }
    raise typer.Exit(hand_over("dr_cli.quantise:quantise_package", arguments))


@model_app.command("import")
def model_import(
    source: Annotated[Path, typer.Argument(help="A SavedModel folder, .keras, .h5 or .tflite.")],
    out: Annotated[Path, typer.Option(help="Folder of the new package.")],
    labels: Annotated[
        str | None,
        typer.Option(help="Class of each output, in order: 0,1,2,3,4 or not referable,referable."),
    ] = None,
    scaling: Annotated[
        str | None, typer.Option(help="What pixels become: 0..255, 0..1, -1..1, torch or caffe.")
    ] = None,
    channel_order: Annotated[str | None, typer.Option(help="rgb or bgr.")] = None,
    preparation: Annotated[
        str, typer.Option(help="crop (to the fundus, with quality gate) or none.")
    ] = "crop",
    threshold: Annotated[float, typer.Option(help="On P(referable), not validated.")] = 0.5,
    licence: Annotated[str | None, typer.Option(help="Of the weights.")] = None,
    images: Annotated[
        Path | None, typer.Option(help="A folder of photographs for the sanity check.")
    ] = None,
    model_id: Annotated[
        str | None, typer.Option("--id", help="Model id; the folder's name when left out.")
    ] = None,
) -> None:
    """Wrap somebody else's model as a package; asks for what its file does not say."""
    from dr_cli.importing import import_package, takes_tensorflow

    arguments: dict[str, Any] = {
        "source": str(source),
        "out": str(out),
        "model_id": model_id,
        "labels": labels,
        "scaling": scaling,
        "channel_order": channel_order,
        "preparation": preparation,
        "threshold": threshold,
        "licence": licence,
        "images": None if images is None else str(images),
    }
    if not takes_tensorflow(source):
        raise typer.Exit(import_package(**arguments))
    from dr_cli.tensorflow_side import hand_over

    raise typer.Exit(hand_over("dr_cli.importing:import_package", arguments))


@model_app.command("push")
def model_push(
    package: Annotated[Path, typer.Argument(help="Folder of the model package.")],
    bucket: Annotated[
        str | None, typer.Option(help="Bucket; the one of the shared stack when left out.")
    ] = None,
    stage: Annotated[
        str | None, typer.Option(help="Stage of the shared stack, as in -c stage=…")
    ] = None,
) -> None:
    """Publish a model package to the bucket, under the digest that names it."""
    from dr_cli.models import push

    push(package, bucket=bucket, stage=stage)


@model_app.command("recalibrate")
def model_recalibrate(
    package: Annotated[Path, typer.Argument(help="A model package: folder or model.tar.gz.")],
    table: Annotated[Path, typer.Argument(help="A table of the site's labelled images.")],
    out: Annotated[Path, typer.Option(help="Folder of the new package.")],
    split: Annotated[
        Path | None,
        typer.Option(help="Choose on its validation part, measure on its test part."),
    ] = None,
    sensitivity: Annotated[float, typer.Option(help="Aim of high_sensitivity.")] = 0.95,
    specificity: Annotated[float, typer.Option(help="Aim of high_specificity.")] = 0.95,
    prevalence: Annotated[
        float | None, typer.Option(help="Share of referable patients at the site.")
    ] = None,
    model_id: Annotated[
        str | None, typer.Option("--id", help="Model id; the folder's name when left out.")
    ] = None,
    draws: Annotated[
        int, typer.Option(min=20, max=100_000, help="Bootstrap draws behind the intervals.")
    ] = 1000,
) -> None:
    """Fit temperature and thresholds to a site's own images; writes a new package.

    The exit code is 1 where a photograph failed (not where it is ungradable).
    """
    from dr_cli.calibrate import recalibrate_package

    failed = recalibrate_package(
        package,
        table,
        out,
        split_path=split,
        sensitivity=sensitivity,
        specificity=specificity,
        prevalence=prevalence,
        model_id=model_id,
        draws=draws,
    )
    raise typer.Exit(1 if failed else 0)


@model_app.command("gate")
def model_gate(
    candidate: Annotated[Path, typer.Argument(help="Folder of the quantised package.")],
    table: Annotated[Path, typer.Argument(help="A table of held-out labelled images.")],
    reference: Annotated[Path, typer.Option(help="The f32 package: folder or model.tar.gz.")],
    split: Annotated[Path | None, typer.Option(help="A split; its test part counts.")] = None,
    part: Annotated[str | None, typer.Option(help="Another part of the split than test.")] = None,
    operating_point: Annotated[
        str | None, typer.Option(help="The reference's default when left out.")
    ] = None,
    margin: Annotated[float, typer.Option(help="How far sensitivity may have fallen.")] = 0.02,
    specificity_margin: Annotated[
        float, typer.Option(help="How far specificity may have fallen.")
    ] = 0.05,
    draws: Annotated[
        int, typer.Option(min=20, max=100_000, help="Bootstrap draws behind the intervals.")
    ] = 1000,
    record: Annotated[
        bool, typer.Option(help="Write the verdict into the candidate's model.json.")
    ] = True,
) -> None:
    """Refuse a quantised variant that may miss more patients.

    The exit code is 1 unless it passed, and where a photograph failed.
    """
    from dr_cli.calibrate import gate_package

    passed = gate_package(
        candidate,
        table,
        reference=reference,
        split_path=split,
        part=part,
        operating_point=operating_point,
        margin=margin,
        specificity_margin=specificity_margin,
        draws=draws,
        record=record,
    )
    raise typer.Exit(0 if passed else 1)


@model_app.command("train")
def model_train(
    records: Annotated[Path, typer.Argument(help="Folder of `dr data prepare`.")],
    out: Annotated[Path, typer.Option(help="Folder of weights, logs and package.")],
    network: Annotated[str, typer.Option(help="A backbone's name (docs/networks.md).")],
    weights: Annotated[
        str, typer.Option(help="auto (ImageNet's where they can be had), imagenet or random.")
    ] = "auto",
    task: Annotated[str, typer.Option(help="grade5 or referable.")] = "grade5",
    network_size_px: Annotated[
        int | None, typer.Option(help="Enlarge the pictures to this inside the network.")
    ] = None,
    train: Annotated[str, typer.Option(help="all, or head: a frozen backbone.")] = "all",
    epochs: Annotated[int, typer.Option(help="At most so many.")] = 50,
    batch_size: Annotated[int, typer.Option(help="Of all devices together.")] = 32,
    learning_rate: Annotated[float, typer.Option(help="At the start.")] = 1e-3,
    weight_decay: Annotated[float, typer.Option(help="Of AdamW.")] = 1e-4,
    loss: Annotated[str, typer.Option(help="cross-entropy, focal or ordinal.")] = "cross-entropy",
    class_weights: Annotated[str, typer.Option(help="none or balanced.")] = "none",
    dropout: Annotated[float, typer.Option(help="Share of pooled features.")] = 0.0,
    augment: Annotated[bool, typer.Option(help="Flips and colour jitter.")] = True,
    monitor: Annotated[
        str, typer.Option(help="loss, kappa or auc of validation: best epoch, rate and end.")
    ] = "loss",
    reduce_patience: Annotated[int, typer.Option(help="Epochs until the rate is reduced.")] = 4,
    reduce_factor: Annotated[float, typer.Option(help="What the rate is multiplied by.")] = 0.5,
    stop_patience: Annotated[int, typer.Option(help="Epochs until the training ends.")] = 10,
    precision: Annotated[
        str, typer.Option(help="float32, mixed_bfloat16, mixed_float16 or auto.")
    ] = "float32",
    strategy: Annotated[
        str, typer.Option(help="auto, cpu, one-gpu, mirrored, multi-worker or tpu.")
    ] = "auto",
    cpu_devices: Annotated[int, typer.Option(help="Logical devices of the CPU.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Threads that compute and decode.")] = 2,
    seed: Annotated[int, typer.Option(help="Of weights, order and augmentation.")] = 0,
    restart: Annotated[bool, typer.Option("--restart", help="Forget what --out holds.")] = False,
    saved_model: Annotated[
        bool,
        typer.Option(
            "--saved-model",
            help="Package with a SavedModel, and network.keras: what `dr model quantise` takes.",
        ),
    ] = False,
    model_id: Annotated[
        str | None, typer.Option("--id", help="Model id; the folder's name when left out.")
    ] = None,
) -> None:
    """Train a network on records and write its package; SIGTERM stops it so that it can go on."""
    from dr_cli.tensorflow_side import hand_over
    from dr_cli.train import arguments

    raise typer.Exit(hand_over("dr_cli.training:train", arguments(records, out, locals())))


@model_app.command("compare")
def model_compare(
    records: Annotated[Path, typer.Argument(help="Folder of `dr data prepare`.")],
    networks: Annotated[str, typer.Option(help="Names of backbones, with commas between.")],
    out: Annotated[Path, typer.Option(help="Folder of trainings and ranking.")],
    weights: Annotated[
        str, typer.Option(help="auto (ImageNet's where they can be had), imagenet or random.")
    ] = "auto",
    network_size_px: Annotated[
        int | None, typer.Option(help="Enlarge the pictures to this inside the networks.")
    ] = None,
    train: Annotated[str, typer.Option(help="all, or head: frozen backbones.")] = "all",
    epochs: Annotated[int, typer.Option(help="At most so many.")] = 20,
    batch_size: Annotated[int, typer.Option(help="Of all devices together.")] = 32,
    learning_rate: Annotated[float, typer.Option(help="At the start.")] = 1e-3,
    strategy: Annotated[str, typer.Option(help="auto, cpu, one-gpu, mirrored or tpu.")] = "auto",
    threads: Annotated[int, typer.Option(min=1, help="Threads that compute and decode.")] = 2,
    seed: Annotated[int, typer.Option(help="Of weights, order and augmentation.")] = 0,
    restart: Annotated[bool, typer.Option("--restart", help="Forget what --out holds.")] = False,
) -> None:
    """Train several networks alike and rank their quality against latency and size."""
    from dr_cli.tensorflow_side import hand_over
    from dr_cli.train import comparison_arguments

    chosen = comparison_arguments(records, out, locals())
    raise typer.Exit(hand_over("dr_cli.training:compare", chosen))


@model_app.command("linear-head")
def model_linear_head(
    records: Annotated[Path, typer.Argument(help="Folder of `dr data prepare`.")],
    out: Annotated[Path, typer.Option(help="Folder of report and package.")],
    network: Annotated[
        str, typer.Option(help="A backbone with ImageNet weights.")
    ] = "efficientnet-lite0",
    network_size_px: Annotated[
        int | None, typer.Option(help="Enlarge the pictures to this inside the network.")
    ] = None,
    copies: Annotated[
        int, typer.Option(min=1, max=8, help="Orientations of each training picture.")
    ] = 4,
    seed: Annotated[int, typer.Option(help="Of folds and orientations.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="Threads that compute.")] = 2,
    model_id: Annotated[
        str | None, typer.Option("--id", help="Model id; the folder's name when left out.")
    ] = None,
) -> None:
    """Fit a regularised linear head on a frozen backbone and write its package."""
    from dr_cli.tensorflow_side import hand_over
    from dr_cli.train import linear_head_arguments

    chosen = linear_head_arguments(records, out, locals())
    raise typer.Exit(hand_over("dr_cli.training:fit_linear_head", chosen))


@data_app.command("table")
def data_table(
    kind: Annotated[
        str,
        typer.Argument(help="aptos, eyepacs, messidor2, idrid, folders, csv, npz or drawn."),
    ],
    source: Annotated[Path, typer.Argument(help="The data set's folder, or its CSV or .npz file.")],
    out: Annotated[Path, typer.Option(help="CSV file to write.")],
    label: Annotated[
        list[str] | None,
        typer.Option(help="Grade of a folder as NAME=GRADE, once for each (folders)."),
    ] = None,
    image_column: Annotated[str, typer.Option(help="Column of image names (csv).")] = "image",
    grade_column: Annotated[str, typer.Option(help="Column of grades 0 to 4 (csv).")] = "grade",
    patient_column: Annotated[
        str | None, typer.Option(help="Column that says whose a photograph is (csv).")
    ] = None,
    eye_column: Annotated[
        str | None, typer.Option(help="Column with left and right (csv).")
    ] = None,
    keep_unreadable: Annotated[
        bool, typer.Option(help="Keep files that cannot be read, marked, instead of refusing.")
    ] = False,
    headers_only: Annotated[
        bool,
        typer.Option("--headers-only", help="Do not decode the photographs: for large data sets."),
    ] = False,
) -> None:
    """Read a data set into one table, and report duplicates."""
    from dr_cli.data import make_table

    make_table(
        kind,
        source,
        out,
        labels=label or [],
        image_column=image_column,
        grade_column=grade_column,
        patient_column=patient_column,
        eye_column=eye_column,
        keep_unreadable=keep_unreadable,
        headers_only=headers_only,
    )


@data_app.command("split")
def data_split(
    table: Annotated[Path, typer.Argument(help="A table of `dr data table`.")],
    out: Annotated[Path, typer.Option(help="CSV file to write.")],
    seed: Annotated[int, typer.Option(min=0, help="Decides between patients alike.")] = 0,
    shares: Annotated[
        str, typer.Option(help="Shares of train, validation and test.")
    ] = "0.70,0.15,0.15",
    column: Annotated[
        str | None, typer.Option(help="Use the split of this column (published_split) instead.")
    ] = None,
    allow_missing: Annotated[
        list[int] | None, typer.Option(min=0, max=4, help="A grade that a part may lack.")
    ] = None,
    exclude_conflicting: Annotated[
        bool, typer.Option(help="Leave out copies of a picture with different grades.")
    ] = False,
) -> None:
    """Divide a table by patient, with every grade in each part."""
    from dr_cli.data import make_split_file

    make_split_file(
        table,
        out,
        seed=seed,
        shares=shares,
        column=column,
        allow_missing=allow_missing or [],
        exclude_conflicting=exclude_conflicting,
    )


@data_app.command("prepare")
def data_prepare(
    table: Annotated[Path, typer.Argument(help="A table of `dr data table`.")],
    split: Annotated[Path, typer.Option(help="A split of `dr data split`.")],
    out: Annotated[Path, typer.Option(help="Folder for records, manifest.json and qc.csv.")],
    size_px: Annotated[
        int | None, typer.Option(min=16, max=2048, help="Side of the prepared square; 299.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="Prepare exactly as this model package does.")
    ] = None,
    prepared_already: Annotated[
        bool, typer.Option(help="No crop and no quality gate: small pictures such as MedMNIST's.")
    ] = False,
    image_format: Annotated[
        str, typer.Option("--format", help="jpeg, or png for exact pixels.")
    ] = "jpeg",
    keep_ungradable: Annotated[
        bool, typer.Option(help="Write photographs that the gate refuses to the records too.")
    ] = False,
    records_per_shard: Annotated[int, typer.Option(min=1, help="Records of one file.")] = 1000,
    workers: Annotated[int, typer.Option(min=1, max=256, help="Processes.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Order of the records.")] = 0,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace records of other data in --out.")
    ] = False,
) -> None:
    """Prepare photographs as the service does, and write TFRecord files."""
    from dr_cli.data import prepare_records

    prepare_records(
        table,
        split,
        out,
        size_px=size_px,
        model=model,
        prepared_already=prepared_already,
        image_format=image_format,
        keep_ungradable=keep_ungradable,
        records_per_shard=records_per_shard,
        workers=workers,
        seed=seed,
        replace=replace,
    )


@data_app.command("check")
def data_check(
    target: Annotated[Path, typer.Argument(help="A table, or a folder of records.")],
    split: Annotated[Path | None, typer.Option(help="A split of the table.")] = None,
) -> None:
    """Check a table with its split, or every record of a folder."""
    from dr_cli.data import check

    check(target, split=split)


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
