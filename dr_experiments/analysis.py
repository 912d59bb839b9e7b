"""From measurements to the figures of a table: pure functions, nothing is measured here."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from dr_experiments.pricing import (
    CostEstimate,
    PriceTable,
    UnknownPriceError,
    full_utilisation_per_hour,
    lambda_cost,
    realtime_cost,
    serverless_cost,
)
from dr_experiments.scenarios import ScenarioResult
from dr_experiments.statistics import Summary, summarise_durations
from dr_experiments.targets import MODE_LAMBDA, TargetDescription
from inference_image.contract import SERVING_MODE_REALTIME, SERVING_MODE_SERVERLESS

# One photograph every 5 s, the rate of the study's warm scenario.
DEFAULT_REQUESTS_PER_HOUR: Final = 720
_MS_PER_S: Final = 1000
_MODE_TITLES: Final = {SERVING_MODE_REALTIME: "real-time", MODE_LAMBDA: "Lambda"}


@dataclass(frozen=True, kw_only=True)
class ContainerFacts:
    """What the platform knows about the container that answered; all optional.

    Args:
        start_to_first_prediction_s: from the start of the process to its first prediction.
        memory_after_mib: resident memory of the process tree after that prediction.
        cpu_share: cores that the container may use; `cpu_how` says by which means.
        distinguishable: False where this machine cannot show the difference to a smaller row.
    """

    start_to_first_prediction_s: float | None = None
    memory_after_mib: float | None = None
    cpu_share: float | None = None
    cpu_how: str | None = None
    memory_how: str | None = None
    distinguishable: bool = True


@dataclass(frozen=True, kw_only=True)
class ConfigurationAnalysis:
    """One row of the result table. Latencies are milliseconds.

    `round_trip` is the client's, `container` the time in the container and `prediction` the
    model's part of it; None when no warm answer came. `cost` is an estimate, or None with the
    reason in `cost_missing`; `cost_full_use` exists for instances only. `mean_gap_s` lies between
    the starts of requests.
    """

    target: TargetDescription
    requests: int
    failed: int
    cold: int
    round_trip_values_ms: tuple[float, ...] = field(repr=False)
    round_trip: Summary | None
    container: Summary | None
    prediction: Summary | None
    cost: CostEstimate | None
    cost_full_use: CostEstimate | None
    cost_missing: str | None
    facts: ContainerFacts
    model_sha256: str | None
    failure_reasons: tuple[str, ...]
    mean_gap_s: float | None

    @property
    def title(self) -> str:
        """Mode and size, for people."""
        return f"{_MODE_TITLES.get(self.target.mode, self.target.mode)} {self.size}"

    @property
    def size(self) -> str:
        """Memory size or instance type, for people."""
        if self.target.memory_mib:
            return f"{self.target.memory_mib} MB"
        return self.target.instance_type or "this machine"


def analyse(
    result: ScenarioResult,
    *,
    prices: PriceTable,
    region: str,
    requests_per_hour: float = DEFAULT_REQUESTS_PER_HOUR,
    facts: ContainerFacts | None = None,
) -> ConfigurationAnalysis:
    """Statistics and estimated cost of one scenario at one target.

    Args:
        region: whose prices are used, whatever machine was measured.
        requests_per_hour: how many requests share an hour of a real-time instance.
    """
    answered = result.answered
    round_trip_ms = tuple(m.full_latency_s * _MS_PER_S for m in answered if m.full_latency_s)
    answers = [m.answer for m in answered if m.answer]
    container = _summary([a["requestLatency"] * _MS_PER_S for a in answers])
    cost = cost_full_use = cost_missing = None
    if container is not None:
        try:
            cost, cost_full_use = _costs(
                result.target,
                container_s=container.mean / _MS_PER_S,
                bytes_in=_mean([m.bytes_in for m in answered]),
                bytes_out=_mean([m.bytes_out or 0 for m in answered]),
                region=region,
                prices=prices,
                requests_per_hour=requests_per_hour,
            )
            if cost is None:
                cost_missing = "a process on this machine has no price"
        except UnknownPriceError as error:
            cost_missing = str(error)
    digests = {a["model"]["sha256"] for a in answers}
    return ConfigurationAnalysis(
        target=result.target,
        requests=len(result.measurements),
        failed=len(result.failures),
        cold=len(result.cold),
        round_trip_values_ms=round_trip_ms,
        round_trip=_summary(round_trip_ms),
        container=container,
        prediction=_summary([a["predictionLatency"] * _MS_PER_S for a in answers]),
        cost=cost,
        cost_full_use=cost_full_use,
        cost_missing=cost_missing,
        facts=facts or ContainerFacts(),
        # Two models behind one endpoint in one run would make its numbers meaningless.
        model_sha256=digests.pop() if len(digests) == 1 else None,
        failure_reasons=tuple(
            sorted({f"{m.outcome}: {m.error}" if m.error else m.outcome for m in result.failures})
        ),
        mean_gap_s=result.mean_gap_s,
    )


def _costs(
    target: TargetDescription,
    *,
    container_s: float,
    bytes_in: float,
    bytes_out: float,
    region: str,
    prices: PriceTable,
    requests_per_hour: float,
) -> tuple[CostEstimate | None, CostEstimate | None]:
    if target.mode == SERVING_MODE_SERVERLESS and target.memory_mib:
        estimate = serverless_cost(
            compute_s=container_s,
            memory_mib=target.memory_mib,
            bytes_in=bytes_in,
            bytes_out=bytes_out,
            region=region,
            prices=prices,
        )
        return estimate, None
    if target.mode == MODE_LAMBDA and target.memory_mib and target.architecture:
        estimate = lambda_cost(
            compute_s=container_s,
            memory_mib=target.memory_mib,
            architecture=target.architecture,
            region=region,
            prices=prices,
        )
        return estimate, None
    if target.mode == SERVING_MODE_REALTIME and target.instance_type:
        at_rate, at_full_use = (
            realtime_cost(
                instance_type=target.instance_type,
                requests_per_hour=rate,
                bytes_in=bytes_in,
                bytes_out=bytes_out,
                region=region,
                prices=prices,
            )
            for rate in (requests_per_hour, full_utilisation_per_hour(container_s))
        )
        return at_rate, at_full_use
    return None, None


def _summary(values: Sequence[float]) -> Summary | None:
    return summarise_durations(values) if values else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
