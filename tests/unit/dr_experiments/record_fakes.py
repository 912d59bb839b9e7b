"""Records as runs would leave them, with the times that a test chooses."""

from collections.abc import Sequence
from typing import Any

from dr_experiments.measured import row_of
from dr_experiments.records import SCHEMA_VERSION, RequestRecord


def record(configuration: str, index: int = 1, **changes: Any) -> RequestRecord:
    """A counted, answered, warm request of a row of the matrix or of any other name."""
    row = row_of(configuration)
    fields: dict[str, Any] = dict.fromkeys(RequestRecord.__dataclass_fields__) | {
        "schema": SCHEMA_VERSION,
        "run_id": "20261128T000000Z",
        "git_commit": "c0ffee",
        "seed": 7,
        "scenario": "warm",
        "configuration": configuration,
        "mode": row.mode.value if row else "url",
        "memory_mib": row.memory_mib if row else None,
        "instance_type": row.instance_type if row else None,
        "region": "us-east-1" if row else None,
        "model_id": "mobilenet-demo",
        "model_sha256": "ab" * 32,
        "index": index,
        "counted": index > 0,
        "started_at": f"2026-11-28T00:{index // 60 % 60:02}:{index % 60:02}+00:00",
        "start_offset_s": float(index),
        "outcome": "ok",
        "status": 200,
        "bytes_in": 66_147,
        "bytes_out": 700,
        "cold": False,
        "container_start_id": "c1",
        "retries": 0,
        "throttles": 0,
    }
    return RequestRecord(**(fields | changes))


def answered(
    configuration: str, seconds: Sequence[float], *, share: float = 0.25, **changes: Any
) -> list[RequestRecord]:
    """Warm answers with these round trips; `share` of each is spent in the container."""
    return [
        record(
            configuration, index, fullLatency=value, requestLatency=value * share,
            predictionLatency=value * share / 2, **changes,
        )
        for index, value in enumerate(seconds, start=1)
    ]  # fmt: skip


def cold_starts(
    configuration: str, seconds: Sequence[float], *, phases: bool = True
) -> list[RequestRecord]:
    """Answers of fresh containers; phases add up to the round trip, the platform's is estimated."""
    made = []
    for index, value in enumerate(seconds, start=1):
        split = {
            "connection": 0.02, "platform": value - 1.32, "process_start": 0.2, "imports": 0.6,
            "model_load": 0.3, "first_prediction": 0.1, "answer": 0.1,
        }  # fmt: skip
        made.append(
            record(
                configuration, index, scenario="cold", cold=True, fullLatency=value,
                requestLatency=0.1, predictionLatency=0.05, container_start_id=f"c{index}",
                phases=split if phases else None,
                phases_estimated=["platform", "process_start"] if phases else None,
            )
        )  # fmt: skip
    return made


def failed(configuration: str, index: int, **changes: Any) -> RequestRecord:
    """A request that was never answered; its duration is absurd, so that a mean would show it."""
    fields = {
        "outcome": "timeout", "status": None, "error": "no answer within 60 s", "cold": None,
        "failed_after_s": 6000.0, "bytes_out": None, "container_start_id": None,
    }  # fmt: skip
    return record(configuration, index, **(fields | changes))
