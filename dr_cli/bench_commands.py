"""`dr bench …` and its options. What is done is in the modules that they import when run."""

from pathlib import Path
from typing import Annotated

import typer

from dr_cli.commands import CommandGroup
from dr_cli.cost_commands import cost_app
from dr_cli.options import FunctionOption, FunctionUrlOption, ModelOption, finite

bench_app = typer.Typer(
    name="bench", cls=CommandGroup, help="Measure deployments.", no_args_is_help=True
)


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
        float, typer.Option(min=0, callback=finite, help="Seconds between the starts of requests.")
    ] = 5.0,
    region: Annotated[
        str | None,
        typer.Option(
            help="AWS region: of the endpoints (AWS_REGION or your profile when left out), and "
            "whose prices are used (us-east-1 where the endpoints are not on AWS)."
        ),
    ] = None,
    requests_per_hour: Annotated[
        float,
        typer.Option(
            min=0.001, callback=finite, help="Requests that share an hour of an instance."
        ),
    ] = 720,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the drawn photograph.")] = 7,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("out/bench"),
    in_turn: Annotated[
        bool,
        typer.Option(
            "--in-turn",
            help="Ask the endpoints in turn, request by request, so that a report compares them in "
            "pairs.",
        ),
    ] = False,
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
        in_turn=in_turn,
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
            min=0,
            callback=finite,
            help="Seconds without a request before each.",
            show_default="900; 0 with --model",
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
        float, typer.Option(min=0, callback=finite, help="Seconds between the starts of requests.")
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
    duration_s: Annotated[float, typer.Option(min=0.1, callback=finite, help="Seconds.")] = 300.0,
    think_s: Annotated[
        float,
        typer.Option(
            min=0, callback=finite, help="Seconds between an answer and the user's next request."
        ),
    ] = 0.0,
    rate_per_s: Annotated[
        float,
        typer.Option(
            min=0.001, callback=finite, help="Arrivals a second of open and server, on average."
        ),
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
    from dr_cli.amounts import seconds
    from dr_cli.planned_load import check_planned
    from dr_cli.predict import Place
    from dr_cli.scenario_runs import Sending
    from dr_cli.scenario_runs import bench_load as run

    seconds(latency_bound, option="--latency-bound")
    check_planned(shape, rate_per_s=rate_per_s, duration_s=duration_s, queries=queries)
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
    interval_s: Annotated[
        float, typer.Option(min=0, callback=finite, help="Seconds between their starts.")
    ] = 5.0,
    cold_requests: Annotated[
        int, typer.Option(min=0, help="Fresh containers of each row; an instance has none.")
    ] = 10,
    cold_gap_s: Annotated[
        float, typer.Option(min=0, callback=finite, help="Seconds of silence before each of them.")
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
        float | None,
        typer.Option(
            min=0.1,
            callback=finite,
            help="How long a row may stand, whatever happens.",
            show_default="120, or half as much again as the pauses between its requests",
        ),
    ] = None,
    spending_limit_usd: Annotated[
        float | None,
        typer.Option(
            min=0, callback=finite, help="Nothing is deployed that could exceed it (needed on AWS)."
        ),
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
        float,
        typer.Option(min=0, callback=finite, help="How long to wait for metrics that come late."),
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


bench_app.add_typer(cost_app)
