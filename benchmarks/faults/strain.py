"""Too much load, workers that are killed, and SIGTERM in the middle of it."""

import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from benchmarks.faults.files import small_jpeg
from benchmarks.faults.findings import Findings, Row, share
from benchmarks.faults.service import REPOSITORY, Service
from benchmarks.generator import Outcome, Sent, Stop, offer
from benchmarks.http_requests import request_bytes

_OVERLOAD: Final = 10
_LEAST_GOODPUT: Final = 0.90
_SLOWEST_PING_S: Final = 0.5
_BACK_WITHIN_S: Final = 1.0
# The first moments of an overload fill the queue, and are none of the steady state.
_SETTLES_S: Final = 1.0
_PEAK_CALLERS: Final = (4, 16, 40)
_TURNS: Final = 6
_HALF: Final = 0.5
_LISTENING: Final = "0A"


def peak(service: Service, request: bytes, seconds: float) -> tuple[float, int]:
    """The most answers per second that some number of callers gets, and that number."""
    each_s = seconds / len(_PEAK_CALLERS)
    return max(
        (offer(service.port, request, callers=callers, seconds=each_s).per_s(200), callers)
        for callers in _PEAK_CALLERS
    )


# --- overload -----------------------------------------------------------------------------


def overload(service: Service, *, seconds: float, timeout_s: float) -> Findings:
    """Ten times the requests that the service can answer, on a schedule."""
    request = request_bytes(small_jpeg())
    # As long as the overload, before and after together: the most of few short ones is too much.
    around = max(1.5, seconds / 2)
    before, callers = peak(service, request, around)
    rate_per_s = _OVERLOAD * before
    with _pinging(service, seconds, 0.1) as pings:
        cpu_s = service.cpu_s()
        outcome = offer(service.port, request, rate_per_s=rate_per_s, seconds=seconds)
        cpu_s = service.cpu_s() - cpu_s
    ping_s = sorted(pings)
    after, _ = peak(service, request, around)
    goodput = outcome.per_s(200, from_s=_SETTLES_S)
    best = max(before, after)
    ratios = _in_turn(service, request, callers=callers, rate_per_s=rate_per_s, seconds=seconds)
    typical = statistics.median(ratios)
    latencies, refusals = outcome.latencies_s(200), outcome.latencies_s(429)
    others = len(outcome.requests) - len(latencies) - len(refusals)
    slowest = latencies[-1] if latencies else float("nan")
    wrong_pings = sum(spent < 0 for spent in ping_s)
    return Findings(
        rows=[
            Row(
                what=f"{_OVERLOAD} times the peak for {seconds:g} s: answers per second",
                wanted=f"at least {_LEAST_GOODPUT:.0%} of the peak",
                found=f"{goodput:.0f} of {best:.0f} ({goodput / best:.0%})",
                met=goodput >= _LEAST_GOODPUT * best,
            ),
            Row(
                what=f"the same in turn with the peak, {len(ratios)} times: median of the shares",
                wanted=f"at least {_LEAST_GOODPUT:.0%}",
                found=f"{typical:.0%} ({min(ratios):.0%} to {max(ratios):.0%})",
                met=typical >= _LEAST_GOODPUT,
            ),
            Row(
                what="the accepted requests",
                wanted=f"answered within their {timeout_s:g} s",
                found=f"{len(latencies):,} answered, the slowest after {slowest:.2f} s",
                met=bool(latencies) and slowest < timeout_s,
            ),
            Row(
                what="all others",
                wanted="429",
                found=f"{len(refusals):,} × 429, {others} otherwise",
                met=bool(refusals) and not others and not outcome.refused_connections,
            ),
            Row(
                what=f"`/ping` meanwhile, {len(ping_s)} times",
                wanted=f"200 within {_SLOWEST_PING_S * 1000:.0f} ms",
                found=f"slowest {1000 * max(ping_s, default=-1):.0f} ms, {wrong_pings} not 200",
                met=bool(ping_s) and not wrong_pings and ping_s[-1] < _SLOWEST_PING_S,
            ),
        ],
        numbers={
            "seconds": seconds,
            "workers": service.workers,
            "peak_before_per_s": round(before, 1),
            "peak_after_per_s": round(after, 1),
            "offered_per_s": round(len(outcome.requests) / seconds, 1),
            "goodput_per_s": round(goodput, 1),
            "in_turn_shares": [round(ratio, 3) for ratio in ratios],
            "statuses": outcome.statuses(),
            "refused_connections": outcome.refused_connections,
            "answered_p50_ms": round(1000 * share(latencies, 0.5), 1),
            "answered_p99_ms": round(1000 * share(latencies, 0.99), 1),
            "answered_max_ms": round(1000 * slowest, 1),
            "refused_p50_ms": round(1000 * share(refusals, 0.5), 1),
            "refused_p99_ms": round(1000 * share(refusals, 0.99), 1),
            "ping_p99_ms": round(1000 * share(ping_s, 0.99), 1),
            "service_cpu_share": round(cpu_s / seconds, 3),
            "generator_cpu_share": round(outcome.own_cpu_s / seconds, 3),
        },
    )


def _in_turn(
    service: Service, request: bytes, *, callers: int, rate_per_s: float, seconds: float
) -> list[float]:
    """Goodput under overload as a share of the peak a moment before and after it.

    A host whose speed changes within a minute changes both of a pair.
    """
    each_s = seconds / _TURNS
    peaks: list[float] = []
    goodputs: list[float] = []
    for _ in range(_TURNS):
        calm = offer(service.port, request, callers=callers, seconds=each_s / 2)
        peaks.append(calm.per_s(200))
        crowded = offer(
            service.port, request, rate_per_s=rate_per_s, seconds=_SETTLES_S + each_s / 2
        )
        goodputs.append(crowded.per_s(200, from_s=_SETTLES_S))
    last = offer(service.port, request, callers=callers, seconds=each_s / 2)
    peaks.append(last.per_s(200))
    return [
        goodput / statistics.fmean(around)
        for goodput, around in zip(goodputs, itertools.pairwise(peaks), strict=True)
    ]


@contextlib.contextmanager
def _pinging(service: Service, seconds: float, interval_s: float) -> Iterator[list[float]]:
    """`GET /ping` from another process meanwhile; the list has what each took afterwards."""
    took: list[float] = []
    command = [sys.executable, "-m", "benchmarks.faults.ping"]
    arguments = [str(service.port), str(seconds), str(interval_s)]
    with subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, cwd=REPOSITORY, text=True
    ) as prober:
        try:
            yield took
            took += json.loads(prober.communicate(timeout=30)[0])
        finally:
            prober.kill()


# --- killed workers -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Kill:
    """One `kill -9`: when, and the callers whose requests that worker had in hand."""

    at_s: float
    wall_s: float
    ports: frozenset[int]


def deaths(service: Service, *, kills: int, every_s: float) -> Findings:
    """`kill -9` of a worker again and again, under load."""
    request = request_bytes(small_jpeg(), close=True)
    rate = _HALF * peak(service, request_bytes(small_jpeg()), 3.0)[0]
    done: list[_Kill] = []
    with _under_load(service, request, rate, (kills + 1) * every_s + 60) as outcomes:
        for number in range(kills):
            time.sleep(every_s)
            pids = service.worker_pids()
            done.append(_kill(service, pids[number % len(pids)]))
        time.sleep(every_s)
    outcome = outcomes[0]
    back_s = _times_to_ready(service, done)
    turned_away = outcome.answered(429)
    failed = [sent for sent in outcome.requests if sent.status not in (200, 429)]
    strangers = [sent for sent in failed if not any(_was_in_hand(sent, kill) for kill in done)]
    slowest = max(back_s, default=float("inf"))
    answered = outcome.answered(200)
    return Findings(
        rows=[
            Row(
                what=f"`kill -9` of a worker every {every_s:g} s, {kills} times, "
                f"{len(outcome.requests):,} requests",
                wanted="only requests that the killed worker had in hand fail",
                found=f"{answered:,} answered, {turned_away} × 429, "
                f"{len(failed) - len(strangers)} failed in hand, {len(strangers)} others failed",
                met=not strangers and not outcome.refused_connections and answered > 0,
            ),
            Row(
                what="a new worker",
                wanted=f"ready within {_BACK_WITHIN_S:g} s",
                found=f"{len(back_s)} times, slowest {slowest:.2f} s",
                met=len(back_s) == kills and slowest <= _BACK_WITHIN_S,
            ),
        ],
        numbers={
            "kills": kills,
            "every_s": every_s,
            "workers": service.workers,
            "offered_per_s": round(rate, 1),
            "statuses": outcome.statuses(),
            "in_hand_at_kills": [len(kill.ports) for kill in done],
            "failed": len(failed),
            "failed_others": len(strangers),
            "refused_connections": outcome.refused_connections,
            "back_s": [round(spent, 3) for spent in back_s],
        },
    )


def _kill(service: Service, pid: int) -> _Kill:
    # Stopped first, so that what it has in hand stays the same while it is read.
    os.kill(pid, signal.SIGSTOP)
    ports = _callers_of(pid, service.port)
    kill = _Kill(at_s=time.perf_counter(), wall_s=time.time(), ports=ports)
    os.kill(pid, signal.SIGKILL)
    return kill


def _callers_of(pid: int, port: int) -> frozenset[int]:
    """Ports of the callers whose connections a process holds."""
    held = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            held.add(str(link.readlink()))
    callers = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        own, peer, state, inode = fields[1], fields[2], fields[3], fields[9]
        if state != _LISTENING and f"socket:[{inode}]" in held and _port(own) == port:
            callers.add(_port(peer))
    return frozenset(callers)


def _port(address: str) -> int:
    return int(address.partition(":")[2], 16)


def _was_in_hand(sent: Sent, kill: _Kill) -> bool:
    return sent.local_port in kill.ports and sent.due_s <= kill.at_s <= sent.done_s


def _times_to_ready(service: Service, kills: list[_Kill]) -> list[float]:
    """Seconds from each kill to the next worker that said it was ready."""
    ready_s = [
        datetime.fromisoformat(event["time"]).timestamp()
        for event in service.events()
        if event["event"] == "ready"
    ]
    found = []
    for kill in kills:
        later = [at_s for at_s in ready_s if at_s >= kill.wall_s]
        if later:
            found.append(min(later) - kill.wall_s)
    return found


# --- SIGTERM ------------------------------------------------------------------------------


def terminations(start: Callable[[], Service], *, times: int, seconds: float) -> Findings:
    """SIGTERM under load, on a new service each time."""
    request = request_bytes(small_jpeg(), close=True)
    codes: list[int | None] = []
    answered, told_later, unanswered, refused = 0, 0, 0, 0
    spent: list[float] = []
    errors = ""
    for _ in range(times):
        with start() as service:
            service.wait_ready()
            rate = _HALF * peak(service, request_bytes(small_jpeg()), 1.5)[0]
            with _under_load(service, request, rate, seconds + 60) as outcomes:
                time.sleep(seconds)
                began = time.perf_counter()
                codes.append(service.end())
                spent.append(time.perf_counter() - began)
            errors += service.errors()
        outcome = outcomes[0]
        good, later = outcome.answered(200), outcome.answered(503) + outcome.answered(429)
        answered += good
        told_later += later
        unanswered += len(outcome.requests) - good - later
        refused += outcome.refused_connections
    shown = ", ".join(sorted({str(code) for code in codes}))
    return Findings(
        rows=[
            Row(
                what=f"SIGTERM under load, {times} times, "
                f"{answered + told_later + unanswered:,} requests",
                wanted="every accepted request is answered",
                found=f"{answered:,} × 200, {told_later} × 503 or 429, {unanswered} unanswered",
                met=not unanswered and answered > 0,
            ),
            Row(
                what="exit code",
                wanted="0, and nothing on standard error",
                found=f"{shown} after at most {max(spent):.1f} s, {len(errors)} characters",
                met=set(codes) == {0} and not errors,
            ),
        ],
        numbers={
            "times": times,
            "codes": codes,
            "answered": answered,
            "told_to_come_back": told_later,
            "unanswered": unanswered,
            "connections_refused_after_the_end": refused,
            "seconds_to_end": [round(s, 2) for s in spent],
            "errors": errors[:500],
        },
    )


@contextlib.contextmanager
def _under_load(
    service: Service, request: bytes, rate: float, seconds: float
) -> Iterator[list[Outcome]]:
    """Requests on a schedule, each on a connection of its own; the list has the outcome after."""
    stop = Stop()
    found: list[Outcome] = []

    def run() -> None:
        found.append(
            offer(
                service.port,
                request,
                rate_per_s=rate,
                seconds=seconds,
                keep_alive=False,
                stop=stop,
            )
        )

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()
