"""Measures one deployed entry: cold starts first, then warm requests, as records.

    >>> records = measure_entry(task, settings=settings, payload=payload, git_commit=commit)

Cold first, because the container that answers the last of them is then warm.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from dr_experiments.client import Client, Measurement
from dr_experiments.provenance import machine
from dr_experiments.records import RequestRecord, RunContext, records_of
from dr_experiments.scenarios import ScenarioResult, UnknownContainerError, cold, warm
from dr_experiments.sweep.plan import Settings
from dr_experiments.sweep.runner import EntryError, Task
from dr_experiments.targets import Payload


def measure_entry(
    task: Task,
    *,
    settings: Settings,
    payload: Payload,
    git_commit: str | None,
    client: Client | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> list[RequestRecord]:
    """Records of all requests to one entry.

    Raises:
        EntryError: the time to live is nearly over, and what was measured is worth nothing alone;
            or a fresh container cannot be told from another.
    """
    client = client or Client(task.deployed.target)

    def in_time(_number: int, _measurement: Measurement) -> None:
        if now() >= task.deadline:
            raise EntryError("its time to live was over before it was measured; use a longer one")

    results: list[ScenarioResult] = []
    try:
        if settings.cold_requests:
            results.append(
                cold(
                    client,
                    payload,
                    requests=settings.cold_requests,
                    gap_s=settings.cold_gap_s,
                    attempts=settings.cold_attempts,
                    on_request=in_time,
                )
            )
        results.append(
            warm(
                client,
                payload,
                requests=settings.requests,
                interval_s=settings.interval_s,
                on_request=in_time,
            )
        )
    except UnknownContainerError as error:
        raise EntryError(str(error)) from None
    finally:
        client.close()
    # The line was written before the container answered; logs of AWS may still be on their way.
    answered = [m for result in results for m in (*result.cold, *_warm_up(result))]
    ready = task.deployed.ready_lines(answered)
    context = RunContext(
        run_id=task.run_id, git_commit=git_commit, seed=settings.seed, machine=machine()
    )
    records = [r for result in results for r in records_of(result, context=context, ready=ready)]
    return [
        replace(
            record,
            configuration=task.entry.name,
            runtime=task.entry.runtime,
            image_digest=task.deployed.image_digest,
        )
        for record in records
    ]


def _warm_up(result: ScenarioResult) -> tuple[Measurement, ...]:
    return () if result.warm_up is None else (result.warm_up,)
