"""A target with a known latency, so that what the client reports can be checked exactly."""

import json
from collections.abc import Iterator
from typing import Any

from dr_experiments.targets import Payload, Reply, TargetDescription, TargetError


def answer(**changes: Any) -> dict[str, Any]:
    """A gradable answer of the contract; `changes` replace top-level keys."""
    document: dict[str, Any] = {
        "predictions": [0.1, 0.2, 0.4, 0.2, 0.1],
        "grade": 2,
        "label": "Moderate",
        "referable": {
            "probability": 0.7,
            "operating_point": "high_sensitivity",
            "threshold": 0.3,
            "positive": True,
        },
        "consistent": True,
        "quality": {"gradable": True, "reasons": []},
        "model": {"id": "mobilenet-demo", "sha256": "ab" * 32},
        "container": {"start_id": "c1", "started_to_ready_ms": 400.0, "requests_before": 1},
        "requestLatency": 0.010,
        "predictionLatency": 0.008,
    }
    document.update(changes)
    return document


def quick_answer(**changes: Any) -> dict[str, Any]:
    """An answer of a container that takes no time, for servers that answer at once."""
    return answer(**{"requestLatency": 5e-6, "predictionLatency": 4e-6, **changes})


class FakeClock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


class FakeTarget:
    """Takes `latencies_s` in turn; an entry that is a `TargetError` is raised after 9 s."""

    def __init__(
        self,
        clock: FakeClock,
        latencies_s: Iterator[float | TargetError],
        *,
        body: bytes | None = None,
        description: TargetDescription | None = None,
        answers: Iterator[dict[str, Any]] | None = None,
    ) -> None:
        self.clock = clock
        self.latencies_s = latencies_s
        self.body = body
        self.answers = answers
        self.starts: list[float] = []
        self.description = description or TargetDescription(
            name="dr-serverless-mobilenet-2048",
            mode="serverless",
            memory_mib=2048,
            region="us-east-1",
            platform="local-aws",
        )

    def describe(self) -> TargetDescription:
        return self.description

    def send(self, payload: Payload) -> Reply:
        self.starts.append(self.clock.now)
        step = next(self.latencies_s)
        if isinstance(step, TargetError):
            self.clock.now += 9
            raise step
        self.clock.now += step
        body = self.body
        if body is None:
            body = json.dumps(next(self.answers) if self.answers else quick_answer()).encode()
        return Reply(body=body, platform_ms={"model_latency_ms": 9.0, "model_setup_ms": 0.0})


PAYLOAD = Payload(body=b"\xff\xd8\xff" + bytes(97), content_type="image/jpeg")
