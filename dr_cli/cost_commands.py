"""`dr bench …` and its options, as far as it is about costs, choice and report."""

from pathlib import Path
from typing import Annotated

import typer

from dr_cli.commands import CommandGroup
from dr_cli.options import finite

# Without a name its commands are those of the group that takes it in.
cost_app = typer.Typer(cls=CommandGroup)


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
PriceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--price",
        metavar="ITEM=USD",
        help="A price that you have read yourself, for --region: data-in=0.016, or with its size "
        "or type, instance-hour:ml.m5.xlarge=0.23; may be repeated. The result names it.",
    ),
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


@cost_app.command("cost")
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
    log_gb: Annotated[float, typer.Option(min=0, callback=finite, help="GB of logs a month.")] = 0,
    model_gb: Annotated[
        float, typer.Option(min=0, callback=finite, help="GB of packages in S3.")
    ] = 0,
    image_gb: Annotated[
        float, typer.Option(min=0, callback=finite, help="GB of images in ECR.")
    ] = 0,
    provisioned: Annotated[
        int,
        typer.Option(
            min=0, help="Containers kept warm within --hours (serverless and Lambda rows)."
        ),
    ] = 0,
    storage_gb: Annotated[
        float,
        typer.Option(min=0, callback=finite, help="Volume of each instance (real-time rows)."),
    ] = 0,
    ephemeral_mib: Annotated[
        int,
        typer.Option(min=512, max=10_240, help="Local disk of a function, in MiB (Lambda rows)."),
    ] = 512,
    cold_share: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            callback=finite,
            help="Share of requests that start a container (Lambda rows).",
        ),
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
    price: PriceOption = None,
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
        given=tuple(price or ()),
        provisioned=provisioned,
        storage_gb=storage_gb,
        ephemeral_mib=ephemeral_mib,
        cold_share=cold_share,
        also=tuple(also or ()),
        data=not without_data,
    )


@cost_app.command("recommend")
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
        typer.Option(
            min=0, max=1, callback=finite, help="Least sensitivity for referable DR (lower bound)."
        ),
    ] = None,
    alarms: AlarmsOption = 0,
    dashboards: DashboardsOption = 0,
    keys: KeysOption = 0,
    vpc_endpoints: VpcEndpointsOption = 0,
    probe_every_minutes: ProbeOption = None,
    without_data: WithoutDataOption = False,
    prices: PricesOption = None,
    price: PriceOption = None,
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
        given=tuple(price or ()),
        data=not without_data,
    )


@cost_app.command("prices")
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
    from dr_cli.errors import CommandError
    from dr_cli.prices import refresh_prices, show_prices

    if write is not None and not refresh:
        raise CommandError("--write takes what --refresh finds; give both, or neither")
    if refresh:
        refresh_prices(region=region, write=write, prices_file=prices)
    else:
        show_prices(region=region, prices_file=prices)


@cost_app.command("report")
def bench_report(
    runs: RunsArgument,
    out: Annotated[Path, typer.Option(help="The page; figures go beside it.")] = Path(
        "report.html"
    ),
    language: Annotated[str, typer.Option(help="en or pt-BR.")] = "en",
    requests_per_month: RequestsOption = 20_000,
    hours: HoursOption = "always",
    region: Annotated[
        str | None,
        typer.Option(
            help="Whose prices are used. Where it is named, one of the deployments has to have a "
            "price there.",
            show_default="us-east-1",
        ),
    ] = None,
    prices: PricesOption = None,
    price: PriceOption = None,
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
        given=tuple(price or ()),
    )
