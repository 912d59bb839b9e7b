"""Load by MLPerf LoadGen: its arrivals, its rules, its verdict.

    >>> plan = LoadgenPlan(scenario=SERVER, rate_per_s=20, latency_bound_s=1.0, duration_s=60)
    >>> result, verdict = run_loadgen(make_client, payload, plan, logs=folder)
    >>> verdict.valid, verdict.p99_ms

LoadGen (MLCommons, https://github.com/mlcommons/inference/tree/master/loadgen) decides when a
query is sent and how long it took; it knows no target. This client sends each query as any other
request, so that answers are checked and every request has its record. Scenarios:

- `single-stream`: one query after the other; the verdict is on p90.
- `server`: queries arrive as a Poisson process, whatever became of those before; valid when p99
  from the arrival stays within the bound, with LoadGen's own demand for enough queries.
- `offline`: all queries at once, answered by as many senders as the plan says; throughput only,
  since nobody waits for a single one.

LoadGen cannot tell a failure from an answer. A failed request is answered towards LoadGen, so that
the run can end, and then the verdict is not valid: see `LoadgenVerdict.failed`.
"""

import contextlib
import importlib.util
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from dr_experiments.client import Measurement
from dr_experiments.load import MAX_IN_FLIGHT, MakeClient, OnRequest, Senders, drained
from dr_experiments.scenarios import ScenarioResult
from dr_experiments.targets import Payload, TargetDescription

SINGLE_STREAM: Final = "single-stream"
SERVER: Final = "server"
OFFLINE: Final = "offline"
LOADGEN_SCENARIOS: Final[Mapping[str, str]] = {
    SINGLE_STREAM: "SingleStream",
    SERVER: "Server",
    OFFLINE: "Offline",
}
# Of the scenario's name in the records.
LOADGEN_PREFIX: Final = "loadgen-"
DETAIL_FILE: Final = "mlperf_log_detail.txt"
_MARK: Final = ":::MLLOG "
_NS_PER_S: Final = 1_000_000_000
_NS_PER_MS: Final = 1_000_000


class LoadgenError(RuntimeError):
    """LoadGen is not installed or ended before its time; the text says which and what to do."""


@dataclass(frozen=True, kw_only=True)
class LoadgenPlan:
    """What LoadGen is asked for.

    Args:
        scenario: one of `LOADGEN_SCENARIOS`.
        duration_s: least length of the run, > 0; LoadGen also demands `queries`, >= 1.
        rate_per_s: mean arrivals a second of `server`; for `offline`, what it expects, which
            makes rate times duration queries. Not used by `single-stream`.
        latency_bound_s: of `server`, from the arrival to the answer.
        seed: of arrivals, >= 0.
        in_flight: open requests at once, >= 1; `single-stream` has one.
    """

    scenario: str
    duration_s: float
    queries: int = 1
    rate_per_s: float = 10.0
    latency_bound_s: float = 1.0
    seed: int = 7
    in_flight: int = MAX_IN_FLIGHT

    def __post_init__(self) -> None:
        if self.scenario not in LOADGEN_SCENARIOS:
            known = ", ".join(LOADGEN_SCENARIOS)
            raise ValueError(f"scenario must be one of {known}; got {self.scenario!r}")
        for name in ("duration_s", "rate_per_s", "latency_bound_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be a finite number above 0")
        if self.queries < 1 or self.in_flight < 1 or self.seed < 0:
            raise ValueError("queries and in_flight must be at least 1, and the seed at least 0")

    def settings(self) -> dict[str, Any]:
        """As `loadgen_process` takes them."""
        return {
            "scenario": LOADGEN_SCENARIOS[self.scenario],
            "min_duration_ms": max(1, round(self.duration_s * 1000)),
            "min_query_count": self.queries,
            "server_target_qps": self.rate_per_s,
            "server_target_latency_ns": round(self.latency_bound_s * _NS_PER_S),
            "server_target_latency_percentile": 0.99,
            "single_stream_target_latency_percentile": 0.9,
            "offline_expected_qps": self.rate_per_s,
            "qsl_rng_seed": self.seed,
            "sample_index_rng_seed": self.seed,
            "schedule_rng_seed": self.seed,
        }


@dataclass(frozen=True, kw_only=True)
class LoadgenVerdict:
    """What LoadGen says about the run; latencies are milliseconds from the scheduled moment.

    `valid` is LoadGen's verdict, and False whenever a request failed. `why` has its reasons and
    its early-stopping text. `over_bound` counts queries above the latency bound (`server`).
    `completed_per_s` is the throughput, in `server` beside the rate of the schedule.
    """

    scenario: str
    version: str
    valid: bool
    failed: int
    why: tuple[str, ...]
    queries: int
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    over_bound: int | None
    completed_per_s: float | None
    scheduled_per_s: float | None


def loadgen_available() -> bool:
    """Whether MLPerf LoadGen is installed here."""
    return importlib.util.find_spec("mlperf_loadgen") is not None


def run_loadgen(
    make_client: MakeClient,
    payload: Payload,
    plan: LoadgenPlan,
    *,
    logs: Path,
    on_request: OnRequest | None = None,
    on_measured: Callable[[Measurement], None] | None = None,
) -> tuple[ScenarioResult, LoadgenVerdict]:
    """Send what LoadGen asks for, and read its verdict.

    Args:
        make_client: called once for each sender, in its thread.
        logs: an existing folder for LoadGen's own log files.
        on_request: called with the number of finished requests, from any sender's thread.
        on_measured: called with each measurement as it is made, from any sender's thread.

    Raises:
        LoadgenError: not installed, or it ended without a result; its last words are in the text.
    """
    if not loadgen_available():
        raise LoadgenError(
            "MLPerf LoadGen is not installed: pip install 'dr-endpoints[loadgen]' (x86-64 Linux "
            "and macOS; it has no package for Linux on ARM)"
        )
    script = Path(__file__).with_name("loadgen_process.py")
    # -P: the script's folder holds modules that are named like those of the standard library.
    process = subprocess.Popen(
        [sys.executable, "-P", str(script), json.dumps(plan.settings()), str(logs)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=logs,
    )
    try:
        result = _serve(process, make_client, payload, plan, on_request, on_measured)
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    verdict = read_verdict(logs / DETAIL_FILE, scenario=plan.scenario)
    queries = len(result.measurements)
    return result, _with_failures(replace(verdict, queries=queries), len(result.failures))


def measured_so_far(
    plan: LoadgenPlan, target: TargetDescription, told: Sequence[Measurement]
) -> ScenarioResult:
    """What a run that was cut short has measured: of `on_measured`, in order of the starts."""
    measurements = sorted(told, key=lambda one: one.start_offset_s)
    if plan.scenario == OFFLINE:
        # Nobody waits for a single query of one batch, so none is late.
        measurements = [replace(one, intended_offset_s=None) for one in measurements]
    return ScenarioResult(
        scenario=LOADGEN_PREFIX + plan.scenario,
        target=target,
        interval_s=0.0,
        warm_up=None,
        measurements=tuple(measurements),
    )


def read_verdict(path: Path, *, scenario: str) -> LoadgenVerdict:
    """Read the figures of a run from LoadGen's detail log.

    Raises:
        LoadgenError: the log is missing or holds no verdict, as after a run that was cut short.
    """
    values: dict[str, Any] = {}
    try:
        for line in path.read_text("utf-8", errors="replace").splitlines():
            if line.startswith(_MARK):
                entry = json.loads(line.removeprefix(_MARK))
                values[entry["key"]] = entry["value"]
    except (OSError, ValueError, KeyError) as error:
        raise LoadgenError(f"the log of MLPerf LoadGen cannot be read: {error}") from None
    if "result_validity" not in values:
        raise LoadgenError(f"MLPerf LoadGen wrote no verdict into {path}")
    reasons = [_line(values.get(key)) for key in ("result_invalid_reason", "early_stopping_result")]
    server = scenario == SERVER
    # Offline queries are all due at once: their times are a queue's length and nobody's wait.
    timed = scenario != OFFLINE
    return LoadgenVerdict(
        scenario=scenario,
        version=str(values.get("loadgen_version", "")).strip(),
        valid=values["result_validity"] == "VALID",
        failed=0,
        why=tuple(
            reason for reason in (*reasons, *(_line(text) for text in _unmet(values))) if reason
        ),
        queries=int(values.get("result_query_count", 0)),
        p50_ms=_ms(values, "result_50.00_percentile_latency_ns") if timed else None,
        p90_ms=_ms(values, "result_90.00_percentile_latency_ns") if timed else None,
        p99_ms=_ms(values, "result_99.00_percentile_latency_ns") if timed else None,
        max_ms=_ms(values, "result_max_latency_ns") if timed else None,
        over_bound=int(values.get("result_overlatency_query_count", 0)) if server else None,
        completed_per_s=_completed(values),
        scheduled_per_s=values.get("result_scheduled_samples_per_sec") if server else None,
    )


def _serve(
    process: "subprocess.Popen[str]",
    make_client: MakeClient,
    payload: Payload,
    plan: LoadgenPlan,
    on_request: OnRequest | None,
    on_measured: Callable[[Measurement], None] | None,
) -> ScenarioResult:
    questions, answers = process.stdout, process.stdin
    if questions is None or answers is None:
        raise LoadgenError("the process of MLPerf LoadGen has no pipes")

    writing = threading.Lock()

    def measured(token: object, measurement: Measurement) -> None:
        # Several senders share the pipe; nobody reads it any more after an interruption.
        with writing, contextlib.suppress(OSError):
            answers.write(f"{token}\n")
            answers.flush()
        if on_measured:
            on_measured(measurement)

    senders = Senders(
        make_client,
        payload,
        most=1 if plan.scenario == SINGLE_STREAM else plan.in_flight,
        on_request=on_request,
        on_measured=measured,
    )
    begin_ns = time.perf_counter_ns()
    done = False
    try:
        for line in questions:
            kind, *rest = line.split()
            if kind == "done":
                done = True
                break
            due_s = (int(rest[0]) - begin_ns) / _NS_PER_S
            for number in rest[1:]:
                senders.send(intended_offset_s=due_s, token=number)
    finally:
        if not done:
            senders.abandon()
        senders.finish()
    if not done:
        words = process.stderr.read().strip().splitlines() if process.stderr else []
        raise LoadgenError(f"MLPerf LoadGen ended early: {words[-1] if words else 'no message'}")
    client = senders.any_client
    return measured_so_far(plan, client.describe(), list(drained(senders.log)))


def _with_failures(verdict: LoadgenVerdict, failed: int) -> LoadgenVerdict:
    if not failed:
        return verdict
    reason = f"{failed} requests failed, which LoadGen cannot know"
    return replace(verdict, valid=False, failed=failed, why=(reason, *verdict.why))


def _unmet(values: Mapping[str, Any]) -> list[str]:
    demands = {
        "result_perf_constraints_met": "the latency bound was not met",
        "result_min_duration_met": "the run was shorter than asked for",
        "result_min_queries_met": "there were fewer queries than asked for",
    }
    return [words for key, words in demands.items() if values.get(key) is False]


def _completed(values: Mapping[str, Any]) -> float | None:
    for key in (
        "result_completed_samples_per_sec",
        "result_samples_per_second",
        "result_qps_with_loadgen_overhead",
    ):
        if key in values:
            return float(values[key])
    return None


def _ms(values: Mapping[str, Any], key: str) -> float | None:
    return float(values[key]) / _NS_PER_MS if key in values else None


def _line(text: Any) -> str:
    return " ".join(str(text or "").replace("*", " ").split())
