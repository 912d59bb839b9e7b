"""Cost of a month of a whole deployment, and where one mode becomes cheaper than another.

    >>> bill = monthly_bill(
    ...     Setup(mode="serverless", memory_mib=2048), Traffic(requests=20_000),
    ...     compute_s=0.1, region="us-east-1", prices=PriceTable.load(),
    ... )
    >>> bill.parts["compute"]
    Decimal('0.0800000')

A month has 730 hours. `compute_s` is either basis: the client's round trip, as the earlier study
computed, or the time in the container, which is closer to what AWS bills. Amounts are list
prices without tax, free tier or discount, and an unknown price is an error. Sources of what is
billed: https://aws.amazon.com/sagemaker-ai/pricing/, https://aws.amazon.com/lambda/pricing/ (a
Lambda duration is rounded up to the millisecond, and includes the initialisation of a start).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, Decimal
from typing import Final

from dr_experiments import pricing
from dr_experiments.pricing import BYTES_PER_GB, HOURS_PER_MONTH, SECONDS_PER_HOUR, PriceTable
from inference_image.contract import SERVING_MODE_REALTIME, SERVING_MODE_SERVERLESS

MODE_LAMBDA: Final = "lambda"
MODE_ASYNC: Final = "async"
MODE_BATCH: Final = "batch"
MODES: Final = (
    SERVING_MODE_SERVERLESS, SERVING_MODE_REALTIME, MODE_LAMBDA, MODE_ASYNC, MODE_BATCH,
)  # fmt: skip
# Five days of ten hours, 52 weeks in twelve months.
CLINIC_HOURS_PER_MONTH: Final = Decimal(5 * 10 * 52) / 12
FREE_EPHEMERAL_MIB: Final = 512
_MIB_PER_GB: Final = Decimal(1024)
_MOST_REQUESTS: Final = 10**9
# The probe's function (constructs_lib.probe): its memory, and a duration that is an assumption.
PROBE_MEMORY_MIB: Final = 256
PROBE_S: Final = Decimal("0.3")
_MINUTES_PER_MONTH: Final = HOURS_PER_MONTH * 60


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is deployed.

    Args:
        mode: one of `MODES`. `memory_mib` belongs to serverless and Lambda, `architecture` to
            Lambda (`amd64`, `arm64`), `instance_type` to the others.
        provisioned: containers kept warm, for `warm_hours` a month; `provisioned_share` of the
            requests meet one of them, but never more than these have time for. Requests outside
            `warm_hours` are among the others.
        instances: least number that runs for `instance_hours` a month each; async and batch run
            for their work only, so there it is the most at once.
        storage_gb: volume of each instance; `ephemeral_mib`: of a Lambda function.
        utilisation: share of an instance's time that may be busy before another one is started.
        start_s: billed start of an instance, for async and batch, `starts` times a month.
    """

    mode: str
    memory_mib: int | None = None
    instance_type: str | None = None
    architecture: str | None = None
    provisioned: int = 0
    warm_hours: Decimal = HOURS_PER_MONTH
    provisioned_share: Decimal = Decimal(1)
    instances: int = 1
    instance_hours: Decimal = HOURS_PER_MONTH
    storage_gb: Decimal = Decimal(0)
    ephemeral_mib: int = FREE_EPHEMERAL_MIB
    utilisation: Decimal = Decimal("0.7")
    start_s: Decimal = Decimal(300)
    starts: int = 20

    def __post_init__(self) -> None:
        by_memory = self.mode in (SERVING_MODE_SERVERLESS, MODE_LAMBDA)
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}; got {self.mode!r}")
        if (self.memory_mib is None) == by_memory or (self.instance_type is None) != by_memory:
            kind = "memory_mib" if by_memory else "instance_type"
            raise ValueError(f"{self.mode} has {kind} and not the other")
        if (self.architecture is None) == (self.mode == MODE_LAMBDA):
            raise ValueError("architecture belongs to lambda, and lambda needs it")
        if self.provisioned < 0 or self.instances < 1 or not 0 < self.utilisation <= 1:
            raise ValueError("provisioned >= 0, instances >= 1 and 0 < utilisation <= 1 are needed")
        if not 0 <= self.provisioned_share <= 1:
            raise ValueError("provisioned_share must lie between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """A month of requests.

    Args:
        requests: per month; they come within `hours` of it.
        bytes_in: of one request; `bytes_out`: of one answer.
        cold_share: share of requests that start a container; `init_s`: what Lambda bills for one.
    """

    requests: int
    bytes_in: float = 0
    bytes_out: float = 0
    hours: Decimal = HOURS_PER_MONTH
    cold_share: Decimal = Decimal(0)
    init_s: Decimal = Decimal(0)

    def __post_init__(self) -> None:
        if self.requests < 0 or not 0 < self.hours <= HOURS_PER_MONTH:
            raise ValueError("requests must be at least 0, and hours above 0 and at most 730")
        if not 0 <= self.cold_share <= 1 or self.init_s < 0:
            raise ValueError("cold_share must lie between 0 and 1, and init_s be at least 0")


@dataclass(frozen=True, kw_only=True)
class FixedPart:
    """What stands around an endpoint and costs the same however many requests come."""

    alarms: int = 0
    dashboards: int = 0
    keys: int = 0
    vpc_endpoints: int = 0
    log_gb: Decimal = Decimal(0)
    model_gb: Decimal = Decimal(0)
    image_gb: Decimal = Decimal(0)
    probe_every_minutes: int | None = None

    @property
    def probes(self) -> int:
        """Requests of the probe per month."""
        if self.probe_every_minutes is None:
            return 0
        if self.probe_every_minutes < 1:
            raise ValueError("probe_every_minutes must be at least 1")
        return int(_MINUTES_PER_MONTH / self.probe_every_minutes)


@dataclass(frozen=True, kw_only=True)
class Bill:
    """USD of a month by part, and what was assumed."""

    parts: Mapping[str, Decimal]
    assumptions: tuple[str, ...] = ()

    @property
    def usd(self) -> Decimal:
        return sum(self.parts.values(), Decimal(0))


def monthly_bill(
    setup: Setup,
    traffic: Traffic,
    *,
    compute_s: float | Decimal,
    region: str,
    prices: PriceTable,
    fixed: FixedPart | None = None,
) -> Bill:
    """A month of a deployment, its fixed part and its probe's requests included.

    Args:
        compute_s: seconds of one request on the chosen basis, above 0.

    Raises:
        UnknownPriceError: a price that the table lacks.
        ValueError: a time that is not a positive number.
    """
    seconds = Decimal(str(compute_s))
    if not seconds.is_finite() or seconds <= 0:
        raise ValueError(f"compute_s must be a finite number above 0; got {compute_s}")
    fixed = fixed or FixedPart()
    traffic = replace(traffic, requests=traffic.requests + fixed.probes)

    def usd(item: str, sku: str | None = None) -> Decimal:
        return prices.find(item, region=region, sku=sku).usd

    build = {
        SERVING_MODE_SERVERLESS: _serverless,
        SERVING_MODE_REALTIME: _realtime,
        MODE_LAMBDA: _lambda,
        MODE_ASYNC: _async,
        MODE_BATCH: _batch,
    }[setup.mode]
    parts, assumptions = build(setup, traffic, seconds, usd)
    every = {**parts, **_fixed(fixed, usd)}
    return Bill(
        parts={name: amount for name, amount in every.items() if amount},
        assumptions=assumptions,
    )


@dataclass(frozen=True, kw_only=True)
class BreakEven:
    """Requests per month from which the second is cheaper; None where it never is.

    `low` and `high` are the same with both times at the bounds of their 95 % intervals; a bound
    is None where the lines no longer cross.
    """

    requests: int | None
    low: int | None = field(default=None)
    high: int | None = field(default=None)


def break_even(
    first: Callable[[int, int], Decimal], second: Callable[[int, int], Decimal]
) -> BreakEven:
    """Where `second` becomes cheaper than `first`.

    Args:
        first: USD of a month by requests and side: 0 at the mean time, -1 and 1 at the lower and
            upper bound of its interval; `second` likewise.
    """
    corners = [
        _crossing(lambda n, s=side: first(n, s), lambda n, s=side: second(n, -s))  # type: ignore[misc]
        for side in (0, 1, -1)
    ]
    return BreakEven(requests=corners[0], low=corners[1], high=corners[2])


def _crossing(first: Callable[[int], Decimal], second: Callable[[int], Decimal]) -> int | None:
    """The first n of a fine grid, refined, at which `second` costs less."""
    below = 0
    n = 1
    while n <= _MOST_REQUESTS:
        if second(n) < first(n):
            while n - below > 1:
                middle = (n + below) // 2
                if second(middle) < first(middle):
                    n = middle
                else:
                    below = middle
            return n
        below, n = n, max(n + 1, n * 11 // 10)
    return None


def data_gb(setup: Setup, traffic: Traffic) -> dict[str, Decimal]:
    """GB that a month is charged for, by item; Lambda and batch transform charge for none."""
    charged = setup.mode not in (MODE_LAMBDA, MODE_BATCH)
    sizes = {pricing.ITEM_DATA_IN: traffic.bytes_in, pricing.ITEM_DATA_OUT: traffic.bytes_out}
    return {
        item: traffic.requests * Decimal(str(size)) / BYTES_PER_GB if charged else Decimal(0)
        for item, size in sizes.items()
    }


_Usd = Callable[..., Decimal]
_Parts = tuple[dict[str, Decimal], tuple[str, ...]]


def _data(traffic: Traffic, usd: _Usd) -> dict[str, Decimal]:
    sizes = {
        "data in": (traffic.bytes_in, pricing.ITEM_DATA_IN),
        "data out": (traffic.bytes_out, pricing.ITEM_DATA_OUT),
    }
    return {
        name: traffic.requests * Decimal(str(size)) / BYTES_PER_GB * usd(item)
        for name, (size, item) in sizes.items()
        if size
    }


def _serverless(setup: Setup, traffic: Traffic, seconds: Decimal, usd: _Usd) -> _Parts:
    size = str(setup.memory_mib)
    busy = traffic.requests * seconds
    rate = usd(pricing.ITEM_SERVERLESS_COMPUTE, size)
    if not setup.provisioned:
        return {"compute": busy * rate, **_data(traffic, usd)}, (
            "the start of a container is not billed",
        )
    warm = setup.provisioned * setup.warm_hours * SECONDS_PER_HOUR
    on_warm = _seconds_on_warm(setup, traffic, busy)
    return {
        "compute": (busy - on_warm) * rate,
        "provisioned concurrency": warm * usd(pricing.ITEM_SERVERLESS_WARM, size),
        "compute, provisioned": on_warm * usd(pricing.ITEM_SERVERLESS_WARM_COMPUTE, size),
        **_data(traffic, usd),
    }, (_kept_warm(setup, traffic, busy),)


def _seconds_on_warm(setup: Setup, traffic: Traffic, busy: Decimal) -> Decimal:
    """Busy seconds of a month that containers kept warm take; the others are billed on demand."""
    return min(setup.provisioned_share * busy, _warm_capacity_s(setup, traffic))


def _warm_capacity_s(setup: Setup, traffic: Traffic) -> Decimal:
    # One request at a time each. What is kept warm while no requests come serves nothing.
    return setup.provisioned * min(setup.warm_hours, traffic.hours) * SECONDS_PER_HOUR


def _kept_warm(setup: Setup, traffic: Traffic, busy: Decimal) -> str:
    """What was assumed about the containers that are kept warm."""
    capacity = _warm_capacity_s(setup, traffic)
    served = f"{setup.provisioned_share * 100:f}"
    if setup.provisioned_share * busy > capacity:
        served = f"{capacity / busy * 100:.2g}"
    return (
        f"{served} % of the requests meet a container that is kept warm; those kept warm have time "
        f"for {capacity:,.0f} busy seconds a month, and the rest is billed on demand"
    )


def instances_needed(setup: Setup, traffic: Traffic, seconds: Decimal) -> int:
    """Instances for the mean load within the hours of traffic, one request at a time each."""
    load = traffic.requests * seconds / (traffic.hours * SECONDS_PER_HOUR)
    return max(setup.instances, int((load / setup.utilisation).to_integral_value(ROUND_CEILING)))


def _realtime(setup: Setup, traffic: Traffic, seconds: Decimal, usd: _Usd) -> _Parts:
    needed = instances_needed(setup, traffic, seconds)
    # Those above the least number run in the hours of traffic only: autoscaling.
    hours = setup.instances * setup.instance_hours + (needed - setup.instances) * traffic.hours
    return {
        "instances": hours * usd(pricing.ITEM_INSTANCE_HOUR, setup.instance_type),
        **_storage(setup, hours, usd),
        **_data(traffic, usd),
    }, (f"{needed} instance{'s' if needed > 1 else ''} at the mean load, one request at a time",)


def _storage(setup: Setup, hours: Decimal, usd: _Usd) -> dict[str, Decimal]:
    if not setup.storage_gb:
        return {}
    month = usd(pricing.ITEM_INSTANCE_STORAGE)
    return {"storage": hours / HOURS_PER_MONTH * setup.storage_gb * month}


def _lambda(setup: Setup, traffic: Traffic, seconds: Decimal, usd: _Usd) -> _Parts:
    # The mean is rounded up, at most 1 ms more than the mean of the rounded.
    billed = seconds.quantize(Decimal("0.001"), rounding=ROUND_CEILING)
    memory_gb = Decimal(setup.memory_mib or 0) / _MIB_PER_GB
    busy = traffic.requests * billed
    # Without containers kept warm these have no time at all.
    on_warm = _seconds_on_warm(setup, traffic, busy)
    starts = traffic.requests * traffic.cold_share * traffic.init_s * memory_gb
    rate = usd(pricing.ITEM_LAMBDA_COMPUTE, setup.architecture)
    assumptions: tuple[str, ...] = (
        "the function's URL and data in cost nothing; data out is not counted",
    )
    parts = {
        "requests": Decimal(traffic.requests) / 10**6 * usd(pricing.ITEM_LAMBDA_REQUEST),
        "compute": (busy - on_warm) * memory_gb * rate,
        "starts": starts * rate,
    }
    if setup.provisioned:
        kept = setup.provisioned * setup.warm_hours * SECONDS_PER_HOUR * memory_gb
        parts["provisioned concurrency"] = kept * usd(pricing.ITEM_LAMBDA_WARM, setup.architecture)
        parts["compute, provisioned"] = (
            on_warm * memory_gb * usd(pricing.ITEM_LAMBDA_WARM_COMPUTE, setup.architecture)
        )
        assumptions += (_kept_warm(setup, traffic, busy),)
    extra = max(0, setup.ephemeral_mib - FREE_EPHEMERAL_MIB)
    if extra:
        parts["ephemeral storage"] = busy * extra / _MIB_PER_GB * usd(pricing.ITEM_LAMBDA_STORAGE)
    return parts, assumptions


def _work_hours(setup: Setup, traffic: Traffic, seconds: Decimal) -> Decimal:
    busy = traffic.requests * seconds / setup.utilisation + setup.starts * setup.start_s
    return busy / SECONDS_PER_HOUR


def _async(setup: Setup, traffic: Traffic, seconds: Decimal, usd: _Usd) -> _Parts:
    hours = _work_hours(setup, traffic, seconds)
    return {
        "instances": hours * usd(pricing.ITEM_ASYNC_HOUR, setup.instance_type),
        **_storage(setup, hours, usd),
        **_objects(traffic, usd),
        **_data(traffic, usd),
    }, (f"no instance between jobs; {setup.starts} starts of {setup.start_s} s a month",)


def _batch(setup: Setup, traffic: Traffic, seconds: Decimal, usd: _Usd) -> _Parts:
    hours = _work_hours(setup, traffic, seconds)
    return {
        "instances": hours * usd(pricing.ITEM_BATCH_HOUR, setup.instance_type),
        **_objects(traffic, usd),
    }, (f"{setup.starts} jobs a month, {setup.start_s} s of start each",)


def _objects(traffic: Traffic, usd: _Usd) -> dict[str, Decimal]:
    """One photograph written and read, one answer written and read."""
    thousands = Decimal(2 * traffic.requests) / 1000
    return {"objects": thousands * (usd(pricing.ITEM_S3_WRITE) + usd(pricing.ITEM_S3_READ))}


def _fixed(fixed: FixedPart, usd: _Usd) -> dict[str, Decimal]:
    amounts: dict[str, tuple[int | Decimal, str]] = {
        "alarms": (fixed.alarms, pricing.ITEM_ALARM),
        "dashboards": (fixed.dashboards, pricing.ITEM_DASHBOARD),
        "keys": (fixed.keys, pricing.ITEM_KEY),
        "VPC endpoints": (fixed.vpc_endpoints * HOURS_PER_MONTH, pricing.ITEM_VPC_ENDPOINT_HOUR),
        "logs": (fixed.log_gb, pricing.ITEM_LOG_INGESTION),
        "logs at rest": (fixed.log_gb, pricing.ITEM_LOG_STORAGE),
        "models at rest": (fixed.model_gb, pricing.ITEM_S3_STORAGE),
        "images at rest": (fixed.image_gb, pricing.ITEM_ECR_STORAGE),
    }
    parts = {
        name: Decimal(amount) * usd(item) for name, (amount, item) in amounts.items() if amount
    }
    if fixed.probes:
        gb_seconds = fixed.probes * PROBE_S * PROBE_MEMORY_MIB / _MIB_PER_GB
        parts["probe's function"] = gb_seconds * usd(
            pricing.ITEM_LAMBDA_COMPUTE, "amd64"
        ) + Decimal(fixed.probes) / 10**6 * usd(pricing.ITEM_LAMBDA_REQUEST)
    return parts
