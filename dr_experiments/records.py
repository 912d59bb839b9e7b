"""One JSON line per request, and CSV files with the columns of the earlier study.

Records are raw: percentiles and costs are derived from them later. A record holds timings,
sizes and identities of software; never the image, its name, or what was found in it.
"""

import csv
import json
import logging
import math
import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from dr_experiments.client import CLOCKS_APART, Measurement
from dr_experiments.cold_start import ReadyLine, split_cold_start
from dr_experiments.scenarios import ScenarioResult
from dr_experiments.targets import OUTCOME_OK, OUTCOMES, PLATFORM_LOCAL_AWS, PLATFORMS
from dr_experiments.transport import PHASES
from inference_image.contract import SERVING_MODE_REALTIME, SERVING_MODE_SERVERLESS

# 2: the steps of the connection, retries, schedules, Lambda and the phases of a cold start.
# 3: name of the endpoint, container flavour and digest of the image.
# 4: the platform, and the architecture of a function.
# 5: the machine of the client.
SCHEMA_VERSION: Final = 5
_ENDPOINT_MODES: Final = (SERVING_MODE_SERVERLESS, SERVING_MODE_REALTIME)
# Seconds, in this order, as the study's own files have them (an index column comes first).
STUDY_COLUMNS: Final = ("requestLatency", "predictionLatency", "fullLatency")
_LOG: Final = logging.getLogger(__name__)


class RecordsError(ValueError):
    """A file that is not one of request records; the text names the file and the line."""


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """What is true for a whole run; repeated in each record, so that a line stands alone."""

    run_id: str
    git_commit: str | None
    seed: int | None = None
    machine: str | None = None


@dataclass(frozen=True, kw_only=True)
class RequestRecord:
    """One request. The three latencies are seconds and null unless it was answered.

    `requestLatency` is the time in the container, `predictionLatency` the model's part of it
    (both as the container reports them), `fullLatency` the client's round trip.
    """

    schema: int
    run_id: str
    git_commit: str | None
    seed: int | None
    scenario: str
    configuration: str
    mode: str
    memory_mib: int | None
    instance_type: str | None
    region: str | None
    image: str | None
    model_id: str | None
    model_sha256: str | None
    index: int
    counted: bool
    started_at: str
    start_offset_s: float
    outcome: str
    status: int | None
    error: str | None
    failed_after_s: float | None
    requestLatency: float | None  # noqa: N815 - the study's name
    predictionLatency: float | None  # noqa: N815
    fullLatency: float | None  # noqa: N815
    bytes_in: int
    bytes_out: int | None
    cold: bool | None
    container_start_id: str | None
    container_started_to_ready_ms: float | None
    model_setup_ms: float | None
    model_latency_ms: float | None
    overhead_latency_ms: float | None
    # Of schema 2; records of schema 1 are read with these unknown.
    intended_offset_s: float | None = None
    response_time_s: float | None = None
    user: int | None = None
    retries: int = 0
    throttles: int = 0
    waited_s: float | None = None
    dns_ms: float | None = None
    connect_ms: float | None = None
    tls_ms: float | None = None
    upload_ms: float | None = None
    wait_ms: float | None = None
    download_ms: float | None = None
    init_duration_ms: float | None = None
    duration_ms: float | None = None
    billed_duration_ms: float | None = None
    max_memory_mib: float | None = None
    phases: dict[str, float] | None = None
    phases_estimated: list[str] | None = None
    # Of schema 3. `endpoint` is SageMaker's name, which the configuration of a sweep is not. The
    # digest is null where no image is run (a local process, the local AWS), and where the registry
    # was not asked or did not know it.
    endpoint: str | None = None
    runtime: str | None = None
    image_digest: str | None = None
    # Of schema 4: one of `targets.PLATFORMS`; see `measured_on` for what was recorded before. The
    # architecture is Lambda's, whose price depends on it.
    platform: str | None = None
    architecture: str | None = None
    # Of schema 5: `provenance.machine` of the client, under the local AWS and a process as well.
    machine: str | None = None

    @property
    def measured_on(self) -> str | None:
        """Where the answer came from: one of `targets.PLATFORMS`, or None where nobody knows.

        Records before schema 4 do not say it. Those that have a model's latency beside the answer
        are of the local AWS: SageMaker tells it to CloudWatch only.
        """
        if self.platform is None and self.model_latency_ms is not None:
            return PLATFORM_LOCAL_AWS
        return self.platform

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What only one record has: run, scenario, configuration, and the number in its series.

        A retry is part of its request, and the users of a load share one numbering.
        """
        return self.run_id, self.scenario, self.configuration, self.index

    @property
    def key_words(self) -> str:
        """The key in words, for messages."""
        return f"request {self.index} of {self.configuration} ({self.scenario}, run {self.run_id})"


def platform_of(records: Iterable[RequestRecord]) -> str | None:
    """The platform of one run's records (`RequestRecord.measured_on`); None where none says it.

    Raises:
        ValueError: they name two.
    """
    known = {record.measured_on for record in records} - {None}
    if len(known) > 1:
        raise ValueError(
            f"one configuration was measured on {' and '.join(sorted(map(str, known)))}; keep the "
            "two in files of their own"
        )
    return known.pop() if known else None


def records_of(
    result: ScenarioResult,
    *,
    context: RunContext,
    ready: Mapping[str, ReadyLine] = MappingProxyType({}),
) -> list[RequestRecord]:
    """Records of one scenario; index 0 is the uncounted request, if there is one.

    `ready` has what containers logged when they became ready, by start id (`cold_start`).
    """
    uncounted = [] if result.warm_up is None else [result.warm_up]
    records = [
        _record(result, measurement, index=0, context=context, ready=ready)
        for measurement in uncounted
    ]
    for index, measurement in enumerate(result.measurements, start=1):
        records.append(_record(result, measurement, index=index, context=context, ready=ready))
    return records


def write_jsonl(path: Path, records: Iterable[RequestRecord]) -> None:
    """Write all records, one JSON object a line; the file that was there is replaced at once."""
    made = path.with_name(f".{path.name}.part")
    try:
        with made.open("w", encoding="utf-8") as stream:
            for record in records:
                stream.write(json.dumps(asdict(record), allow_nan=False) + "\n")
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)


def read_jsonl(path: Path) -> list[RequestRecord]:
    """Read records back, those of earlier schemas, too.

    A run that was killed while it wrote leaves a last line without its end: what stands before is
    read, and one warning (`logging`, on stderr unless it is configured) names the file.

    Raises:
        RecordsError: a line that is no record, has another schema, a field of another type or
            outside its range, or fields that contradict each other, or a request that is there
            twice; the file and the line are named.
        OSError: the file cannot be read.
    """
    lines = path.read_bytes().removeprefix(BOM_UTF8).split(b"\n")
    last = lines.pop()
    found = [_read_line(line, f"{path}: line {n}") for n, line in enumerate(lines, start=1)]
    if _is_cut_off(last):
        _LOG.warning("%s: its last line, %d, is incomplete and is left out", path, len(lines) + 1)
    elif last:
        found.append(_read_line(last, f"{path}: line {len(lines) + 1}"))
    first: dict[tuple[str, str, str, int], int] = {}
    for number, record in enumerate(found, start=1):
        before = first.setdefault(record.key, number)
        if before != number:
            raise RecordsError(
                f"{path}: {record.key_words} is there twice (lines {before} and {number})"
            )
    return found


def write_csv(path: Path, records: Sequence[RequestRecord]) -> None:
    """All counted requests of a run in one table, failures included with empty latencies."""
    columns = ("configuration", "index", *STUDY_COLUMNS, "outcome", "cold", "platform")
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        for record in records:
            if record.counted:
                writer.writerow([_cell(getattr(record, column)) for column in columns])


def write_study_csv(path: Path, records: Sequence[RequestRecord]) -> int:
    """Answered warm requests in the study's own shape; returns how many were written."""
    rows = [r for r in records if r.counted and r.outcome == "ok" and not r.cold]
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["", *STUDY_COLUMNS])
        for number, record in enumerate(rows):
            writer.writerow([number, *(getattr(record, column) for column in STUDY_COLUMNS)])
    return len(rows)


def _record(
    result: ScenarioResult,
    measurement: Measurement,
    *,
    index: int,
    context: RunContext,
    ready: Mapping[str, ReadyLine],
) -> RequestRecord:
    target = result.target
    answer: Any = measurement.answer or {}
    model = answer.get("model", {})
    container = answer.get("container", {})
    split = split_cold_start(measurement, ready=ready.get(measurement.start_id or ""))
    phases = dict(split.phases_s) if split else None
    estimated = list(split.estimated) if split else None
    steps: dict[str, Any] = {name: measurement.phases_ms.get(name) for name in PHASES}
    return RequestRecord(
        schema=SCHEMA_VERSION,
        run_id=context.run_id,
        git_commit=context.git_commit,
        seed=context.seed,
        scenario=result.scenario,
        configuration=target.name,
        mode=target.mode,
        memory_mib=target.memory_mib,
        instance_type=target.instance_type,
        region=target.region,
        image=target.image,
        platform=target.platform,
        architecture=target.architecture,
        machine=context.machine,
        endpoint=target.name if target.mode in _ENDPOINT_MODES else None,
        image_digest=digest_in(target.image),
        model_id=model.get("id"),
        model_sha256=model.get("sha256"),
        index=index,
        counted=index > 0,
        started_at=measurement.started_at.isoformat(),
        start_offset_s=measurement.start_offset_s,
        outcome=measurement.outcome,
        status=measurement.status,
        error=measurement.error,
        failed_after_s=measurement.failed_after_s,
        requestLatency=answer.get("requestLatency"),
        predictionLatency=answer.get("predictionLatency"),
        fullLatency=measurement.full_latency_s,
        bytes_in=measurement.bytes_in,
        bytes_out=measurement.bytes_out,
        cold=measurement.cold,
        container_start_id=container.get("start_id"),
        container_started_to_ready_ms=container.get("started_to_ready_ms"),
        model_setup_ms=measurement.platform_ms.get("model_setup_ms"),
        model_latency_ms=measurement.platform_ms.get("model_latency_ms"),
        overhead_latency_ms=measurement.platform_ms.get("overhead_latency_ms"),
        intended_offset_s=measurement.intended_offset_s,
        response_time_s=measurement.response_time_s,
        user=measurement.user,
        retries=measurement.retries,
        throttles=measurement.throttles,
        waited_s=measurement.waited_s,
        **steps,
        init_duration_ms=measurement.platform_ms.get("init_duration_ms"),
        duration_ms=measurement.platform_ms.get("duration_ms"),
        billed_duration_ms=measurement.platform_ms.get("billed_duration_ms"),
        max_memory_mib=measurement.max_memory_mib,
        phases=phases,
        phases_estimated=estimated,
    )


def digest_in(image: str | None) -> str | None:
    """`sha256:…` of an image reference that has it; None for a tag."""
    _, at, digest = (image or "").partition("@")
    return digest if at and digest.startswith("sha256:") else None


def _cell(value: Any) -> Any:
    return "" if value is None else value


def _kinds() -> dict[str, tuple[Any, bool]]:
    """Of each field: its type, and whether it may be null, as the dataclass declares them."""
    found = {}
    for name, hint in get_type_hints(RequestRecord).items():
        options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        (kind,) = (one for one in options if one is not type(None))
        found[name] = get_origin(kind) or kind, type(None) in options
    return found


_KINDS: Final = _kinds()
_NEEDED: Final = tuple(one.name for one in fields(RequestRecord) if one.default is MISSING)
_KIND_WORDS: Final[Mapping[Any, str]] = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    dict: "an object of finite numbers",
    list: "a list of texts",
}
_ABOVE_ZERO: Final = frozenset({"memory_mib", "requestLatency", "fullLatency"})
# The engine's time is 0 for a photograph that cannot be graded. Offsets and remainders of two
# clocks (`overhead_latency_ms`, the phases) can lie a little below zero.
_NOT_NEGATIVE: Final = frozenset(
    {
        "index", "bytes_in", "bytes_out", "user", "retries", "throttles", "predictionLatency",
        "failed_after_s", "waited_s", "container_started_to_ready_ms", "model_setup_ms",
        "model_latency_ms", "init_duration_ms", "duration_ms", "billed_duration_ms",
        "max_memory_mib", *PHASES,
    }
)  # fmt: skip
# Thirty years of milliseconds, a terabyte: beyond it a number is damaged, and its square overflows.
_LARGEST: Final = 10**12


def _read_line(line: bytes, where: str) -> RequestRecord:
    try:
        entry = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        raise RecordsError(f"{where} is not UTF-8 text") from None
    except (ValueError, RecursionError):
        raise RecordsError(f"{where} is not a request record: it is not JSON") from None
    fault = _fault(entry)
    if fault:
        raise RecordsError(f"{where} is not a request record{fault}")
    return RequestRecord(**entry)


def _is_cut_off(line: bytes) -> bool:
    """Whether an object begins in `line` and does not end there."""
    text = line.decode("utf-8", errors="replace")
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", text).partition('"')[0]
    return text.startswith("{") and bare.count("{") > bare.count("}")


def _fault(entry: Any) -> str | None:
    """What speaks against a line, as the end of a sentence; None for a record."""
    if not isinstance(entry, dict):
        return ": it is not a JSON object"
    schema: Any = entry.get("schema")
    if not _is_a(schema, int):
        return f": its schema must be a whole number; got {_shown(schema)}"
    if not 1 <= schema <= SCHEMA_VERSION:
        # Before the fields: those of a later schema are not known here.
        return (
            f" that this version can read: it has schema {_shown(schema)}, and schemas 1 to "
            f"{SCHEMA_VERSION} are known; read it with the version of dr-endpoints that wrote it"
        )
    unknown = [name for name in entry if name not in _KINDS]
    if unknown:
        return f": no field of schema {schema} is called {_shown(unknown[0])}"
    missing = [name for name in _NEEDED if name not in entry]
    if missing:
        return f": it has no {', '.join(missing)}"
    for name, value in entry.items():
        demand = _demand(name, value)
        if demand:
            return f": {name} must be {demand}; got {_shown(value)}"
    return _contradiction(entry)


def _contradiction(entry: Mapping[str, Any]) -> str | None:
    """What two fields say against each other, as the end of a sentence; None for nothing."""
    container, prediction, round_trip = STUDY_COLUMNS
    outcome = entry["outcome"]
    if outcome == OUTCOME_OK:
        for name in (container, round_trip):
            if entry[name] is None:
                return f": its outcome is {outcome}, and it has no {name}"
    else:
        for name in STUDY_COLUMNS:
            if entry[name] is not None:
                return f": its outcome is {outcome}, and it has a {name}, as only an answer has"
    for part, whole, apart in ((prediction, container, 1), (container, round_trip, CLOCKS_APART)):
        part_s, whole_s = entry[part], entry[whole]
        if part_s is not None and whole_s is not None and part_s > whole_s * apart:
            return f": it has a longer {part} than {whole}, of which it is a part"
    return None


def _demand(name: str, value: Any) -> str | None:
    """What `value` must be to be `name`, in words; None where it is that."""
    kind, nullable = _KINDS[name]
    if value is None:
        return None if nullable else _KIND_WORDS[kind]
    if not _is_a(value, kind):
        return _KIND_WORDS[kind] + (" or null" if nullable else "")
    if kind in (int, float) and name != "seed" and abs(value) > _LARGEST:
        return f"at most {_LARGEST:,}"
    if name in _ABOVE_ZERO and value <= 0:
        return "above 0"
    if name in _NOT_NEGATIVE and value < 0:
        return "at least 0"
    if name == "outcome" and value not in OUTCOMES:
        return f"one of {', '.join(OUTCOMES)}"
    if name == "platform" and value not in PLATFORMS:
        return f"one of {', '.join(PLATFORMS)}, or null"
    if name == "started_at" and not _is_moment(value):
        return "a moment with its offset from UTC, such as 2026-11-28T17:57:49+00:00"
    return None


def _is_a(value: Any, kind: Any) -> bool:
    # bool is a kind of int for Python, and not for JSON.
    if kind is float:
        known = isinstance(value, int | float) and not isinstance(value, bool)
        return known and (isinstance(value, int) or math.isfinite(value))
    if kind is dict:
        return isinstance(value, dict) and all(_is_a(one, float) for one in value.values())
    if kind is list:
        return isinstance(value, list) and all(isinstance(one, str) for one in value)
    return type(value) is kind


def _is_moment(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _shown(value: Any) -> str:
    """A value as JSON, short enough for a sentence."""
    try:
        text = json.dumps(value)
    except ValueError:
        # More digits than Python writes out.
        return "a very large number"
    return text if len(text) <= 40 else f"{text[:40]}…"
