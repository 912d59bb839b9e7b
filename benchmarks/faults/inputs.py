"""Bad input: hard files, mutated files, requests made from the API's document, hostile files."""

import contextlib
import http.client
import json
import random
import socket
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.faults.document import DescribedService
from benchmarks.faults.files import (
    Body,
    camera_jpeg,
    good_files,
    hostile_files,
    mutated,
    small_jpeg,
)
from benchmarks.faults.findings import Findings, Row, mib
from benchmarks.faults.requests import made_requests, raw_requests
from benchmarks.faults.service import Answer, Service, ask
from inference_image.contract import CUSTOM_ATTRIBUTES_HEADER

_SENDERS: Final = 4
_MOST_GROWTH: Final = 0.10
_MOST_EXTRA_BYTES: Final = 20_000_000
_EXAMPLES: Final = 10
_IDLE_S: Final = 5.0


# --- files that are known to be hard ------------------------------------------------------


def as_expected(expect: str, status: int, gradable: bool | None) -> bool:
    """Whether an answer is one that the manifest allows."""
    if status >= 500:
        return False
    if status == 415:
        # Types and variants that docs/formats.md does not list. What the manifest wants refused
        # for another fault may be refused for its type as well, which is found first.
        return "415" in expect or expect.startswith("reject")
    if expect.startswith("reject 415 (unsupported media type) unless"):
        # Of the accepted types: the manifest asks for no more than decoding them.
        return status == 200
    if expect.startswith(("scale", "take page 1", "no endless loop")):
        return gradable is False
    if expect.startswith("reject 422 / quality"):
        return status == 422 or gradable is False
    if expect.startswith("reject"):
        return status in (400, 413, 422)
    if expect.startswith("decode leniently"):
        return status in (200, 400, 422)
    if "flag: not a fundus" in expect or "then flag" in expect or expect == "quality flag":
        return gradable is False
    if expect.startswith(("as retina_gray", "cannot be known")):
        return status == 200
    return gradable is True


def hard_files(service: Service, folder: Path) -> Findings:
    """Every file of the folder's manifest gets what the manifest expects."""
    rows = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    became: Counter[str] = Counter()
    wrong = []
    for row in rows:
        body = (folder / row["file"]).read_bytes()
        answer = service.request(
            "POST", "/invocations", body, {"Content-Type": "application/octet-stream"}
        )
        gradable = None
        if answer.status == 200:
            gradable = json.loads(answer.body)["quality"]["gradable"]
        became[
            "graded" if gradable else str(answer.status) if gradable is None else "ungradable"
        ] += 1
        if not as_expected(row["expect"], answer.status, gradable):
            wrong.append(f"{row['file']}: {answer.status}, expected {row['expect']}")
    faults = sum(count for name, count in became.items() if name.startswith("5"))
    return Findings(
        rows=[
            Row(
                what=f"{len(rows)} hard files",
                wanted="what the manifest expects; no 5xx",
                found=f"{len(rows) - len(wrong)} as expected; {faults} × 5xx",
                met=not wrong and not faults,
            )
        ],
        numbers={"files": len(rows), "became": dict(sorted(became.items())), "wrong": wrong},
    )


# --- thousands of mutants -----------------------------------------------------------------


@dataclass
class _Tally:
    statuses: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    slowest: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, name: str, answer: Answer | None, faults: Sequence[str], spent_s: float) -> None:
        with self.lock:
            self.statuses[str(answer.status) if answer else "none"] += 1
            if answer is None or answer.status >= 500:
                self.bad.append(f"{name}: {answer.status if answer else 'no answer'}")
            self.bad += [f"{name}: {fault}" for fault in faults]
            if spent_s > self.slowest_s:
                self.slowest_s, self.slowest = spent_s, name


def _in_parallel(work: Callable[[int], None], count: int, *, ended: Callable[[], None]) -> None:
    """`work(0)` … `work(count - 1)`, shared by a few threads, each of which calls `ended`."""
    numbers = iter(range(count))
    lock = threading.Lock()

    def run() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                break
            work(number)
        ended()

    threads = [threading.Thread(target=run) for _ in range(_SENDERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class _Connections(threading.local):
    """One connection for each thread, opened again where the service has closed it."""

    connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        """Close the connection of this thread."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def ask(
        self, service: Service, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> Answer | None:
        """None where there was no answer, also not on a new connection."""
        for _ in range(2):
            fresh = self.connection is None
            if self.connection is None:
                self.connection = service.connect()
            try:
                answer = ask(self.connection, method, path, body, headers)
            except (OSError, http.client.HTTPException):
                self.close()
                if fresh:
                    return None
            else:
                if answer.headers.get("connection", "").lower() == "close":
                    self.close()
                return answer
        return None


def mutants(service: Service, count: int, *, first_seed: int = 0) -> Findings:
    """`count` mutated files: no 5xx, no dead worker, every answer as described, memory back."""
    corpus = good_files()
    described = DescribedService(json.loads(service.request("GET", "/openapi.json").body))
    connections = _Connections()
    # Each worker has met each format before the first measurement: decoders come on first use.
    for _ in range(3 * service.workers):
        for file in corpus:
            service.request("POST", "/invocations", file.body, {"Content-Type": file.content_type})
    workers, before = service.worker_pids(), service.resident_bytes()
    tally = _Tally()

    def send(number: int) -> None:
        mutant = mutated(corpus, seed=first_seed + number)
        headers = {"Content-Type": mutant.content_type}
        if number % 10 == 0:
            headers[CUSTOM_ATTRIBUTES_HEADER] = "explain=gradcam"
        if number % 7 == 0:
            headers["Accept"] = "text/csv"
        began = time.perf_counter()
        answer = connections.ask(service, "POST", "/invocations", mutant.body, headers)
        spent_s = time.perf_counter() - began
        faults = [] if answer is None else _faults(described, "POST", "/invocations", answer)
        tally.note(mutant.name, answer, faults, spent_s)

    began = time.perf_counter()
    _in_parallel(send, count, ended=connections.close)
    seconds = time.perf_counter() - began
    # An idle worker gives spare memory back after two seconds.
    time.sleep(_IDLE_S)
    after = service.resident_bytes()
    dead = service.count("worker_died")
    growth = after / before - 1
    return Findings(
        rows=[
            Row(
                what=f"{count:,} mutated files of {len(corpus)} encodings and shapes",
                wanted="0 × 5xx, 0 dead workers, answers as in the API's document",
                found=_told(tally, dead),
                met=not tally.bad and not dead and service.worker_pids() == workers,
            ),
            Row(
                what="memory of the workers 5 s after them",
                wanted="within 10 % of the start",
                found=f"{mib(before)} MiB before, {mib(after)} MiB after ({growth:+.1%})",
                met=growth <= _MOST_GROWTH,
            ),
        ],
        numbers={
            "count": count,
            "first_seed": first_seed,
            "seconds": round(seconds, 1),
            "statuses": dict(sorted(tally.statuses.items())),
            "slowest_ms": round(tally.slowest_s * 1000),
            "slowest": tally.slowest,
            "dead_workers": dead,
            "resident_before_bytes": before,
            "resident_after_bytes": after,
            "bad": tally.bad[:_EXAMPLES],
        },
    )


def _faults(described: DescribedService, method: str, path: str, answer: Answer) -> list[str]:
    return described.faults(
        method, path, status=answer.status, headers=answer.headers, body=answer.body
    )


def _told(tally: _Tally, dead: int) -> str:
    server = sum(count for status, count in tally.statuses.items() if status.startswith("5"))
    return (
        f"{server} × 5xx, {tally.statuses['none']} without answer, {dead} dead workers, "
        f"{len(tally.bad)} not as described"
    )


# --- requests made from the API's document ------------------------------------------------


def schema_fuzz(service: Service, count: int, *, seed: int = 0) -> Findings:
    """Requests made from the OpenAPI document, right and wrong ones, and bytes that are no HTTP."""
    described = DescribedService(json.loads(service.request("GET", "/openapi.json").body))
    chance = random.Random(seed)  # noqa: S311
    made = list(made_requests(described.document, chance, count))
    connections, tally, workers = _Connections(), _Tally(), service.worker_pids()

    def send(number: int) -> None:
        request = made[number]
        began = time.perf_counter()
        answer = connections.ask(
            service, request.method, request.path, request.body, request.headers
        )
        spent_s = time.perf_counter() - began
        faults = []
        if answer is not None:
            path = request.path.partition("?")[0]
            faults = _faults(described, request.method, path, answer)
        tally.note(f"request {number} of seed {seed}", answer, faults, spent_s)

    _in_parallel(send, count, ended=connections.close)
    raw = list(raw_requests(chance, max(10, count // 10), small_jpeg()))
    answered = sum(_send_raw(service, data, tally) for data in raw)
    dead = service.count("worker_died")
    wanted = {answer for answer in described.answers() if answer[2] not in (429, 500, 503, 504)}
    missed = sorted(f"{m} {p} {s}" for m, p, s in wanted - described.seen)
    return Findings(
        rows=[
            Row(
                what=f"{count:,} requests made from the OpenAPI document",
                wanted="0 × 5xx, 0 dead workers, answers as in the document",
                found=_told(tally, dead),
                met=not tally.bad and not dead and service.worker_pids() == workers,
            ),
            Row(
                what=f"{len(raw):,} requests that are damaged HTTP",
                wanted="an answer below 500 or a closed connection",
                found=f"{answered} answered, {len(raw) - answered} closed",
                met=not tally.bad and not dead,
            ),
        ],
        numbers={
            "count": count,
            "raw": len(raw),
            "seed": seed,
            "statuses": dict(sorted(tally.statuses.items())),
            "described_answers_not_seen": missed,
            "bad": tally.bad[:_EXAMPLES],
        },
    )


def _send_raw(service: Service, data: bytes, tally: _Tally) -> bool:
    """Whether there was an answer; it is the other side's turn to close."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as caller:
        answer = b""
        with contextlib.suppress(OSError):
            caller.sendall(data)
            caller.shutdown(socket.SHUT_WR)
            while len(answer) < 12 and (more := caller.recv(4096)):
                answer += more
    if answer and not answer.startswith((b"HTTP/1.1 2", b"HTTP/1.1 4")):
        tally.bad.append(f"damaged HTTP was answered {answer[:60]!r}")
    return bool(answer)


# --- files that are made to hurt ----------------------------------------------------------

# What is too much in them is never read: they are answered like any other.
_HARMLESS: Final = ("TIFF whose pages are a ring", "TIFF of 600 x 600 whose strip holds 100 MB")


def hostile(service: Service, *, repeats: int) -> Findings:
    """Each hostile file is refused for less than an ordinary photograph costs; one worker."""
    camera = Body(name="", content_type="image/jpeg", body=camera_jpeg())
    files = hostile_files()
    # Decoders come on first use, and stay.
    for file in (*good_files(), camera):
        _post(service, file)
    ordinary = _cost(service, camera, repeats)
    numbers: list[dict[str, Any]] = []
    rows = []
    for file in files:
        cost = _cost(service, file, repeats)
        harmless = file.name in _HARMLESS
        refused = cost.status == 200 if harmless else 400 <= cost.status < 500
        wanted = "answered" if harmless else "refused"
        rows.append(
            Row(
                what=f"{file.name} ({_size(len(file.body))})",
                wanted=f"{wanted}, below {ordinary.cpu_ms:.0f} ms of CPU and 20 MB",
                found=f"{cost.status}, {cost.cpu_ms:.1f} ms, {mib(cost.extra_bytes)} MiB",
                met=refused
                and cost.cpu_ms < ordinary.cpu_ms
                and cost.extra_bytes < _MOST_EXTRA_BYTES,
            )
        )
        numbers.append(
            {
                "file": file.name,
                "bytes": len(file.body),
                "status": cost.status,
                "cpu_ms": round(cost.cpu_ms, 2),
                "extra_bytes": cost.extra_bytes,
            }
        )
    return Findings(
        rows=rows,
        numbers={
            "repeats": repeats,
            "ordinary_cpu_ms": round(ordinary.cpu_ms, 2),
            "ordinary_extra_bytes": ordinary.extra_bytes,
            "ordinary_bytes": len(camera.body),
            "files": numbers,
        },
    )


@dataclass(frozen=True, kw_only=True)
class _Cost:
    status: int
    cpu_ms: float
    extra_bytes: int


def _cost(service: Service, file: Body, repeats: int) -> _Cost:
    """Median CPU time of the worker, and the most memory beyond what it held before."""
    spent, extra, status = [], 0, 0
    for _ in range(repeats):
        service.reset_peak()
        resident, cpu = service.resident_bytes(), service.cpu_s()
        status = _post(service, file)
        spent.append(service.cpu_s() - cpu)
        extra = max(extra, service.peak_bytes() - resident)
    return _Cost(status=status, cpu_ms=statistics.median(spent) * 1000, extra_bytes=extra)


def _post(service: Service, file: Body) -> int:
    headers = {"Content-Type": file.content_type}
    return service.request("POST", "/invocations", file.body, headers).status


def _size(size_bytes: int) -> str:
    if size_bytes < 10_000:
        return f"{size_bytes} bytes"
    return f"{size_bytes / 1e6:.1f} MB"
